"""The metrics of a run: names, summaries and TensorBoard events."""

import contextlib
import math
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = Mapping[str, float | int]

EPISODE = "episode/"  # begins the names of metrics that are means over episodes
# Names that the tools of CleanRL and Open RL Benchmark read.
STEP = "global_step"  # the environment steps that an agent has taken
RETURN = "charts/episodic_return"
LENGTH = "charts/episodic_length"
EPISODES = "charts/episodes"  # that ended, and that return and length are means over
SCORE = "charts/score"  # 0 for random and 1 for optimal play
BEST_SCORE = "charts/best_score"
SPEED = "charts/SPS"  # environment steps a second
TOTAL_LOSS = "losses/total"
# Seconds of work over all stretches of a run: updates and evaluations; compilation, checkpoints and
# the time between two stretches apart.
WALL_TIME = "wall_time"
# Columns that say where and when a row belongs, rather than what was found there.
PLACES = ("update", "seed", "agent", "group", STEP, WALL_TIME)
TABLES = ("metrics", "agents", "evaluation")  # that a run may have, each as NAME.csv
RECENT = 0.1  # share of the updates so far, the last ones, whose mean return is reported


def as_rows(columns: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Converts columns to rows."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def merge(columns: Mapping[str, np.ndarray], whole: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Merges the rows of several updates, [..., rows] by name, into one along the last axis.

    The step counters are those of the last update. Episodes are added up, and means over episodes
    are weighted by them. A loss that is not finite stays so. `whole` names columns of counts, whose
    last value remains.
    """
    merged = {}
    for name, values in columns.items():
        if name == EPISODES:
            merged[name] = values.sum(axis=-1)
        elif values.shape[-1] == 1:
            merged[name] = values[..., 0]
        elif EPISODES in columns and (name in (RETURN, LENGTH) or name.startswith(EPISODE)):
            merged[name] = _weighted_mean(values, columns[EPISODES])
        elif name in PLACES or name == SPEED or name in whole:
            merged[name] = values[..., -1]
        elif name.startswith("losses/"):
            merged[name] = values.mean(axis=-1)
        else:
            merged[name] = _weighted_mean(values, np.ones(values.shape))
    return merged


def _weighted_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted means over the last axis, ignoring NaN; NaN where nothing is left."""
    weights = np.where(np.isnan(values), 0.0, weights)
    total = (np.where(weights > 0, values, 0.0) * weights).sum(axis=-1)
    count = weights.sum(axis=-1)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


def known_mean(values: np.ndarray) -> np.ndarray:
    """Means of the finite values over the last axis; NaN where there are none."""
    known = np.isfinite(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


def by_seed(columns: Mapping[str, np.ndarray], x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """One column along another: the place of each update, [U], and values by seed, [S, U].

    A missing value is NaN. Agents count as seeds.
    """
    if y not in columns or not len(columns["update"]):
        return np.zeros(0), np.zeros((0, 0))
    updates, at = np.unique(columns["update"], return_inverse=True)
    who = columns.get("seed", columns.get("agent", np.zeros(len(at))))
    everyone, of = np.unique(who, return_inverse=True)
    values = np.full((len(everyone), len(updates)), np.nan)
    values[of, at] = np.where(np.isfinite(columns[y]), columns[y], np.nan)
    return np.bincount(at, weights=columns[x]) / np.bincount(at), values


def recent_return(columns: Mapping[str, np.ndarray], seed: int | None = None) -> float:
    """Mean return per episode over the last tenth of the updates; NaN if no episode ended.

    By default it is over all seeds.
    """
    if RETURN not in columns or not len(columns["update"]):
        return math.nan
    latest = _latest(columns)
    rows = latest if seed is None else latest & (columns["seed"] == seed)
    values, episodes = columns[RETURN][rows], columns[EPISODES][rows]
    seen = (episodes > 0) & np.isfinite(values)
    return float(np.average(values[seen], weights=episodes[seen])) if seen.any() else math.nan


def recent_score(columns: Mapping[str, np.ndarray]) -> float:
    """Mean score over the last tenth of the updates; NaN where none is logged."""
    if SCORE not in columns or not len(columns["update"]):
        return math.nan
    return float(known_mean(columns[SCORE][_latest(columns)]))


def _latest(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    return columns["update"] > (1 - RECENT) * columns["update"].max()


class TensorBoard:
    """Event files for TensorBoard, over environment steps where a row tells them.

    The events are written in the caller's thread: the queue of `SummaryWriter` would block forever
    once its writing thread has met a full disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._purge_steps: Mapping[str, int] | None = None  # by table
        self._writers: dict[str, Any] = {}  # by sub-folder

    def append(self, rows: Sequence[Row], table: str = "metrics") -> None:
        """Adds rows; those of a seed or an agent go to a folder of their own."""
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
        """Flushes all events."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Closes the event files; the next row starts new ones."""
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            with contextlib.suppress(OSError):  # a full disk was reported by the append before
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
    # Imported late, for it takes long and a run that is only read needs none of it.
    from tensorboardX import event_file_writer, writer

    folder.mkdir(parents=True, exist_ok=True)
    # The name alone has a resolution of seconds: a quick resume would overwrite the file.
    suffix = f".{time.time_ns()}"
    if writer.EventFileWriter is event_file_writer.EventFileWriter:
        return event_file_writer.EventsWriter(str(folder / "events"), suffix)
    # Somebody has put a class in its place to learn of such folders, as wandb does with
    # `sync_tensorboard=True`. It is told; the events are written in this thread all the same.
    return writer.EventFileWriter(str(folder), filename_suffix=suffix)._ev_writer
