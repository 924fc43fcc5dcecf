"""The suite `minigrid`: MiniGrid's rooms, doors and keys, by XLand-MiniGrid, written in JAX."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xminigrid
from xminigrid.core.constants import NUM_COLORS, NUM_TILES

from discorl.envs import references
from discorl.envs.base import Environment, Reference, Step
from discorl.envs.native.arrays import Adapted, fix_types, one_hot_cells
from discorl.types import Array, Key, PyTree
from discorl.types.validation import integer, refuse

_PREFIX = "MiniGrid-"
_SIZES = (NUM_TILES, NUM_COLORS)


def names() -> Sequence[str]:
    """MiniGrid's tasks. XLand's are left out, because they need downloaded rule sets."""
    registered = xminigrid.registered_environments()
    return [name.removeprefix(_PREFIX) for name in registered if name.startswith(_PREFIX)]


def make(item: str, *, max_steps: int | None = None, view: int = 7) -> Environment:
    """Builds a task.

    Args:
        item: its name without the prefix, such as `DoorKey-8x8`.
        max_steps: steps after which an episode is truncated; by default the task's own limit.
        view: side length of the agent's square field of view, in cells; odd.
    """
    if view < 3 or view % 2 == 0:
        refuse("view", view, "an odd number, at least 3", owner="minigrid")
    environment, settings = xminigrid.make(_PREFIX + item)
    settings = settings.replace(view_size=view)
    if max_steps is not None:
        integer("max_steps", max_steps, least=1, owner="minigrid")
        settings = settings.replace(max_steps=max_steps)
    return MiniGrid(item, environment, environment.num_actions(settings), settings)


@dataclasses.dataclass(frozen=True, eq=False)
class MiniGrid(Adapted):
    """A MiniGrid task. The agent sees the cells ahead of it; nothing blocks its view.

    Observations are [view, view, kinds + colours] bool: kind and colour of each cell, one-hot.

    Reaching the goal gives 1 - 0.9 * steps / max_steps and terminates; running out of steps
    truncates. The actions are forward, right, left, pick up, put down and toggle.
    """

    settings: Any  # XLand-MiniGrid's parameters

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        moment = fix_types(self.environment.reset(self.settings, key))
        return moment, one_hot_cells(moment.observation, _SIZES)

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
        moment = fix_types(self.environment.step(self.settings, state, action))
        terminated = moment.discount == 0
        return moment, Step(
            observation=one_hot_cells(moment.observation, _SIZES),
            reward=moment.reward,
            terminated=terminated,
            truncated=moment.last() & ~terminated,
        )

    def reference(self) -> Reference | None:
        """From no reward to its upper bound."""
        return references.lookup("minigrid", self.item)

    def render(self, state: PyTree) -> np.ndarray:
        return np.asarray(self.environment.render(self.settings, jax.device_get(state)))
