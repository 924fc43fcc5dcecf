"""The contract for environments that are written in JAX."""

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
    """What follows an action. All fields are unbatched; the caller vmaps."""

    observation: PyTree  # the episode's true next observation, also where the episode ends
    reward: Array  # [] float
    terminated: Array  # [] bool, the task itself is over
    truncated: Array  # [] bool, cut from outside, by a time limit


class Reference(NamedTuple):
    """Expected undiscounted returns per episode: the two ends of a scale.

    Where no optimum is known, the upper end is what the literature has settled on instead, such as
    a human's score; returns may then lie beyond it.
    """

    random: Array | float  # [], of the uniformly random policy
    optimal: Array | float  # [], of an optimal policy, or of a human

    def score(self, value: Any) -> Any:
        """Returns, in numbers or arrays, on the scale where random play is 0 and the upper end 1.

        NaN where the two ends are equal and make no scale.
        """
        low, high = (np.asarray(end, np.float64) for end in self)
        return (value - low) / np.where(high == low, np.nan, high - low)


class Environment(abc.ABC, Generic[State]):
    """A task as two pure functions of one environment; callers vmap, jit and reset them.

    An environment never resets itself: who acts decides when, and so sees the last observation of
    every episode.
    """

    num_actions: int
    if TYPE_CHECKING:  # else a subclass could not have it as a plain attribute

        @property
        def observation(self) -> PyTree:
            """Shape and dtype of an observation: a pytree of `jax.ShapeDtypeStruct`."""

    # How many environments of a batch to reset at once, if a reset is costly: only those whose
    # episode ended are then reset, so many at a time. None, for a reset that is cheap: all are
    # reset wherever one episode ended, and the results used where one did. Experience is the same.
    resets_at_once: int | None = None

    @abc.abstractmethod
    def reset(self, key: Key) -> tuple[State, PyTree]:
        """Begins an episode; returns its state and first observation."""

    @abc.abstractmethod
    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        """Takes one action."""

    def reference(self) -> Reference | None:
        """The returns between which scores are normalised, if they are known."""
        return None

    def render(self, state: State) -> np.ndarray | None:
        """A picture of the state, [height, width, 3] uint8; None if it cannot be drawn."""
        del state
        return None


@runtime_checkable
class GymnaxLike(Protocol):
    """What is used of an environment with gymnax's interface."""

    @property
    def default_params(self) -> Any:
        """Its parameters."""

    def reset_env(self, key: Key, params: Any) -> tuple[PyTree, PyTree]:
        """First observation and state."""

    def step_env(
        self, key: Key, state: PyTree, action: Array, params: Any
    ) -> tuple[PyTree, PyTree, Array, Array, dict[str, Any]]:
        """Observation, state, reward, whether the task is over, and further information."""

    def is_truncated(self, state: PyTree, params: Any) -> Array:
        """Whether a time limit ends the episode."""

    def action_space(self, params: Any) -> Any:
        """The actions."""

    def observation_space(self, params: Any) -> Any:
        """The observations."""
