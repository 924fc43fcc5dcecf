"""A run directory that several processes write together."""

import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from discorl.runs import checkpoints, folders, processes
from discorl.runs.directory import Run
from discorl.runs.metrics import Row
from discorl.types import PyTree, UserError

_VISIBLE_SECONDS = 15.0  # until a new file must be visible to other hosts


class SharedRun(Run):
    """A run in a folder that all processes see. Process 0 writes it; the others write their arrays.

    A checkpoint is process 0's file and a part from each other process. Process 0 writes its file
    last, which completes the checkpoint.
    """

    is_shared = True

    @classmethod
    def create(cls, path: str | os.PathLike[str], *arguments: Any, **options: Any) -> Self:
        """See `Run.create`; called by all processes."""
        make = super().create
        return cls._by_the_first(path, lambda: make(path, *arguments, **options))

    @classmethod
    def open(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """See `Run.open`; called by all processes."""
        make = super().open
        return cls._by_the_first(path, lambda: make(path, **options))

    @classmethod
    def _by_the_first(cls, path: str | os.PathLike[str], make: Callable[[], Self]) -> Self:
        made: list[Self] = []
        processes.together(lambda: made.append(make()) if processes.index() == 0 else None)
        _check_shared(Path(path))
        return made[0] if made else super().open(path, read_only=True)

    def log(self, rows: Sequence[Row], table: str = "metrics") -> None:
        if self.writes:
            super().log(rows, table)

    def save(self, update: int, state: PyTree, **options: Any) -> None:
        """See `Run.save`; every process gives its own arrays, or None."""

        def save_part() -> str | None:
            if self.writes or state is None:
                return None
            folder = self.path / "checkpoints"
            part = folders.part_of_checkpoint(folder, update, processes.index())
            with folders.troubles_reported(self.path, "this checkpoint was not written"):
                checkpoints.save(part, state)
            return part.name

        written = [name for name in processes.together(save_part) if name]

        def save() -> None:
            if self.writes:
                super(SharedRun, self).save(update, state, parts=written, **options)

        processes.together(save)

    def _exchange(self, value: Any) -> list[Any]:
        return processes.exchange(value)


def run_class() -> type[Run]:
    """The class of a run for this number of processes."""
    return SharedRun if processes.count() > 1 else Run


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a run, as process 0 sees it."""
    return processes.exchange(Path(path, "config.json").exists())[0]


def _check_shared(path: Path) -> None:
    """Rejects a folder that some process does not see."""
    # The suffix makes `remove_leftovers` delete it after a kill.
    mark = path / f".shared.{processes.exchange(secrets.token_hex(4))[0]}.partial"
    if processes.index() == 0:
        mark.touch()
    processes.exchange(None)

    def look() -> None:
        until = time.monotonic() + _VISIBLE_SECONDS
        while not mark.exists():
            if time.monotonic() > until:
                raise UserError(
                    f"out is {path}, which this process does not share with process 0: expected a "
                    "folder on a file system that all hosts mount at the same place"
                )
            time.sleep(0.1)

    try:
        processes.together(look)
    finally:
        if processes.index() == 0:
            mark.unlink()
