"""The suite `navix`: MiniGrid's tasks by NAVIX, written in JAX.

NAVIX's `step` resets an episode that has ended. The adapter calls `_step` instead, so that the
caller decides when to reset.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp
import navix
import numpy as np
from navix import observations

from discorl.envs.base import Environment, Step
from discorl.envs.native.arrays import Adapted, fix_types, one_hot_cells
from discorl.types import Array, Key, PyTree
from discorl.types.validation import integer

_PREFIX = "Navix-"
# Kinds and colours of cells in MiniGrid's encoding, and states of doors or directions of the agent.
_SIZES = (11, 6, 4)
_VIEWS = {"agent": observations.symbolic_first_person, "full": observations.symbolic}


def names() -> Sequence[str]:
    """All registered tasks."""
    return [name.removeprefix(_PREFIX) for name in navix.registry()]


def make(
    item: str, *, max_steps: int = 100, view: Literal["agent", "full"] = "agent"
) -> Environment:
    """Builds a task.

    Args:
        item: its name without the prefix, such as `DoorKey-5x5-v0`.
        max_steps: steps after which an episode is truncated.
        view: `agent` for the 7x7 cells ahead of the agent, as in MiniGrid, or `full` for the grid.
    """
    integer("max_steps", max_steps, least=1, owner="navix")
    environment = navix.make(_PREFIX + item, max_steps=max_steps, observation_fn=_VIEWS[view])
    return Navix(item, environment, len(environment.action_set))


@dataclasses.dataclass(frozen=True, eq=False)
class Navix(Adapted):
    """A MiniGrid task. Cells are [rows, columns, kinds + colours + states] bool, each one-hot."""

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        moment = fix_types(self.environment.reset(key))
        return moment, one_hot_cells(moment.observation, _SIZES)

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
        moment = fix_types(self.environment._step(state, action))
        return moment, Step(
            observation=one_hot_cells(moment.observation, _SIZES),
            reward=moment.reward.astype(jnp.float32),
            terminated=moment.is_termination(),
            truncated=moment.is_truncation(),
        )

    def render(self, state: PyTree) -> np.ndarray:
        return np.asarray(observations.rgb(state.state))
