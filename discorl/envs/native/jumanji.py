"""The suite `jumanji`: puzzles, packing and routing with action masks, written in JAX."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import jumanji
import numpy as np

from discorl.envs.actions import combinations
from discorl.envs.base import Environment, Step
from discorl.envs.native.arrays import Adapted, fix_types
from discorl.types import Array, Key, PyTree, UserError
from discorl.types.validation import integer

# Tasks of a single agent with at most a thousand combinations of actions. FlatPack and JobShop have
# more, Sokoban has its own suite, and the others are for several agents.
_ITEMS = (
    "Game2048-v1",
    "GraphColoring-v1",
    "Minesweeper-v0",
    "RubiksCube-v0",
    "RubiksCube-partly-scrambled-v0",
    "SlidingTilePuzzle-v0",
    "Sudoku-v0",
    "Sudoku-very-easy-v0",
    "BinPack-v2",
    "Knapsack-v1",
    "Tetris-v0",
    "CVRP-v1",
    "Maze-v0",
    "PacMan-v1",
    "Snake-v1",
    "TSP-v1",
)
_MASK = "action_mask"


def names() -> Sequence[str]:
    """Jumanji's tasks of a single agent with discrete actions."""
    return _ITEMS


def make(item: str, *, time_limit: int | None = None) -> Environment:
    """Builds a task; `time_limit`, for tasks that have one, defaults to Jumanji's."""
    settings = {}
    if time_limit is not None:
        integer("time_limit", time_limit, least=1, owner="jumanji")
        settings["time_limit"] = time_limit
    try:
        environment = jumanji.make(item, **settings)
    except TypeError as error:
        raise UserError(f"jumanji:{item} has no time_limit: {error}") from None
    actions = _actions(item, environment.action_spec)
    return Jumanji(item, environment, len(actions), actions)


def _actions(item: str, spec: Any) -> np.ndarray:
    """Jumanji's actions: [A], or [A, dimensions]."""
    if hasattr(spec, "num_values") and np.ndim(spec.num_values) == 0:
        return np.arange(int(spec.num_values), dtype=np.int32)
    sizes = np.asarray(spec.num_values).ravel()
    return combinations([range(n) for n in sizes], (len(sizes),), np.int32, f"jumanji:{item}")


@dataclasses.dataclass(frozen=True, eq=False)
class Jumanji(Adapted):
    """A task of Jumanji; the state holds Jumanji's and the action mask.

    Observations are dicts of Jumanji's fields without the mask. Jumanji merges terminations and
    time limits; here, an episode that ends at its time limit counts as truncated.
    """

    actions: np.ndarray  # [A, ...]

    def reset(self, key: Key) -> tuple[PyTree, PyTree]:
        state, moment = fix_types(self.environment.reset(key))
        observation, mask = _split(moment.observation)
        return (state, mask), observation

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
        state, moment = fix_types(
            self.environment.step(state[0], jnp.asarray(self.actions)[action])
        )
        observation, mask = _split(moment.observation)
        limit = getattr(self.environment, "time_limit", None)
        late = limit is not None and state.step_count >= limit
        truncated = moment.last() & (jnp.asarray(late) | (moment.discount > 0))
        return (state, mask), Step(
            observation=observation,
            reward=moment.reward.astype(jnp.float32),
            terminated=moment.last() & ~truncated,
            truncated=truncated,
        )

    def action_mask(self, state: PyTree) -> Array | None:
        return state[1]


def _split(seen: Any) -> tuple[PyTree, Array | None]:
    """The observation without its mask, and the mask, [A] bool, in the order of `combinations`."""
    parts = seen._asdict()
    mask = parts.pop(_MASK, None)
    return parts, None if mask is None else mask.astype(bool).ravel()
