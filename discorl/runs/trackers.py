"""The interface of trackers, which follow a run, and the TensorBoard tracker."""

import abc
import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from discorl.runs.metrics import PLACES, STEP, Row


@dataclasses.dataclass(frozen=True)
class Subject:
    """The run that a tracker follows."""

    name: str
    identity: str  # unique, and kept by a resume
    config: Mapping[str, Any]
    seeds: Sequence[int]  # of a training run; a discovery has none
    folder: Path | None  # the run directory, if there is one


class Tracker(abc.ABC):
    """Follows a run.

    A tracker of your own extends this class, or is a function that takes rows; `discorl.train` and
    `discorl.discover` take either as `track`.
    """

    def start(self, subject: Subject) -> None:
        """Called once, before the first row."""
        del subject

    @abc.abstractmethod
    def log(self, rows: Sequence[Row], table: str = "metrics") -> None:
        """Receives new rows of a table.

        A row has numbers by name, including "update" and, in a training run, "seed". NaN means that
        there is nothing to report.
        """

    def close(self) -> None:
        """Called once, when the run ends or stops."""
        return


class TensorBoard(Tracker):
    """Event files for TensorBoard, over environment steps if rows have them, else over updates.

    Events are written in the caller's thread, because the queue of `SummaryWriter` blocks forever
    once its thread fails on a full disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._purge_steps: Mapping[str, int] | None = None  # by table
        self._writers: dict[str, Any] = {}  # by sub-folder

    def log(self, rows: Sequence[Row], table: str = "metrics") -> None:
        """See `Tracker`; each seed or agent has its own folder."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        for row in rows:
            values = [
                Summary.Value(tag=name, simple_value=float(value))
                for name, value in row.items()
                if name not in PLACES and not math.isnan(value)
            ]
            event = Event(wall_time=time.time(), step=int(row.get(STEP, row["update"])))
            event.summary.CopyFrom(Summary(value=values))
            self._writer(row, table).write_event(event)
        self.flush()

    def restart(self, steps: Mapping[str, int]) -> None:
        """Makes TensorBoard forget earlier events of each table from a step on."""
        self.close()
        self._purge_steps = steps

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Closes the event files; the next row starts new ones."""
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            with contextlib.suppress(OSError):  # the CSV table has already reported a full disk
                writer.close()

    def _writer(self, row: Row, table: str) -> Any:
        whose = [f"{name}_{int(row[name])}" for name in ("seed", "agent") if name in row]
        folder = "/".join([*([] if table == "metrics" else [table]), *whose])
        if folder not in self._writers:
            from tensorboardX.proto.event_pb2 import Event, SessionLog

            writer = _open_events(self._folder / folder)
            if self._purge_steps is not None:
                start = SessionLog(status=SessionLog.START)
                writer.write_event(Event(step=self._purge_steps.get(table, 0), session_log=start))
            self._writers[folder] = writer
        return self._writers[folder]


def _open_events(folder: Path) -> Any:
    """Opens a new event file in a folder."""
    # Imported late: it is slow, and only runs that are written need it.
    from tensorboardX import event_file_writer, writer

    folder.mkdir(parents=True, exist_ok=True)
    # The default name has a resolution of seconds, so a quick resume would overwrite the file.
    suffix = f".{time.time_ns()}"
    if writer.EventFileWriter is event_file_writer.EventFileWriter:
        return event_file_writer.EventsWriter(str(folder / "events"), suffix)
    # The class has been replaced to learn of folders, as by wandb's `sync_tensorboard=True`. Making
    # an instance notifies it; the events are still written in this thread.
    return writer.EventFileWriter(str(folder), filename_suffix=suffix)._ev_writer
