"""The run directory: everything that a long command writes and resumes from.

    config.json       the kind of run and its configuration
    versions.json     the software, the device and the command it was started with
    manifest.json     checksums of the configuration, of copied rules, and of the tables so far
    metrics.csv       one row per logged update (and seed)
    tensorboard/      the same numbers as TensorBoard events
    checkpoints/      00000500.npz, ...: the newest states
    curve.png         the learning curve
    lock              held by the process that writes

A run may be killed at any moment. A resume starts from the newest intact checkpoint and truncates
the metrics to it, so the run continues as if it had never stopped. Only files with the names above
are ever touched.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from discorl.runs import checkpoints, files, folders, manifest, versions
from discorl.runs.manifest import Manifest
from discorl.runs.metrics import TABLES, Row, as_rows
from discorl.runs.schemas import read_json
from discorl.runs.tables import MetricsFile
from discorl.runs.trackers import TensorBoard
from discorl.types import PyTree, UserError

KEEP = 2  # checkpoints, because the newest may be damaged


class Run:
    """A run directory, held by this process until `close`; made by `create` or `open`.

    Attributes:
        path: the directory.
        kind: which command made it, such as "train".
        config: its configuration, as JSON values.
    """

    is_shared = False  # whether other processes hold some arrays of its checkpoints

    def __init__(self, path: Path, lock: BinaryIO | None, noted: Manifest | None = None) -> None:
        described = read_json(path / "config.json", folders.CONFIG_SCHEMA)
        self.path = path
        self.kind: str = described["kind"]
        self.config: dict[str, Any] = described["config"]
        self._lock = lock  # None: open for reading only
        self._manifest = noted or Manifest({})
        self._tables = {name: MetricsFile(path / f"{name}.csv") for name in TABLES}
        self._tensorboard = TensorBoard(path / "tensorboard")

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        kind: str = "train",
        copies: Mapping[str, Path | None] | None = None,
    ) -> Self:
        """Makes a run directory, which must be new or empty.

        `config` is everything the run depends on, as JSON values. `copies` are files to copy into
        the run, by their names in it, so that it is self-contained.
        """
        path = Path(path)
        described = json.dumps({"kind": kind, "config": dict(config)}, indent=2).encode()
        wanted = {name: source for name, source in (copies or {}).items() if source is not None}
        folders.require_free(path, wanted)
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run directory {path}: {error.strerror}") from error
        lock = folders.acquire_lock(path)
        try:
            folders.require_free(path, wanted)  # another process may have been faster
            sums = {"config.json": hashlib.sha256(described).hexdigest()}
            with folders.troubles_reported(path, "the run was not created"):
                files.write_bytes(
                    path / versions.NAME, json.dumps(versions.versions(), indent=2).encode()
                )
                for name, source in wanted.items():
                    content = files.read_bytes(source, 2**30)
                    files.write_bytes(path / name, content)
                    sums[name] = hashlib.sha256(content).hexdigest()
                noted = Manifest(sums)
                noted.write(path)
                # Last, because config.json makes the directory a run.
                files.write_bytes(path / "config.json", described)
            return cls(path, lock, noted)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        accept_changes: bool = False,
    ) -> Self:
        """Opens an existing run, to resume it or only to read it.

        A run is resumed only if its configuration, rules, metrics and checkpoints are unchanged, or
        if changes are accepted.
        """
        path = Path(path)
        if not (path / "config.json").exists():
            reason = "it has no config.json" if path.exists() else "it does not exist"
            raise UserError(f"{path} is not a run directory: {reason}")
        if read_only:
            return cls(path, None)
        lock = folders.acquire_lock(path)
        try:
            for folder in (path, path / "checkpoints"):
                files.remove_leftovers(folder)
            run = cls(path, lock)
            run._check_manifest(accept_changes)
            return run
        except BaseException:
            lock.close()
            raise

    def _check_manifest(self, accept_changes: bool) -> None:
        try:
            self._manifest = Manifest.read(self.path)
        except UserError as error:
            changes = [str(error).removeprefix(f"{self.path}/")]
        else:
            changes = self._manifest.changes(self.path, self.checkpoint_updates())
        if changes and not accept_changes:
            raise UserError(
                f"{self.path} is not as it was left: {'; '.join(changes)}. Restore it, or continue "
                f"with the files as they are: `--resume {self.path} --accept-changes`"
            )
        if changes:
            names = {"config.json", *self._manifest.files}
            present = [name for name in sorted(names) if (self.path / name).exists()]
            sums = {name: files.sha256_of(self.path / name) for name in present}
            self._note(files=sums, tables={}, checkpoint=None)

    def _note(self, **changes: Any) -> None:
        self._manifest = dataclasses.replace(self._manifest, **changes)
        self._manifest.write(self.path)

    def note_file(self, name: str) -> None:
        """Adds a file that was written into the run to the manifest."""
        sums = {**self._manifest.files, name: files.sha256_of(self.path / name)}
        with folders.troubles_reported(self.path, f"changes of {name} will not be noticed"):
            self._note(files=sums)

    def describe(self, config: Mapping[str, Any]) -> None:
        """Rewrites the configuration when more of it is known."""
        self._check_writable()
        described = json.dumps({"kind": self.kind, "config": dict(config)}, indent=2).encode()
        others = {n: x for n, x in self._manifest.files.items() if n != "config.json"}
        with folders.troubles_reported(self.path, "the configuration is unchanged"):
            self._note(files=others)  # so that a kill before the next note is not taken for an edit
            files.write_bytes(self.path / "config.json", described)
            self._note(files={**others, "config.json": hashlib.sha256(described).hexdigest()})
        self.config = dict(config)

    def log(self, rows: Sequence[Row], table: str = "metrics") -> None:
        """Appends rows to a table, the file `TABLE.csv`, and to TensorBoard.

        Every row of a table has the columns of the first one. "update" is required; TensorBoard
        uses "global_step" as its axis if present. NaN means that there is nothing to report. Each
        "seed" or "agent" has its own TensorBoard folder.
        """
        self._check_writable()
        with folders.troubles_reported(self.path, f"the last rows of {table}.csv are missing"):
            self._tables[table].append(rows)
            self._tensorboard.log(rows, table)

    def save(
        self, update: int, state: PyTree, *, finite: bool = True, parts: Sequence[str] = ()
    ) -> None:
        """Writes a checkpoint, then deletes all but the newest two.

        The newest one with `finite` parameters is always kept. `parts` are names of files beside
        the checkpoint that hold the rest of it.
        """
        self._check_writable()
        present = self.checkpoint_updates()
        if present and update < present[-1]:
            raise ValueError(f"update {update} is older than checkpoint {present[-1]}")
        last = f"the last one is of update {present[-1]}" if present else "there is none yet"
        with folders.troubles_reported(self.path, f"this checkpoint was not written; {last}"):
            # First, so that a power cut cannot lose metrics of updates before a checkpoint.
            for table in self._tables.values():
                table.sync()
            self._tensorboard.flush()
            (self.path / "checkpoints").mkdir(exist_ok=True)
            checkpoints.save(self._checkpoint(update), state, parts)
            last_finite = update if finite else self._manifest.finite_checkpoint
            self._note(tables=self._prefixes(), checkpoint=update, finite_checkpoint=last_finite)
            self._prune()

    def _prune(self) -> None:
        """Deletes all checkpoints but the newest, and the newest finite one."""
        for update in self.checkpoint_updates()[:-KEEP]:
            if update != self._manifest.finite_checkpoint:
                self._checkpoint(update).unlink()
        folders.remove_orphans(self.path / "checkpoints")

    def drop_checkpoints(self) -> None:
        """Deletes all checkpoints; a resume then starts over."""
        self._check_writable()
        with folders.troubles_reported(self.path, "some checkpoints may remain"):
            self._note(checkpoint=None, finite_checkpoint=None)
            for update in self.checkpoint_updates():
                self._checkpoint(update).unlink()
            folders.remove_orphans(self.path / "checkpoints")
            with contextlib.suppress(OSError):  # the folder holds a user's file
                (self.path / "checkpoints").rmdir()

    def restore(
        self, template: PyTree, part: str = "", *, up_to: int | None = None
    ) -> tuple[int, PyTree] | None:
        """The update and state of the newest intact checkpoint; None if there is none.

        Later metrics are truncated, unless the run is open for reading only. A damaged checkpoint
        is renamed with a warning, and the previous one is used. `up_to` ignores checkpoints after
        that update. See `checkpoints.restore` for the other arguments.
        """
        damages: list[str] = []
        present = [x for x in self.checkpoint_updates() if up_to is None or x <= up_to]
        for update in reversed(self._exchange(present)[0]):
            state, damage = None, ""
            try:
                file = self._checkpoint(update)
                state = checkpoints.restore(file, template, part, some=self.is_shared)
            except checkpoints.DamagedCheckpoint as error:
                damage = str(error)
            found = [damage for damage in self._exchange(damage) if damage]
            damages += found
            if found:
                continue
            for damage in damages:
                warnings.warn(f"{damage}; going back to update {update}", stacklevel=2)
            self._go_back_to(update)
            self._exchange(None)  # now the tables are truncated for all processes
            return update, state
        if damages:
            raise UserError("no checkpoint is intact: " + "; ".join(damages))
        self._go_back_to(None)
        self._exchange(None)
        return None

    def metrics(self, table: str = "metrics") -> dict[str, np.ndarray]:
        """All rows of a table as columns, int64 where every value is whole, else float64."""
        return self._tables[table].columns()

    def rows(self, table: str = "metrics") -> Iterator[list[dict[str, Any]]]:
        """All rows of a table, a few thousand at a time."""
        return map(as_rows, self._tables[table].chunks())

    def checkpoint_updates(self) -> list[int]:
        """The updates that have a checkpoint, in order."""
        return folders.checkpoint_updates(self.path / "checkpoints")

    @property
    def finite_checkpoint(self) -> Path | None:
        """The newest checkpoint whose parameters are all finite, if known."""
        update = self._manifest.finite_checkpoint
        return None if update is None else self._checkpoint(update)

    def _prefixes(self) -> dict[str, manifest.Prefix]:
        found = {f"{name}.csv": table.prefix() for name, table in self._tables.items()}
        return {name: prefix for name, prefix in found.items() if prefix is not None}

    @property
    def curve_path(self) -> Path:
        """The file of the learning curve."""
        return self.path / "curve.png"

    def require_kind(self, kind: str) -> None:
        """Rejects a run of another command."""
        if self.kind != kind:
            raise UserError(
                f"{self.path} holds a run of `discorl {self.kind}`; expected one of "
                f"`discorl {kind}`"
            )

    def close(self) -> None:
        """Releases the run, so that another process may write it."""
        self._tensorboard.close()
        if self._lock is not None:
            self._lock.close()
        self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def writes(self) -> bool:
        """Whether this process may write the run."""
        return self._lock is not None

    def _exchange(self, value: Any) -> list[Any]:
        """The values of all processes that have the run open; here only this one."""
        return [value]

    def _check_writable(self) -> None:
        if self._lock is None:
            raise RuntimeError(f"the run {self.path} is closed or was opened for reading only")

    def _checkpoint(self, update: int) -> Path:
        return folders.checkpoint(self.path / "checkpoints", update)

    def _go_back_to(self, update: int | None) -> None:
        if self._lock is None:
            return
        if update is not None:
            folders.set_aside_later(self.path / "checkpoints", update)
        with folders.troubles_reported(self.path, "nothing was changed"):
            self._note(tables={})  # so that a kill before the next note is not taken for an edit
            for table in self._tables.values():
                table.cut(-math.inf if update is None else update)
            finite = self._manifest.finite_checkpoint
            if update is None:
                finite = None
            elif finite is not None:
                finite = min(finite, update)  # newer checkpoints have just been renamed
            self._note(tables=self._prefixes(), checkpoint=update, finite_checkpoint=finite)
            self._prune()  # a kill may have prevented it after the last checkpoint
        self._tensorboard.restart({name: table.next_step for name, table in self._tables.items()})
