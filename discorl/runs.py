"""The run directory: everything that a long command leaves behind, and resumes from.

    config.json       the kind of run and its configuration
    versions.json     the software and the device it was started with
    metrics.csv       one row per logged update (and seed)
    tensorboard/      the same numbers as TensorBoard events
    checkpoints/      00000500.npz, ...: the newest states
    curve.png         the learning curve
    lock              held by the process that writes

A run may be killed at any moment. What is resumed is the newest checkpoint that reads back whole,
with the metrics cut back to it, so that the resumed run continues as if it had never stopped.
"""

import contextlib
import csv
import errno
import fcntl
import importlib.metadata
import io
import json
import math
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import jax
import numpy as np

from discorl import checkpoints
from discorl.files import remove_leftovers, write_atomically
from discorl.types import PyTree, UserError

Row = Mapping[str, float | int]

# Of a disk, a quota or a size limit that is exhausted.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_LOCKS_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})


class Run:
    """A run directory, held by this process until `close`; made by `create` or `open`.

    Attributes:
      path: The directory.
      kind: Which command made it, such as "train".
      config: The configuration it was made with, as JSON gives it back.
    """

    def __init__(self, path: Path, lock: BinaryIO | None) -> None:
        described = json.loads((path / "config.json").read_text())
        self.path = path
        self.kind: str = described["kind"]
        self.config: dict[str, Any] = described["config"]
        self._lock = lock  # None: open for reading only
        self._metrics = _MetricsFile(path / "metrics.csv")
        self._tensorboard = _TensorBoard(path / "tensorboard")

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], config: Mapping[str, Any], kind: str = "train"
    ) -> Self:
        """Makes a new run directory.

        Args:
          path: Where; it must not hold a run already.
          config: Everything the run depends on, as JSON can hold it.
          kind: Which command the run belongs to.

        Raises:
          UserError: There is a run already, or the directory cannot be made.
        """
        path = Path(path)
        described = json.dumps({"kind": kind, "config": dict(config)}, indent=2)
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run directory {path}: {error.strerror}") from error
        lock = _acquire_lock(path)
        try:
            if (path / "config.json").exists():
                raise UserError(
                    f"{path} already holds a run; resume it with `--resume {path}` "
                    "or choose another directory"
                )
            with _full_disk_reported(path, "the run was not created"):
                _write_text(path / "versions.json", json.dumps(_versions(), indent=2))
                # Last, because it is what makes the directory a run.
                _write_text(path / "config.json", described)
            return cls(path, lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, read_only: bool = False) -> Self:
        """Opens a run that exists, to resume it or to look at it.

        Args:
          path: The run directory.
          read_only: Whether only to read; then another process may be writing meanwhile.

        Raises:
          UserError: There is no run, or another process is writing it.
        """
        path = Path(path)
        if not (path / "config.json").is_file():
            raise UserError(f"{path} is not a run directory: it has no config.json")
        lock = None if read_only else _acquire_lock(path)
        try:
            if lock is not None:
                for folder in (path, path / "checkpoints"):
                    remove_leftovers(folder)
            return cls(path, lock)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            _release_lock(lock)
            raise UserError(f"{path / 'config.json'} does not describe a run: {error}") from error
        except BaseException:
            _release_lock(lock)
            raise

    def log(self, rows: Sequence[Row]) -> None:
        """Appends rows to the metrics and to TensorBoard.

        Args:
          rows: Numbers by column. Every row of a run has the columns of the first one, among them
            "update"; NaN says that there is nothing to report. Rows of several seeds have a column
            "seed", and go to one TensorBoard folder per seed.
        """
        self._check_writable()
        with _full_disk_reported(self.path, "the last rows of metrics.csv are missing"):
            self._metrics.append(rows)
            self._tensorboard.append(rows)

    def save(self, update: int, state: PyTree, *, keep: int = 2) -> None:
        """Writes a checkpoint, then deletes the ones it makes superfluous.

        Args:
          update: The last update that the state includes.
          state: A pytree as `checkpoints.save` takes it.
          keep: How many of the newest checkpoints remain.
        """
        self._check_writable()
        present = self.checkpoint_updates()
        if present and update < present[-1]:
            raise ValueError(f"update {update} is older than checkpoint {present[-1]}")
        if keep < 1:
            raise ValueError(f"keep is {keep}; expected at least 1")
        previous = (
            f"the checkpoint of update {present[-1]} stands" if present else "none stands yet"
        )
        with _full_disk_reported(self.path, f"this checkpoint was not written; {previous}"):
            # First, so that a checkpoint never covers updates whose metrics a power cut could take.
            self._metrics.sync()
            self._tensorboard.flush()
            checkpoints.save(self._checkpoint(update), state)
        for superfluous in self.checkpoint_updates()[:-keep]:
            self._checkpoint(superfluous).unlink()

    def restore(self, template: PyTree) -> tuple[int, PyTree] | None:
        """Goes back to the newest checkpoint that reads back whole.

        Later metrics are cut off, unless the run is open for reading only. A damaged checkpoint is
        set aside with a warning, and the one before taken.

        Args:
          template: A tree like the saved state, see `checkpoints.restore`.

        Returns:
          The checkpoint's update and state, or None if the run has no checkpoint yet.

        Raises:
          UserError: Every checkpoint is damaged, or the newest is of another state.
        """
        damages = []
        for update in reversed(self.checkpoint_updates()):
            try:
                state = checkpoints.restore(self._checkpoint(update), template)
            except checkpoints.DamagedCheckpoint as error:
                damages.append(str(error))
                continue
            for damage in damages:
                warnings.warn(f"{damage}; going back to update {update}", stacklevel=2)
            self._go_back_to(update)
            return update, state
        if damages:
            raise UserError("no checkpoint is left whole: " + "; ".join(damages))
        self._go_back_to(None)
        return None

    def metrics(self) -> dict[str, np.ndarray]:
        """All logged rows as columns, int64 where every value is whole, else float64."""
        return self._metrics.columns()

    def checkpoint_updates(self) -> list[int]:
        """The updates that have a checkpoint, in order."""
        names = (file.stem for file in (self.path / "checkpoints").glob("*.npz"))
        return sorted(int(name) for name in names if name.isdecimal())

    @property
    def curve_path(self) -> Path:
        """Where the picture of the learning curve belongs."""
        return self.path / "curve.png"

    def close(self) -> None:
        """Lets go of the run, so that another process may write it."""
        self._tensorboard.close()
        _release_lock(self._lock)
        self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_writable(self) -> None:
        if self._lock is None:
            raise RuntimeError(f"the run {self.path} is closed or was opened for reading only")

    def _checkpoint(self, update: int) -> Path:
        return self.path / "checkpoints" / f"{update:08d}.npz"

    def _go_back_to(self, update: int | None) -> None:
        if self._lock is None:
            return
        for later in self.checkpoint_updates():
            if update is not None and later > update:
                # Damaged, and in the way: by its number it would count among the newest to keep.
                damaged = self._checkpoint(later)
                damaged.replace(damaged.with_name(damaged.name + ".damaged"))
        with _full_disk_reported(self.path, "nothing was changed"):
            self._metrics.cut(update)
        self._tensorboard.restart(0 if update is None else update + 1)


