"""Catch: move a paddle to where a falling ball will land."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.base import Environment, Reference, Step
from discorl.envs.families import board
from discorl.types import Array, Key
from discorl.types.validation import Fields


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CatchState:
    """Positions; rows count from the top, columns from the left."""

    ball_row: Array  # [] int32
    ball_column: Array  # [] int32
    paddle: Array  # [] int32, column in the bottom row


@dataclasses.dataclass(frozen=True)
class Catch(Environment[CatchState]):
    """A ball falls one row per step from a random column; the paddle moves along the bottom row.

    The actions are left, stay and right. The episode terminates after `rows - 1` steps, when the
    ball has reached the bottom row: with a reward of 1 if it met the paddle and -1 if not. All
    other rewards are 0. The observation is a picture, [rows, columns] float32, with ones at the
    ball and at the paddle.
    """

    rows: int = 8
    columns: int = 8

    num_actions = 3

    def __post_init__(self) -> None:
        Fields(self, "catch").integer("rows", "columns", least=2)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.rows, self.columns), jnp.float32)

    def reset(self, key: Key) -> tuple[CatchState, Array]:
        state = CatchState(
            ball_row=jnp.int32(0),
            ball_column=jax.random.randint(key, (), 0, self.columns, jnp.int32),
            paddle=jnp.int32(self.columns // 2),
        )
        return state, self._observe(state)

    def step(self, state: CatchState, action: Array, key: Key) -> tuple[CatchState, Step]:
        """Moves the paddle (0: left, 1: stay, 2: right), then lets the ball fall one row."""
        moved = state.paddle + action.astype(jnp.int32) - 1
        state = CatchState(
            ball_row=state.ball_row + 1,
            ball_column=state.ball_column,
            paddle=jnp.clip(moved, 0, self.columns - 1),
        )
        landed = state.ball_row == self.rows - 1
        outcome = jnp.where(state.ball_column == state.paddle, 1.0, -1.0)
        return state, Step(
            observation=self._observe(state),
            reward=jnp.where(landed, outcome, 0.0).astype(jnp.float32),
            terminated=landed,
            truncated=jnp.zeros((), bool),
        )

    def _observe(self, state: CatchState) -> Array:
        row = jnp.arange(self.rows)[:, None]
        column = jnp.arange(self.columns)
        ball = (row == state.ball_row) & (column == state.ball_column)
        paddle = (row == self.rows - 1) & (column == state.paddle)
        return (ball | paddle).astype(jnp.float32)

    def reference(self) -> Reference:
        """Exact expected returns per episode of random and optimal play.

        The ball's column is uniform and independent of random play, which thus catches with
        probability 1 / columns. Optimal play catches every ball that it can reach in time.
        """
        middle, reach = self.columns // 2, self.rows - 1
        reachable = min(middle, reach) + 1 + min(self.columns - 1 - middle, reach)
        random, optimal = (2 * caught / self.columns - 1 for caught in (1, reachable))
        return Reference(jnp.float32(random), jnp.float32(optimal))

    def render(self, state: CatchState) -> np.ndarray:
        paddle = (self.rows - 1) * self.columns + int(state.paddle)
        ball = int(state.ball_row) * self.columns + int(state.ball_column)
        return board.draw(self.rows, self.columns, [(paddle, board.AGENT)], [(ball, board.BALL)])
