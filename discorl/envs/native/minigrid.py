"""The suite `minigrid`: MiniGrid's rooms, doors and keys, by XLand-MiniGrid, written in JAX."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xminigrid
from xminigrid.core.constants import NUM_COLORS, NUM_TILES

from discorl.envs import references
from discorl.envs.base import Environment, Reference, Step
from discorl.envs.native.arrays import Adapted, fix_types
from discorl.types import Array, Key, PyTree
from discorl.types.validation import integer, refuse

_PREFIX = "MiniGrid-"


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
    return MiniGrid(item, environment, settings)


@dataclasses.dataclass(frozen=True, eq=False)
class MiniGrid(Adapted):
    """A MiniGrid task. The agent sees the cells ahead of it; nothing blocks its view.

    Observations are [view, view, kinds + colours] bool: kind and colour of each cell, one-hot. The
    suite encodes them as two integers, which a network would read as quantities.

    Reaching the goal gives 1 - 0.9 * steps / max_steps and terminates; running out of steps
    truncates. The actions are forward, right, left, pick up, put down and toggle.
    """

    settings: Any  # XLand-MiniGrid's parameters

    @property
    def num_actions(self) -> int:  # type: ignore[override]  # given by the environment
        return self.environment.num_actions(self.settings)

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        moment = fix_types(self.environment.reset(self.settings, key))
        return moment, _encode(moment.observation)

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
        moment = fix_types(self.environment.step(self.settings, state, action))
        terminated = moment.discount == 0
        return moment, Step(
            observation=_encode(moment.observation),
            reward=moment.reward,
            terminated=terminated,
            truncated=moment.last() & ~terminated,
        )

    def reference(self) -> Reference | None:
        """From no reward to its upper bound."""
        return references.lookup("minigrid", self.item)

    def render(self, state: PyTree) -> np.ndarray:
        """The room from above, with the field of view highlighted."""
        return np.asarray(self.environment.render(self.settings, jax.device_get(state)))


def _encode(cells: Array) -> Array:
    """Kind and colour of cells, [view, view, 2] uint8, as one-hot."""
    sizes = (NUM_TILES, NUM_COLORS)
    codes = [jax.nn.one_hot(cells[..., i], size, dtype=bool) for i, size in enumerate(sizes)]
    return jnp.concatenate(codes, axis=-1)