class _MetricsFile:
    """A CSV file of numbers that grows by whole lines; its first line names the columns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        header = self._header()
        names = header or list(rows[0])
        for row in rows:
            _check_columns(row, names)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not header:
            writer.writerow(names)
        writer.writerows([_cell(row[name]) for name in names] for row in rows)
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("ab") as file:
                file.write(text.getvalue().encode())
        except OSError:
            os.truncate(self._path, size)  # else the next row would continue half a line
            raise

    def sync(self) -> None:
        if self._path.exists():
            with self._path.open("rb") as file:
                os.fsync(file.fileno())

    def cut(self, update: int | None) -> None:
        """Drops the rows after an update; with None everything, the names of columns too."""
        lines = self._lines()
        kept: list[str] = []
        if lines and update is not None:
            position = _parse(lines[0]).index("update")
            kept = [line for line in lines[1:] if int(_parse(line)[position]) <= update]
            kept.insert(0, lines[0])
        text = "".join(kept)
        if self._path.exists() and self._path.read_bytes() != text.encode():
            _write_text(self._path, text)

    def columns(self) -> dict[str, np.ndarray]:
        lines = self._lines()
        if not lines:
            return {}
        names, *rows = csv.reader(lines)
        cells = zip(*rows, strict=True) if rows else ((),) * len(names)
        return {name: _numbers(column) for name, column in zip(names, cells, strict=True)}

    def _header(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open(encoding="utf-8") as file:
            line = file.readline()
        return _parse(line) if line else []

    def _lines(self) -> list[str]:
        """The whole lines; a writer that was killed may have left a part of one at the end."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        return lines if not lines or lines[-1].endswith("\n") else lines[:-1]


