"""Crafter: survival in an open world, from pixels (Hafner 2022, arXiv:2109.06780)."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import crafter
import jax
import numpy as np

from discorl.envs import references
from discorl.envs.base import Reference
from discorl.envs.host.base import HostEnvironment, HostVector, picture, seeds_from
from discorl.envs.host.serial import Outcome
from discorl.envs.host.workers import vector_of
from discorl.types import PyTree
from discorl.types.validation import integer

_FULL_LENGTH = 10_000  # steps of an episode, in the paper
_ACHIEVEMENTS = tuple(crafter.constants.achievements)


def names() -> Sequence[str]:
    """There is one task: a reward for each achievement, and for health."""
    return ("reward",)


def make(
    item: str, *, size: int = 64, length: int = _FULL_LENGTH, workers: int = 0
) -> HostEnvironment:
    """Builds Crafter's one task.

    Args:
        item: `reward`.
        size: frame height and width in pixels.
        length: steps after which an episode is truncated.
        workers: worker processes; 0 steps all environments in this process.
    """
    integer("size", size, least=18, owner="crafter")
    integer("length", length, least=1, owner="crafter")
    integer("workers", workers, least=0, owner="crafter")
    return _Crafter(item, size, length, workers)


@dataclasses.dataclass(frozen=True)
class _Crafter(HostEnvironment):
    item: str
    size: int
    length: int
    workers: int

    num_actions = len(crafter.constants.actions)
    # Whether an episode unlocked each achievement: means over episodes are success rates.
    episode_metrics = tuple(f"achievement/{name}" for name in _ACHIEVEMENTS)

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"crafter:{self.item}"

    @property
    def observation(self) -> PyTree:
        return jax.ShapeDtypeStruct((self.size, self.size, 3), np.uint8)

    def start(self, count: int, seed: int, *, render: bool = False) -> HostVector:
        del render  # frames are made from observations
        return vector_of(
            functools.partial(_Single, self),
            seeds_from(seed, count),
            observation=self.observation,
            workers=self.workers,
            timeout=self.timeout,
        )

    def summarise(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """The score of Hafner 2022: a geometric mean of success rates, in percent."""
        if len(means) < len(self.episode_metrics):  # no episode has ended
            return {}
        percent = 100 * np.array([means[name] for name in self.episode_metrics])
        return {"crafter_score": float(np.expm1(np.log1p(percent).mean()))}

    def reference(self) -> Reference | None:
        """Only defined for episodes of full length."""
        return references.lookup("crafter", self.item) if self.length == _FULL_LENGTH else None


class _Repeatable(crafter.Env):
    """Crafter whose episodes are a function of the seed.

    The package removes a creature by its position in a set, which depends on memory addresses. Here
    creatures are sorted first, so that only the random numbers decide.
    """

    def _balance_object(self, chunk: Any, objs: Iterable[Any], *settings: Any) -> None:
        ordered = sorted(objs, key=lambda creature: tuple(creature.pos))
        super()._balance_object(chunk, ordered, *settings)


class _Single:
    """See `discorl.envs.host.serial.Single`."""

    def __init__(self, task: _Crafter) -> None:
        self._task = task

    def reset(self, seed: int | None) -> PyTree:
        if seed is not None:
            size = (self._task.size, self._task.size)
            self._env = _Repeatable(size=size, length=self._task.length, seed=seed)
        self._seen = self._env.reset()
        return self._seen

    def step(self, action: int) -> Outcome:
        self._seen, reward, done, info = self._env.step(action)
        dead = info["discount"] == 0
        metrics: dict[str, float] = {}
        if done:
            unlocked = info["achievements"]
            metrics = {f"achievement/{name}": float(unlocked[name] > 0) for name in _ACHIEVEMENTS}
        return self._seen, float(reward), bool(dead), bool(done and not dead), metrics

    def render(self) -> np.ndarray | None:
        return picture(self._seen)

    def close(self) -> None:
        return
