"""The buffer of a host rollout, and the transitions and episodes made from it.

Results are only stored while environments step. All arithmetic is done at the end of the rollout,
in a few operations on whole arrays instead of many small ones per step.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from discorl.envs.host.base import NO_METRICS, HostStep, not_finite
from discorl.runs.metrics import LENGTH, RETURN


@dataclasses.dataclass(frozen=True)
class Episode:
    """A finished episode."""

    index: int  # of its environment
    total: float  # undiscounted return
    length: int
    metrics: Mapping[str, float]  # the reported ones of `HostEnvironment.episode_metrics`


def mean_or_nan(values: Sequence[float]) -> float:
    """The mean; NaN if there are no values."""
    return float(np.mean(values)) if values else float("nan")


def mean_episode(episodes: Sequence[Episode]) -> dict[str, float]:
    """Mean return and length of episodes, as metrics; NaN if there are none."""
    return {
        RETURN: mean_or_nan([episode.total for episode in episodes]),
        LENGTH: mean_or_nan([episode.length for episode in episodes]),
    }


@dataclasses.dataclass(frozen=True)
class RunningEpisodes:
    """The unfinished episodes of `E` environments between two rollouts."""

    ended: np.ndarray  # [E] bool, by the last step; a filler follows
    total: np.ndarray  # [E] float64, return so far
    length: np.ndarray  # [E] int64, steps so far

    @classmethod
    def at_start(cls, count: int) -> "RunningEpisodes":
        """The episodes of freshly reset environments."""
        return cls(np.zeros(count, bool), np.zeros(count), np.zeros(count, np.int64))

    def as_list(self) -> list[Episode]:
        totals, lengths = self.total.tolist(), self.length.tolist()
        rows = enumerate(zip(totals, lengths, strict=True))
        return [Episode(index, total, length, NO_METRICS) for index, (total, length) in rows]


class RolloutBuffer:
    """Results of `T` steps of `E` environments."""

    def __init__(self, length: int, count: int) -> None:
        shape = (length, count)
        self._reward = np.empty(shape, np.float32)
        self._terminated, self._truncated, self.first = (np.empty(shape, bool) for _ in range(3))
        self._metrics: dict[int, dict[str, np.ndarray]] = {}  # by step
        self.written = 0  # steps

    def add(self, t: int, step: HostStep) -> None:
        self._reward[t] = step.reward
        self._terminated[t] = step.terminated
        self._truncated[t] = step.truncated
        self.first[t] = step.first
        if step.metrics:  # copied, because the next step may overwrite them
            self._metrics[t] = {name: np.array(column) for name, column in step.metrics.items()}
        self.written = t + 1

    def checks(self) -> list[tuple[str, np.ndarray]]:
        """Messages of possible problems, and where all is well: [steps written, E] bool."""
        rows = slice(self.written)
        # A truncated episode bootstraps from its last observation, which must be present.
        shown = ~(self._truncated[rows] & self.first[rows])
        return [
            (not_finite("a reward"), np.isfinite(self._reward[rows])),
            ("returned a new episode instead of the last observation of a truncated one", shown),
        ]

    def finish(
        self, before: RunningEpisodes
    ) -> tuple[dict[str, np.ndarray], list[Episode], RunningEpisodes]:
        """The transitions, the finished episodes in order, and the episodes still running.

        Transitions are fields of `discorl.types.Trajectory`, [T, E] each. `before` are the episodes
        that were running when the rollout began.
        """
        over = self._terminated | self._truncated
        follows = over & ~self.first  # a filler follows, unless this step is one
        filler = np.empty((len(over) + 1, *over.shape[1:]), bool)
        filler[0] = before.ended
        for t, row in enumerate(follows):
            np.greater(row, filler[t], out=filler[t + 1])
        real = ~filler[:-1]
        transitions = {
            "reward": self._reward * real,
            "terminated": self._terminated & real,
            "truncated": filler[1:],
            "filler": filler[:-1],
        }
        episodes, total, length = self._episodes(transitions, over & real, before)
        return transitions, episodes, RunningEpisodes(filler[-1], total, length)

    def _episodes(
        self, transitions: dict[str, np.ndarray], ended: np.ndarray, before: RunningEpisodes
    ) -> tuple[list[Episode], np.ndarray, np.ndarray]:
        """Finished episodes, and returns [E] and lengths [E] of the running ones."""
        totals = before.total + np.cumsum(transitions["reward"], axis=0, dtype=float)
        lengths = before.length + np.cumsum(~transitions["filler"], axis=0)
        # Cumulative sums at the end of each environment's latest episode.
        total, length = [0.0] * len(before.total), [0] * len(before.length)
        episodes = []
        sums = totals[ended].tolist(), lengths[ended].tolist()
        for (t, i), total_sum, length_sum in zip(np.argwhere(ended).tolist(), *sums, strict=True):
            columns = self._metrics.get(t, {})
            numbers = {name: float(column[i]) for name, column in columns.items()}
            metrics = {name: x for name, x in numbers.items() if not np.isnan(x)}
            episodes.append(Episode(i, total_sum - total[i], length_sum - length[i], metrics))
            total[i], length[i] = total_sum, length_sum
        return episodes, totals[-1] - total, lengths[-1] - length
