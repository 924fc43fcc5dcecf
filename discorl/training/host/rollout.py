"""What environments told in a rollout, and what trajectories and episodes are made of it.

While environments are stepped, their answers are only written down. All arithmetic waits for the
end of the rollout, where it takes a few operations on whole arrays instead of many a step.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from discorl.envs.host.base import NO_METRICS, HostStep, not_finite


@dataclasses.dataclass(frozen=True)
class Episode:
    """A finished episode."""

    index: int  # of its environment
    total: float  # undiscounted return
    length: int
    metrics: Mapping[str, float]  # those in `HostEnvironment.episode_metrics` that were told


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where `E` environments stand between two rollouts."""

    ended: np.ndarray  # [E] bool, by the latest step, with a filler to follow
    total: np.ndarray  # [E] float64, return of the episode under way so far
    length: np.ndarray  # [E] int64, of the episode under way so far

    @classmethod
    def at_start(cls, count: int) -> "Standing":
        """Of environments whose first episodes begin."""
        return cls(np.zeros(count, bool), np.zeros(count), np.zeros(count, np.int64))

    def episodes(self) -> list[Episode]:
        """The unfinished episodes as they stand."""
        totals, lengths = self.total.tolist(), self.length.tolist()
        rows = enumerate(zip(totals, lengths, strict=True))
        return [Episode(index, total, length, NO_METRICS) for index, (total, length) in rows]


@dataclasses.dataclass(frozen=True)
class Told:
    """A rollout's arrays as a `discorl.types.Trajectory` has them, [T, E] each."""

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    filler: np.ndarray


class Tape:
    """The answers of `E` environments in `T` steps, to be written once."""

    def __init__(self, length: int, count: int) -> None:
        """Room for the answers."""
        shape = (length, count)
        self._reward = np.empty(shape, np.float32)
        self._terminated, self._truncated, self.first = (np.empty(shape, bool) for _ in range(3))
        self._metrics: dict[int, dict[str, np.ndarray]] = {}  # by the step, where there are any
        self.written = 0  # steps

    def write(self, t: int, step: HostStep) -> None:
        """Writes down the answer at a step."""
        self._reward[t] = step.reward
        self._terminated[t] = step.terminated
        self._truncated[t] = step.truncated
        self.first[t] = step.first
        if step.metrics:  # which the next step may overwrite
            self._metrics[t] = {name: np.array(column) for name, column in step.metrics.items()}
        self.written = t + 1

    def checks(self) -> list[tuple[str, np.ndarray]]:
        """What could be wrong, and where it is not: [steps written, E] bool."""
        rows = slice(self.written)
        # What a truncated episode would be bootstrapped from must be there.
        shown = ~(self._truncated[rows] & self.first[rows])
        return [
            (not_finite("a reward"), np.isfinite(self._reward[rows])),
            ("began an episode in place of a truncated one's last observation", shown),
        ]

    def read(self, before: Standing) -> tuple[Told, list[Episode], Standing]:
        """Reads the whole tape.

        Args:
            before: where the environments stood.

        Returns:
            what trajectories hold; the episodes that finished, in order; where they stand now.
        """
        over = self._terminated | self._truncated
        follows = over & ~self.first  # a filler, unless this is one
        filler = np.empty((len(over) + 1, *over.shape[1:]), bool)
        filler[0] = before.ended
        for t, row in enumerate(follows):
            np.greater(row, filler[t], out=filler[t + 1])
        real = ~filler[:-1]
        told = Told(
            reward=self._reward * real,
            terminated=self._terminated & real,
            truncated=filler[1:],
            filler=filler[:-1],
        )
        episodes, total, length = self._episodes(told, over & real, before)
        return told, episodes, Standing(filler[-1], total, length)

    def _episodes(
        self, told: Told, ended: np.ndarray, before: Standing
    ) -> tuple[list[Episode], np.ndarray, np.ndarray]:
        """Finished episodes, and returns [E] and lengths [E] of those under way."""
        totals = before.total + np.cumsum(told.reward, axis=0, dtype=float)
        lengths = before.length + np.cumsum(~told.filler, axis=0)
        # What had been summed up in an environment when its latest episode ended.
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
