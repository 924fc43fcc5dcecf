"""Files that are either whole or absent, whatever interrupts the writing."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_TEMPORARY_SUFFIX = ".partial"


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Replaces a file in one step: readers see the old file or the new one, never a part.

    The new content is on the disk before it takes the name, so this also holds across a power cut.
    If anything fails, the old file stands and nothing else is left behind.

    Args:
      path: The file to write; its folder must exist.
      write: Writes the content to the open binary file it is given.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # an interrupt from the keyboard must not leave a part either
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Removes what writers that were killed left in a folder.

    Only for a folder that no other process is writing to.
    """
    for leftover in Path(folder).glob(f".*{_TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Puts the folder's list of names on the disk; without this a rename can be lost."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
