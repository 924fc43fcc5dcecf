"""The contract for environments written in JAX."""

import abc
import dataclasses
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
    runtime_checkable,
)

import jax
import numpy as np

from discorl.types import Array, Key, PyTree

State = TypeVar("State")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Step:
    """The outcome of one action. All fields are unbatched; callers vmap."""

    observation: PyTree  # the episode's true next observation, also at its end
    reward: Array  # [] float
    terminated: Array  # [] bool, the task itself is over
    truncated: Array  # [] bool, cut by a time limit


class Reference(NamedTuple):
    """Expected undiscounted returns per episode that define scores of 0 and 1.

    If the optimum is unknown, the upper end is the one used in the literature, such as a human
    score; returns may then exceed it.
    """

    random: Array | float  # [], of the uniformly random policy
    optimal: Array | float  # [], of an optimal policy, or of a human

    def score(self, value: Any) -> Any:
        """Normalises returns: 0 for random play, 1 for the upper end.

        NaN if the two ends are equal.
        """
        low, high = (np.asarray(end, np.float64) for end in self)
        return (value - low) / np.where(high == low, np.nan, high - low)


class Environment(abc.ABC, Generic[State]):
    """A task as two pure functions of a single environment; callers vmap and jit them.

    An environment never resets itself. The caller resets it, so that it sees the last observation
    of every episode.
    """

    num_actions: int
    if TYPE_CHECKING:  # at runtime, a subclass may have a plain attribute

        @property
        def observation(self) -> PyTree:
            """Shape and dtype of an observation: a pytree of `jax.ShapeDtypeStruct`."""

    # For costly resets: only environments whose episode ended are reset, this many at a time. None,
    # for cheap resets: if any episode ended, all environments are reset, and the results used where
    # one ended. Experience is the same.
    resets_at_once: int | None = None

    @abc.abstractmethod
    def reset(self, key: Key) -> tuple[State, PyTree]:
        """Starts an episode; returns its state and first observation."""

    @abc.abstractmethod
    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        """Takes one action."""

    def action_mask(self, state: State) -> Array | None:
        """Legal actions, [A] bool, at least one until the episode ends; None: no mask.

        Agents take no illegal actions, so `step` need not handle them.
        """
        return None

    def reference(self) -> Reference | None:
        """The returns that normalise scores, if they are known."""
        return None

    def render(self, state: State) -> np.ndarray | None:
        """A frame of the state, [height, width, 3] uint8; None if it cannot be drawn."""
        return None


@runtime_checkable
class GymnaxLike(Protocol):
    """The part of gymnax's interface that discorl uses."""

    @property
    def default_params(self) -> Any: ...

    def reset_env(self, key: Key, params: Any) -> tuple[PyTree, PyTree]:
        """First observation and state."""

    def step_env(
        self, key: Key, state: PyTree, action: Array, params: Any
    ) -> tuple[PyTree, PyTree, Array, Array, dict[str, Any]]:
        """Observation, state, reward, whether the episode terminated, and further information."""

    def is_truncated(self, state: PyTree, params: Any) -> Array:
        """Whether a time limit ends the episode."""

    def action_space(self, params: Any) -> Any: ...

    def observation_space(self, params: Any) -> Any: ...
