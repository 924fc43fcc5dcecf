"""Files of the user: written whole or not at all, locked, and their troubles told by name."""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from discorl.types import UserError

_TEMPORARY_SUFFIX = ".partial"
_LOCKS_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})


def cache_root() -> Path:
    """The user's cache folder for discorl, which may not exist yet.

    `$DISCORL_CACHE` if that variable is set, else `$XDG_CACHE_HOME/discorl`, else
    `~/.cache/discorl`.
    """
    if root := os.environ.get("DISCORL_CACHE"):
        return Path(root).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification has relative paths ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "discorl"


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Replaces a file in one step: readers see the old file or the new one, never a part.

    The new content is on the disk before it takes the name, so this also holds across a power cut.
    If anything fails, the old file stands and nothing else is left behind.
    """
    path = Path(path)
    # Not `tempfile`: its files are private to the user, and many of ours are made to be shared.
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


def lock(path: str | os.PathLike[str], *, wait: bool) -> BinaryIO:
    """Takes a lock that the system frees even if the process is killed; closing it lets go.

    Where the file system has no locks, a warning is all there is. The file that stands for the lock
    is made if absent, and stays.

    Raises:
        BlockingIOError: another process holds the lock, and `wait` is false.
    """
    holder = Path(path).open("ab")  # noqa: SIM115 - it is the caller who closes it
    try:
        fcntl.flock(holder, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _LOCKS_UNSUPPORTED:
            holder.close()
            raise
        warnings.warn(
            f"the file system of {path} has no locks; let no second process write there",
            stacklevel=3,
        )
    return holder


def sha256_of(path: Path) -> str:
    """The hash of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Puts the name of the file in front of every message to the user."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


@contextlib.contextmanager
def write_errors_reported(path: str | os.PathLike[str]) -> Iterator[None]:
    """Tells the user, instead of failing with a traceback, that a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    """Puts the folder's list of names on the disk; without this a rename can be lost."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
