"""Cliffs: the shortest way to the goal passes close to lava."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.families import board, draws
from discorl.envs.families.base import PlaceFamily, PlaceState, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded

_COST = 0.01


class CliffParameters(NamedTuple):
    """One coast."""

    heights: Array  # [columns] int32, squares of lava in each column, counted from the bottom
    gust: Array  # [] float32, probability that a move goes down instead
    penalty: Array  # [] float32, for touching the lava
    meanings: Array  # [5] int32, the direction that each action means


@dataclasses.dataclass(frozen=True)
class Cliff(PlaceFamily[CliffParameters]):
    """Walk from the lower left corner to the lower right one, around lava, in gusts from above.

    The actions are stay, up, down, left and right, in a member-specific order if `permuted`.
    Every step costs 0.01. The goal pays 1, the lava costs a penalty; both terminate the episode.
    After `4 * (rows + columns)` steps it is truncated. The observation is [rows, columns, 2]
    float32: the agent and the lava.

    Members differ in the height of the lava in each column between the corners, which leaves the
    top row free; in the probability, from `gust`, that a gust turns a step into one downwards; in
    the penalty; and in the meanings of the actions.

    Splits: there is an even number of squares of lava in train members and an odd one in held-out
    members, so the lava differs in some column.
    """

    rows: int = bounded(4, least=2)
    columns: int = bounded(6, least=3)
    permuted: bool = True
    # With a gust of 1, actions would have no effect.
    gust: Range[float] = bounded(Range(0.0, 0.2), least=0, most=0.9)
    penalty: Range[float] = bounded(Range(0.5, 1.5), least=0, most=100)

    @property
    def sizes(self) -> Sizes:
        rows, columns = self.rows, self.columns
        return Sizes(board.NUM_MOVES, (rows, columns, 2), 4 * (rows + columns), (rows * columns,))

    @property
    def _goal(self) -> int:
        return self.rows * self.columns - 1

    def draw(self, key: Key, parity: Array) -> CliffParameters:
        height_key, gust_key, penalty_key, meaning_key = jax.random.split(key, 4)
        heights = draws.index(height_key, self.rows, (self.columns,))
        heights = heights.at[jnp.array([0, -1])].set(0)
        others = heights.sum() - heights[1]
        second = draws.with_parity(heights[1], self.rows, parity + others)
        return CliffParameters(
            heights=heights.at[1].set(second),
            gust=draws.number(gust_key, self.gust),
            penalty=draws.number(penalty_key, self.penalty),
            meanings=board.meanings(meaning_key, self.permuted),
        )

    def start(self, parameters: CliffParameters) -> int:
        return (self.rows - 1) * self.columns

    def transition(
        self, parameters: CliffParameters, state: PlaceState, action: Array, key: Key
    ) -> tuple[PlaceState, Array, Array]:
        gust = jax.random.uniform(key) < parameters.gust
        direction = jnp.where(gust, board.DOWN, parameters.meanings[action])
        square = board.move(state.place, direction, self.rows, self.columns)
        return PlaceState(square, state.time + 1), *self._outcome(parameters, square)

    def _lava(self, parameters: CliffParameters, square: Array) -> Array:
        height = self.rows - 1 - square // self.columns
        return height < parameters.heights[square % self.columns]

    def _outcome(self, parameters: CliffParameters, square: Array) -> tuple[Array, Array]:
        """Reward of entering a square, and whether the episode ends there."""
        burnt, arrived = self._lava(parameters, square), square == self._goal
        reward = jnp.where(arrived, 1.0, 0.0) - jnp.where(burnt, parameters.penalty, 0.0) - _COST
        return reward, burnt | arrived

    def observe(self, parameters: CliffParameters, state: PlaceState) -> Array:
        squares = jnp.arange(self.rows * self.columns)
        channels = (squares == state.place, self._lava(parameters, squares))
        return jnp.stack(channels, axis=-1).astype(jnp.float32).reshape(self.sizes.observation)

    def lookahead(self, parameters: CliffParameters, time: Array, values: Array) -> Array:
        squares = jnp.arange(self.rows * self.columns)
        reward, terminated = self._outcome(parameters, squares)
        worth = reward + jnp.where(terminated, 0.0, values)  # of entering each square

        def entered(direction: Array) -> Array:
            return worth[board.move(squares[:, None], direction, self.rows, self.columns)]

        gust = parameters.gust
        down = entered(jnp.array([board.DOWN]))
        return gust * down + (1 - gust) * entered(parameters.meanings)

    def render(self, parameters: CliffParameters, state: PlaceState) -> np.ndarray:
        lava = np.flatnonzero(self._lava(parameters, jnp.arange(self.rows * self.columns)))
        filled = [(square, board.BAD) for square in lava.tolist()] + [(self._goal, board.GOOD)]
        return board.draw(self.rows, self.columns, filled, [(int(state.place), board.AGENT)])
