"""File access: regular files only, atomic writes, locks.

Everything that discorl reads or writes goes through here. A device, a FIFO or a folder instead of
a file is rejected: reading a FIFO would block forever, and replacing a device as root would break
the machine.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from discorl.types import UserError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.partial")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}
_LOCKS_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})


def cache_root() -> Path:
    """The cache folder of discorl, which may not exist yet.

    `$DISCORL_CACHE` if that variable is set, else `$XDG_CACHE_HOME/discorl`, else
    `~/.cache/discorl`.
    """
    if root := os.environ.get("DISCORL_CACHE"):
        return Path(root).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says to ignore relative paths.
    return (base if base.is_absolute() else Path.home() / ".cache") / "discorl"


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Replaces a regular file atomically: readers see the old or the new content, never a part.

    The new content is on disk before the rename, so this holds across a power cut, too. If anything
    fails, the old file remains and the temporary one is removed.
    """
    path = Path(path)
    if not path.name:
        raise UserError(f"{str(path)!r}: expected the name of a file to write")
    with contextlib.suppress(FileNotFoundError):
        require_regular(path, path.lstat())
    # Not `tempfile`, whose files are private to the user.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # also after Ctrl-C
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_bytes(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    """Replaces the content of a file; see `write_atomically`."""
    write_atomically(path, lambda file: file.write(content))


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Removes temporary files of killed writers.

    Only for a folder that no other process is writing to.
    """
    for leftover in Path(folder).glob(".*.partial"):
        if is_leftover(leftover.name):
            leftover.unlink(missing_ok=True)


def is_leftover(name: str) -> bool:
    """Whether a file is a temporary one of `write_atomically`."""
    return _TEMPORARY.fullmatch(name) is not None


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a regular file for reading, also through a symbolic link, without ever blocking."""
    return os.fdopen(_descriptor(path, os.O_RDONLY), "rb")


def open_to_append(path: str | os.PathLike[str]) -> io.BufferedWriter:
    """Opens a regular file for appending, creating it if necessary; see `open_regular`."""
    return os.fdopen(_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def _descriptor(path: str | os.PathLike[str], flags: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        require_regular(path, Path(path).stat())  # opening a device may have side effects
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        require_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(path: str | os.PathLike[str], found: os.stat_result) -> None:
    """Rejects anything but a regular file."""
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
        raise UserError(f"{os.fspath(path)}: is {kind}; expected a regular file")


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a file of at most `most` bytes."""
    with read_errors_reported(path), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UserError(f"{path}: has {size:,} bytes; expected at most {most:,}")
        return file.read(most)


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """The content of a UTF-8 file of at most `most` bytes."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not text: byte {error.start} is not UTF-8") from error


def lock(path: str | os.PathLike[str], *, wait: bool) -> BinaryIO:
    """Takes a lock that the system releases even if the process is killed; closing it releases it.

    On file systems without locks, it only warns. The lock file is created if necessary, and stays.

    Raises:
        BlockingIOError: another process holds the lock, and `wait` is false.
    """
    holder = open_to_append(path)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _LOCKS_UNSUPPORTED:
            holder.close()
            raise
        warnings.warn(
            f"the file system of {path} has no locks; do not let a second process write there",
            stacklevel=3,
        )
    return holder


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with read_errors_reported(path), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Prefixes every `UserError` with the name of the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


@contextlib.contextmanager
def read_errors_reported(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns errors of reading a file into `UserError`s."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


@contextlib.contextmanager
def write_errors_reported(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns errors of writing a file into `UserError`s."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def standard_output_to(descriptor: int) -> Iterator[None]:
    """Redirects what this process writes to the standard output, in Python or C."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(descriptor, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _sync_folder(folder: Path) -> None:
    """Syncs the folder itself; without this, a rename can be lost."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
