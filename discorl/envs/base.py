"""The contract for environments that are written in JAX."""

import abc
import dataclasses
from typing import Generic, NamedTuple, TypeVar

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
    """Expected undiscounted returns per episode: the two ends of a scale."""

    random: Array  # [], of the uniformly random policy
    optimal: Array  # [], of an optimal policy

    def normalise(self, value: Array) -> Array:
        """Puts a return on the scale where random play is 0 and optimal play is 1."""
        return (value - self.random) / (self.optimal - self.random)


class Environment(abc.ABC, Generic[State]):
    """A task as two pure functions of one environment; callers vmap, jit and reset them.

    An environment never resets itself: who acts decides when, and so sees the last observation of
    every episode.
    """

    num_actions: int

    @property
    @abc.abstractmethod
    def observation(self) -> PyTree:
        """Shape and dtype of an observation: a pytree of `jax.ShapeDtypeStruct`."""

    @abc.abstractmethod
    def reset(self, key: Key) -> tuple[State, PyTree]:
        """Begins an episode; returns its state and first observation."""

    @abc.abstractmethod
    def step(self, state: State, action: Array, key: Key) -> tuple[State, Step]:
        """Takes one action."""

    def render(self, state: State) -> np.ndarray | None:
        """A picture of the state, [height, width, 3] uint8; None if it cannot be drawn."""
        del state
        return None
