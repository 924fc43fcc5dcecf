"""A vector that steps its environments one after the other."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import jax
import numpy as np

from discorl.envs.host.base import EnvironmentFailure, HostStep, HostVector, Reader
from discorl.types import PyTree
from discorl.types.imports import ANYTHING

Outcome = tuple[PyTree, float, bool, bool, Mapping[str, float]]


class Single(Protocol):
    """A single environment in Python."""

    def reset(self, seed: int | None) -> PyTree:
        """Starts an episode and returns its first observation. Only the first call gets a seed."""

    def step(self, action: int) -> Outcome:
        """Returns the true next observation, reward, terminated, truncated, and metrics.

        The metrics are those of the episode, and only read at its end.
        """

    def render(self) -> np.ndarray | None:
        """A frame, [height, width, 3] uint8; None if it cannot be drawn."""

    def close(self) -> None:
        """Releases all resources of the environment."""


class MaskedSingle(Single, Protocol):
    """A single environment with an action mask."""

    def action_mask(self) -> np.ndarray:
        """Legal actions at the latest observation, [A] bool."""


class SerialVector(HostVector):
    """Steps single environments in turn, with as few filler steps as possible.

    After a termination the next episode starts at once, after a truncation with the next step.
    """

    def __init__(
        self,
        make: Callable[[], Single],
        seeds: Sequence[int],
        *,
        observation: PyTree | None = None,
        read: Reader | None = None,
    ) -> None:
        """Makes one environment per seed.

        `observation` declares one observation, to find environments that deviate from it; by
        default, it is the first environment's first observation. `read` maps the stacked
        observations to those that agents see.
        """
        self.seeds = list(seeds)
        self._expected = observation
        self._read = read or (lambda observations: observations)
        self._singles: list[Single] = []
        try:
            for _ in self.seeds:
                self._singles.append(make())
        except BaseException:
            self.close()
            raise
        self._cut = np.zeros(len(self.seeds), bool)  # truncated, to be reset by the next step
        self._drawn = False  # whether `render` has been called
        self._end: np.ndarray | None = None  # a frame of the end of the latest episode

    def reset(self) -> PyTree:
        observations = []
        for index, seed in enumerate(self.seeds):
            try:
                observations.append(self._singles[index].reset(seed))
            except ANYTHING as error:
                raise _failure(error, index) from error
        seen = batch(observations, self._expected, self._read)
        if self._expected is None:
            self._expected = jax.tree.map(lambda x: x[0], seen)
        return seen

    def step(self, action: np.ndarray) -> HostStep:
        count, chosen = len(self._singles), action.tolist()
        observations: list[PyTree] = []
        reward = np.zeros(count, np.float32)
        terminated, truncated, first = (np.zeros(count, bool) for _ in range(3))
        metrics: dict[str, np.ndarray] = {}
        i = 0
        try:  # around the loop: a context per environment would cost as much as a quick step
            for i, single in enumerate(self._singles):
                if self._cut[i]:
                    observation, first[i] = single.reset(None), True
                else:
                    observation, reward[i], ended, cut, episode = single.step(chosen[i])
                    if ended or cut:
                        if i == 0 and self._drawn:  # before the next episode begins
                            self._end = single.render()
                        terminated[i], truncated[i] = ended, cut and not ended
                        for name, value in episode.items():
                            metrics.setdefault(name, np.full(count, np.nan))[i] = value
                    if ended:
                        observation, first[i] = single.reset(None), True
                observations.append(observation)
        except ANYTHING as error:
            raise _failure(error, i) from error
        self._cut = truncated.copy()
        seen = batch(observations, self._expected, self._read)
        return HostStep(seen, reward, terminated, truncated, first, metrics)

    def action_mask(self) -> np.ndarray:
        return np.array(
            [cast(MaskedSingle, single).action_mask() for single in self._singles], bool
        )

    def render(self) -> np.ndarray | None:
        self._drawn = True
        return self._singles[0].render()

    def render_end(self) -> np.ndarray | None:
        return self._end

    def close(self) -> None:
        for single in self._singles:
            try:
                single.close()
            except ANYTHING as error:
                warnings.warn(f"an environment's close() raised {error!r}", stacklevel=2)


def _failure(error: BaseException, index: int) -> EnvironmentFailure:
    """Wraps an exception into a failure that knows its environment."""
    if isinstance(error, EnvironmentFailure):
        return EnvironmentFailure(str(error), index if error.index is None else error.index)
    return EnvironmentFailure(f"raised {type(error).__name__}: {error}", index)


def batch(observations: Sequence[PyTree], expected: PyTree | None, read: Reader) -> PyTree:
    """Stacks and reads the observations of single environments: [E, ...].

    `expected` declares one observation, by default the first, and is only used to find the culprit
    of an error.

    Raises:
        EnvironmentFailure: they do not stack or cannot be read; `index` names the culprit.
    """
    try:
        return read(_side_by_side(observations))
    except Exception as error:
        wanted = None if expected is None else _form(expected)
        for index, observation in enumerate(observations):
            try:
                alone = read(_side_by_side([observation]))
            except Exception as reason:
                raise _failure(reason, index) from reason
            form = _form(jax.tree.map(lambda x: x[0], alone))
            wanted = wanted or form
            if form != wanted:
                message = f"returned an observation of {form}; expected {wanted}"
                raise EnvironmentFailure(message, index) from None
        raise EnvironmentFailure(f"returned observations that do not fit: {error}") from None


def _side_by_side(observations: Sequence[PyTree]) -> PyTree:
    if isinstance(observations[0], np.ndarray):
        return _stack(observations)
    # A list counts as an array, not as a tree.
    return jax.tree.map(
        lambda *parts: _stack(parts), *observations, is_leaf=lambda x: isinstance(x, list)
    )


def _stack(parts: Sequence[Any]) -> np.ndarray:
    array = np.array(parts)
    if array.dtype.hasobject:
        raise EnvironmentFailure("returned an observation that is not numeric")
    return array


def _form(observation: PyTree) -> str:
    """Structure and shapes, as in `shape (2,)` or `shape {'a': (2,), 'b': ()}`."""
    return f"shape {jax.tree.map(np.shape, observation)}"