class _TensorBoard:
    """Event files for TensorBoard.

    The events are written in the caller's thread: the queue of `SummaryWriter` would block forever
    once its writing thread has met a full disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._purge_step: int | None = None
        self._writers: dict[str, Any] = {}  # by sub-folder

    def append(self, rows: Sequence[Row]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        for row in rows:
            folder = f"seed_{int(row['seed'])}" if "seed" in row else ""
            values = [
                Summary.Value(tag=name, simple_value=float(value))
                for name, value in row.items()
                if name not in ("update", "seed") and not math.isnan(value)
            ]
            event = Event(wall_time=time.time(), step=int(row["update"]))
            event.summary.CopyFrom(Summary(value=values))
            self._writer(folder).write_event(event)
        self.flush()

    def restart(self, step: int) -> None:
        """Makes TensorBoard forget earlier events from a step on."""
        self.close()
        self._purge_step = step

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            with contextlib.suppress(OSError):  # a full disk was reported by the append before
                writer.close()

    def _writer(self, folder: str) -> Any:
        if folder not in self._writers:
            # Imported late, for it takes long and a run that is only read needs none of it.
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event, SessionLog

            (self._folder / folder).mkdir(parents=True, exist_ok=True)
            # The name alone has a resolution of seconds: a quick resume would overwrite the file.
            writer = EventsWriter(str(self._folder / folder / "events"), f".{time.time_ns()}")
            if self._purge_step is not None:
                start = SessionLog(status=SessionLog.START)
                writer.write_event(Event(step=self._purge_step, session_log=start))
            self._writers[folder] = writer
        return self._writers[folder]


def _check_columns(row: Row, names: Sequence[str]) -> None:
    if "update" not in row:
        raise ValueError(f"a row of metrics has no column 'update', only {sorted(row)}")
    new, missing = set(row) - set(names), set(names) - set(row)
    if new or missing:
        raise ValueError(
            "the columns of the metrics are fixed by their first row; "
            f"new: {sorted(new)}, missing: {sorted(missing)}"
        )


def _cell(value: Any) -> str:
    number = np.asarray(value).item()
    if isinstance(number, int):
        return str(int(number))  # True as 1
    return "" if math.isnan(number) else repr(float(number))


def _parse(line: str) -> list[str]:
    return next(csv.reader([line]))


def _numbers(cells: Sequence[str]) -> np.ndarray:
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except ValueError:
        return np.array([float(cell or "nan") for cell in cells], np.float64)


def _write_text(path: Path, text: str) -> None:
    def write(file: BinaryIO) -> None:
        file.write(text.encode())

    write_atomically(path, write)


@contextlib.contextmanager
def _full_disk_reported(path: Path, consequence: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise UserError(
            f"no room left to write the run {path} ({error.strerror}): {consequence}. "
            f"Free some space and continue with `--resume {path}`"
        ) from error


def _acquire_lock(path: Path) -> BinaryIO:
    """Locks the run for this process; the system releases it when the process ends in any way."""
    try:
        lock = (path / "lock").open("ab")
    except OSError as error:
        raise UserError(f"cannot write to the run {path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise UserError(
            f"another process is writing the run {path}; wait until it ends, or stop it first"
        ) from error
    except OSError as error:
        if error.errno not in _LOCKS_UNSUPPORTED:
            lock.close()
            raise
        warnings.warn(f"the file system of {path} has no locks; start no second run", stacklevel=3)
    return lock


def _release_lock(lock: BinaryIO | None) -> None:
    if lock is not None:
        lock.close()


def _versions() -> dict[str, str | None]:
    packages = ("discorl", "jax", "jaxlib", "numpy", "optax")
    return {package: _package_version(package) for package in packages} | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "commit": _source_commit(),
    }


def _package_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return None


def _source_commit() -> str | None:
    """The commit of discorl's source tree, "-dirty" if edited since; None outside a checkout."""
    source = Path(__file__).resolve().parent.parent
    if not (source / ".git").exists():  # installed, perhaps inside of another project's checkout
        return None
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        # Without optional locks git leaves the index alone, which someone may be working with.
        command = ["git", "--no-optional-locks", "-C", str(source), *describe]
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None
