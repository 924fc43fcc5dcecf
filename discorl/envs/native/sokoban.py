"""The suite `sokoban`: push boxes onto targets, by Jumanji, written in JAX.

Jumanji's Sokoban has no action masks: an impossible move leaves the board unchanged.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jumanji.environments.routing.sokoban import constants, generator
from jumanji.environments.routing.sokoban.env import Sokoban as JumanjiSokoban

from discorl.envs.base import Environment, Step
from discorl.envs.families import board
from discorl.envs.native.arrays import Adapted, fix_types
from discorl.types import Array, Key, PyTree, UserError
from discorl.types.validation import integer

_OFFLINE = {"simple": generator.SimpleSolveGenerator, "toy": generator.ToyGenerator}
# Boxoban's levels (Guez et al. 2018), as published by Jumanji's authors.
_DOWNLOADED = (
    "unfiltered-train",
    "unfiltered-valid",
    "unfiltered-test",
    "medium-train",
    "medium-valid",
    "hard",
)


def names() -> Sequence[str]:
    """`simple` has one level, `toy` has two; the others are Boxoban sets, downloaded once."""
    return [*_OFFLINE, *_DOWNLOADED]


def make(item: str, *, time_limit: int = 120) -> Environment:
    """Builds the game for a set of levels; episodes are truncated after `time_limit` steps."""
    integer("time_limit", time_limit, least=1, owner="sokoban")
    game = JumanjiSokoban(generator=_levels(item), time_limit=time_limit)
    return Sokoban(item, game, num_actions=4)


def _levels(item: str) -> generator.Generator:
    if item in _OFFLINE:
        return _OFFLINE[item]()
    try:
        return generator.HuggingFaceDeepMindGenerator(item)
    except Exception as error:  # from the network or its library
        raise UserError(
            f"sokoban:{item} needs a set of levels that could not be downloaded ({error}); "
            "sokoban:toy and sokoban:simple need none"
        ) from None


@dataclasses.dataclass(frozen=True, eq=False)
class Sokoban(Adapted):
    """Sokoban on a board of 10x10 with four boxes.

    Pushing a box onto a target gives 1, pushing it off -1, the last box 10 more, and every step
    -0.1. Solving the level terminates; running out of steps truncates. The actions are up, right,
    down and left. Observations are [10, 10, 4] bool: planes of walls, targets, agent and boxes.
    """

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        state = fix_types(self.environment.reset(key)[0])
        return state, self._observe(state)

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
        """Takes one action. Jumanji merges solving and the time limit; here they are separate."""
        state, moment = fix_types(self.environment.step(state, action))
        return state, Step(
            observation=self._observe(state),
            reward=moment.reward.astype(jnp.float32),
            terminated=self.environment.level_complete(state),
            truncated=state.step_count >= self.environment.time_limit,
        )

    def _observe(self, state: PyTree) -> Array:
        return jnp.stack(
            [
                state.fixed_grid == constants.WALL,
                state.fixed_grid == constants.TARGET,
                state.variable_grid == constants.AGENT,
                state.variable_grid == constants.BOX,
            ],
            axis=-1,
        )

    def render(self, state: PyTree) -> np.ndarray:
        """The board: walls grey, targets green, boxes orange, the agent blue."""
        squares = np.asarray(self._observe(state)).reshape(-1, 4)
        colours = (board.WALL, board.GOOD, board.AGENT, board.BALL)
        pieces = [
            [(int(square), colours[kind]) for square in np.flatnonzero(squares[:, kind])]
            for kind in range(4)
        ]
        size = constants.GRID_SIZE
        return board.draw(size, size, pieces[0] + pieces[1], pieces[2] + pieces[3])
