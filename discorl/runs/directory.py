"""The run directory: everything that a long command leaves behind, and resumes from.

    config.json       the kind of run and its configuration
    versions.json     the software, the device and the command it was started with
    metrics.csv       one row per logged update (and seed)
    tensorboard/      the same numbers as TensorBoard events
    checkpoints/      00000500.npz, ...: the newest states
    curve.png         the learning curve
    lock              held by the process that writes

A run may be killed at any moment. What is resumed is the newest checkpoint that reads back whole,
with the metrics cut back to it, so that the resumed run continues as if it had never stopped.
"""

import contextlib
import errno
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import numpy as np

from discorl.runs import checkpoints, files
from discorl.runs.metrics import MetricsFile, Row, TensorBoard
from discorl.runs.versions import versions
from discorl.types import PyTree, UserError, settings

Config = TypeVar("Config")

# Of a disk, a quota or a size limit that is exhausted.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Run:
    """A run directory, held by this process until `close`; made by `create` or `open`.

    Attributes:
        path: the directory.
        kind: which command made it, such as "train".
        config: the configuration it was made with, as JSON gives it back.
    """

    def __init__(self, path: Path, lock: BinaryIO | None) -> None:
        described = json.loads((path / "config.json").read_text())
        self.path = path
        self.kind: str = described["kind"]
        self.config: dict[str, Any] = described["config"]
        self._lock = lock  # None: open for reading only
        self._tensorboard = TensorBoard(path / "tensorboard")

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        kind: str = "train",
        copies: Mapping[str, Path | None] | None = None,
    ) -> Self:
        """Makes a new run directory, which must not hold a run already.

        `config` is everything the run depends on, as JSON can hold it. `copies` are files to copy
        into the run, by their names in it, so that it stands alone.
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
                _write(path / "versions.json", json.dumps(versions(), indent=2).encode())
                for name, source in (copies or {}).items():
                    if source is not None:
                        _write(path / name, source.read_bytes())
                # Last, because it is what makes the directory a run.
                _write(path / "config.json", described.encode())
            return cls(path, lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, read_only: bool = False) -> Self:
        """Opens a run that exists, to resume it or only to read it."""
        path = Path(path)
        if not (path / "config.json").is_file():
            raise UserError(f"{path} is not a run directory: it has no config.json")
        lock = None if read_only else _acquire_lock(path)
        try:
            if lock is not None:
                for folder in (path, path / "checkpoints"):
                    files.remove_leftovers(folder)
            return cls(path, lock)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            _release_lock(lock)
            raise UserError(f"{path / 'config.json'} does not describe a run: {error}") from error
        except BaseException:
            _release_lock(lock)
            raise

    def describe(self, config: Mapping[str, Any]) -> None:
        """Writes the configuration anew, where more of it has become known."""
        self._check_writable()
        described = json.dumps({"kind": self.kind, "config": dict(config)}, indent=2)
        with _full_disk_reported(self.path, "the configuration is as it was"):
            _write(self.path / "config.json", described.encode())
        self.config = dict(config)

    def log(self, rows: Sequence[Row], table: str = "metrics") -> None:
        """Appends rows to a table, kept in `TABLE.csv`, and to TensorBoard.

        Every row of a table has the columns of the first one, among them "update" and, if
        TensorBoard is to go along it, "global_step". NaN says that there is nothing to report. Rows
        with a column "seed" or "agent" go to one TensorBoard folder for each.
        """
        self._check_writable()
        with _full_disk_reported(self.path, f"the last rows of {table}.csv are missing"):
            self._table(table).append(rows)
            self._tensorboard.append(rows, table)

    def save(self, update: int, state: PyTree, *, keep: int = 2) -> None:
        """Writes a checkpoint of an update, then deletes all but the newest `keep`."""
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
            for table in self._tables():
                self._table(table).sync()
            self._tensorboard.flush()
            checkpoints.save(self._checkpoint(update), state)
        for superfluous in self.checkpoint_updates()[:-keep]:
            self._checkpoint(superfluous).unlink()

    def restore(self, template: PyTree, part: str = "") -> tuple[int, PyTree] | None:
        """The update and state of the newest checkpoint that is whole; None without any.

        Later metrics are cut off, unless the run is open for reading only. A damaged checkpoint is
        set aside with a warning, and the one before taken. See `checkpoints.restore` for the
        arguments.
        """
        damages = []
        for update in reversed(self.checkpoint_updates()):
            try:
                state = checkpoints.restore(self._checkpoint(update), template, part)
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

    def metrics(self, table: str = "metrics") -> dict[str, np.ndarray]:
        """All rows of a table as columns, int64 where every value is whole, else float64."""
        return self._table(table).columns()

    def _tables(self) -> list[str]:
        return sorted(path.stem for path in self.path.glob("*.csv"))

    def _table(self, name: str) -> MetricsFile:
        return MetricsFile(self.path / f"{name}.csv")

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
            for table in self._tables():
                self._table(table).cut(update)
        self._tensorboard.restart(
            {table: self._table(table).next_step() for table in self._tables()}
        )


def check_source(config: Any, given: Mapping[str, Any], *, out: Any, resume: Any) -> None:
    """Refuses a run whose settings would come from several places."""
    if sum(x is not None for x in (config, resume, given or None)) > 1:
        raise UserError("give one of config, resume and single settings, not several of them")
    if resume is not None and out is not None:
        raise UserError("a resumed run goes on in its own directory: give either resume or out")


def config_of(run: Run, kind: type[Config], values: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a run, by default from all of its settings.

    Settings that an earlier version of discorl did not have get their defaults: a setting that is
    added must do by default what was done before.
    """
    try:
        return settings.build(kind, run.config if values is None else values)
    except UserError as error:
        raise UserError(
            f"{run.path} was made by another version of discorl (see its versions.json): {error}"
        ) from error


def _write(path: Path, content: bytes) -> None:
    files.write_atomically(path, lambda file: file.write(content))


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
    try:
        return files.lock(path / "lock", wait=False)
    except BlockingIOError as error:
        raise UserError(
            f"another process is writing the run {path}; wait until it ends, or stop it first"
        ) from error
    except OSError as error:
        raise UserError(f"cannot write to the run {path}: {error.strerror}") from error


def _release_lock(lock: BinaryIO | None) -> None:
    if lock is not None:
        lock.close()
