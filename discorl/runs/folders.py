"""Creating and locking the folder of a run."""

import contextlib
import errno
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from discorl.runs import files, manifest
from discorl.runs.schemas import Each
from discorl.types import UserError

# A disk, a quota or a size limit is exhausted.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_TEXT = (str, type(None))
CONFIG_SCHEMA = {  # of config.json; the configuration's class checks the other settings
    "kind": str,
    "config": {
        "rule?": _TEXT,
        "env?": _TEXT,
        "preset?": _TEXT,
        "seeds?": int,
        "own?": Each(bool),
        "population?": [{"env": str}],
    },
}


def require_free(path: Path, copies: Collection[str]) -> None:
    """Rejects a folder that holds anything but the remains of a killed `Run.create`."""
    try:
        path.lstat()
    except ValueError as error:  # NUL, or characters that cannot be encoded
        raise UserError(f"{str(path)!r} is not a path: {error}") from error
    except OSError:
        pass
    if (path / "config.json").exists():
        raise UserError(
            f"{path} already holds a run; resume it with `--resume {path}` "
            "or choose another directory"
        )
    if not path.is_dir():
        return
    ours = {"lock", "versions.json", manifest.NAME, "checkpoints", *copies}
    with files.read_errors_reported(path):
        found = [*path.iterdir(), *(path / "checkpoints").glob("*")]
    for file in sorted(found):
        if file.name not in ours and not files.is_leftover(file.name):
            raise UserError(
                f"{path} is neither a run nor empty: it has {file.relative_to(path)}; choose "
                "a directory that is empty or new"
            )


def checkpoint(folder: Path, update: int) -> Path:
    """The file of a checkpoint."""
    return folder / f"{update:08d}.npz"


def checkpoint_updates(folder: Path) -> list[int]:
    """The updates that have a checkpoint, in order."""
    names = (file.stem for file in folder.glob("*.npz"))
    updates = (int(name) for name in names if name.isdecimal() and name.isascii())
    return sorted(update for update in updates if checkpoint(folder, update).exists())


def set_aside_later(folder: Path, update: int) -> None:
    """Renames checkpoints after an update, which are damaged, so that they no longer count."""
    for later in checkpoint_updates(folder):
        if later > update:
            damaged = checkpoint(folder, later)
            damaged.replace(damaged.with_name(damaged.name + ".damaged"))


def part_of_checkpoint(folder: Path, update: int, process: int) -> Path:
    """The file for the arrays of a process other than the first."""
    return folder / f"{update:08d}.part-{process}.npz"


def remove_orphans(folder: Path) -> None:
    """Removes parts of checkpoints that are gone or were never completed."""
    for part in folder.glob("*.part-*.npz"):
        if not part.with_name(f"{part.name.partition('.')[0]}.npz").exists():
            part.unlink()


@contextlib.contextmanager
def troubles_reported(path: Path, consequence: str) -> Iterator[None]:
    """Turns system errors into `UserError`s that name the consequence for the run."""
    try:
        yield
    except OSError as error:
        no_room = error.errno in _NO_ROOM
        trouble = "no room left to write" if no_room else "cannot write"
        remedy = "Free some space" if no_room else "Make it writable"
        raise UserError(
            f"{trouble} the run {path} ({error.strerror or error}): {consequence}. "
            f"{remedy} and continue with `--resume {path}`"
        ) from error


def acquire_lock(path: Path) -> BinaryIO:
    """Takes the lock of a run; closing it releases it."""
    try:
        return files.lock(path / "lock", wait=False)
    except BlockingIOError as error:
        raise UserError(
            f"another process is writing the run {path}; wait until it ends, or stop it first"
        ) from error
    except OSError as error:
        raise UserError(f"cannot write to the run {path}: {error.strerror}") from error
