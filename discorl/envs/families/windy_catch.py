"""Catch in a wind, with paddles that differ in width and grip."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.base import Step
from discorl.envs.families import board
from discorl.envs.families.base import Family, random_index, require, with_parity
from discorl.types import Array, Key

_STRONGEST = 4  # wind; the ball drifts with a probability of a fifth of the wind
_MOST_SLIPPERY = 3  # grip is lost with a probability of a tenth of the slipperiness
_WIDEST = 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WindyCatchParameters:
    """Wind and paddle."""

    wind: Array  # [] int32, from -4 (blows to the left) to 4 (to the right)
    slipperiness: Array  # [] int32, from 0 to 3
    width: Array  # [] int32, columns that the paddle covers, from 1 to 3
    mirrored: Array  # [] bool, the actions left and right are exchanged


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WindyCatchState:
    """Where things are; the ball's row is the number of steps taken."""

    ball: Array  # [] int32, column
    paddle: Array  # [] int32, leftmost column that it covers
    time: Array  # [] int32, steps taken


@dataclasses.dataclass(frozen=True)
class WindyCatch(Family[WindyCatchParameters, WindyCatchState]):
    """A ball falls one row a step, and drifts sideways; the paddle should be where it lands.

    The actions are left, stay and right, or right, stay and left. An episode begins with the ball
    in a random column of the top row and the paddle in the middle of the bottom row. It terminates
    after `rows - 1` steps with a reward of 1 if the ball met the paddle and -1 if not. The
    observation is a picture, [rows, columns] float32, with ones at the ball and at the paddle.

    Members differ in the wind, which each step blows the ball to one side with a probability of 0
    to 0.8; in the probability, 0 to 0.3, that the paddle slips and stays where it is; in its width,
    1 to 3; and in the meaning of the actions.

    Splits: strength of the wind, slipperiness and width, counted in steps of their scales, sum to
    an even number in train members and to an odd one in held-out members, so one of them differs.
    """

    rows: int = 8
    columns: int = 8

    num_actions = 3

    def __post_init__(self) -> None:
        require("windy_catch", 2, rows=self.rows)
        require("windy_catch", _WIDEST, columns=self.columns)

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        """A picture: [rows, columns] float32."""
        return jax.ShapeDtypeStruct((self.rows, self.columns), jnp.float32)

    @property
    def horizon(self) -> int:
        """The fall of the ball."""
        return self.rows - 1

    def draw(self, key: Key, parity: Array) -> WindyCatchParameters:
        """Draws wind and paddle."""
        wind_key, slip_key, width_key, mirror_key = jax.random.split(key, 4)
        wind = random_index(wind_key, 2 * _STRONGEST + 1) - _STRONGEST
        slipperiness = random_index(slip_key, _MOST_SLIPPERY + 1)
        extra = random_index(width_key, _WIDEST)
        wanted = parity - 1 - wind - slipperiness
        return WindyCatchParameters(
            wind=wind,
            slipperiness=slipperiness,
            width=1 + with_parity(extra, _WIDEST, wanted),
            mirrored=jax.random.bernoulli(mirror_key),
        )

    def held_out(self, parameters: WindyCatchParameters) -> Array:
        """Whether wind, slipperiness and width sum to an odd number."""
        return (parameters.wind + parameters.slipperiness + parameters.width) % 2 == 1

    def reset(self, parameters: WindyCatchParameters, key: Key) -> tuple[WindyCatchState, Array]:
        """Puts the ball in a random column and the paddle in the middle."""
        ball = random_index(key, self.columns)
        state = WindyCatchState(ball, self._middle(parameters), jnp.int32(0))
        return state, self._observe(parameters, state)

    def _middle(self, parameters: WindyCatchParameters) -> Array:
        return (self.columns - parameters.width) // 2

    def step(
        self, parameters: WindyCatchParameters, state: WindyCatchState, action: Array, key: Key
    ) -> tuple[WindyCatchState, Step]:
        """Moves the paddle, unless it slips, then lets the ball fall and drift."""
        wind_chance, slip_chance = jax.random.uniform(key, (2,))
        drifts = wind_chance < _drift_probability(parameters)
        slips = slip_chance < _slip_probability(parameters)
        moved = self._move(parameters, state.paddle, action.astype(jnp.int32))
        state = WindyCatchState(
            ball=jnp.where(drifts, self._drift(parameters, state.ball), state.ball),
            paddle=jnp.where(slips, state.paddle, moved),
            time=state.time + 1,
        )
        landed = state.time >= self.horizon
        caught = _catches(parameters, state.ball, state.paddle)
        return state, Step(
            observation=self._observe(parameters, state),
            reward=jnp.where(landed, jnp.where(caught, 1.0, -1.0), 0.0),
            terminated=landed,
            truncated=jnp.zeros((), bool),
        )

    def _move(self, parameters: WindyCatchParameters, paddle: Array, action: Array) -> Array:
        """The paddle after an action that does not slip."""
        direction = jnp.where(parameters.mirrored, 1 - action, action - 1)
        return jnp.clip(paddle + direction, 0, self.columns - parameters.width)

    def _drift(self, parameters: WindyCatchParameters, ball: Array) -> Array:
        """The ball's column after a gust."""
        return jnp.clip(ball + jnp.sign(parameters.wind), 0, self.columns - 1)

    def _observe(self, parameters: WindyCatchParameters, state: WindyCatchState) -> Array:
        row = jnp.arange(self.rows)[:, None]
        column = jnp.arange(self.columns)
        ball = (row == state.time) & (column == state.ball)
        paddle = (row == self.rows - 1) & _catches(parameters, column, state.paddle)
        return (ball | paddle).astype(jnp.float32)

    def starts(self, parameters: WindyCatchParameters) -> Array:
        """Columns of the ball, and the middle for the paddle: [columns, columns]."""
        paddle = jax.nn.one_hot(self._middle(parameters), self.columns)
        return jnp.broadcast_to(paddle / self.columns, (self.columns, self.columns))

    def lookahead(self, parameters: WindyCatchParameters, time: Array, values: Array) -> Array:
        """Of the columns of ball and paddle: [columns, columns, 3]."""
        column = jnp.arange(self.columns)
        caught = _catches(parameters, column[:, None], column)
        values = jnp.where(time == self.horizon - 1, jnp.where(caught, 1.0, -1.0), values)
        drift, slip = _drift_probability(parameters), _slip_probability(parameters)
        values = drift * values[self._drift(parameters, column)] + (1 - drift) * values
        moved = self._move(parameters, column[:, None], jnp.arange(3))
        return (1 - slip) * values[:, moved] + slip * values[:, :, None]

    def situation(self, state: WindyCatchState) -> tuple[Array, ...]:
        """The columns of ball and paddle."""
        return state.ball, state.paddle

    def render(self, parameters: WindyCatchParameters, state: WindyCatchState) -> np.ndarray:
        """A round ball and a flat paddle: [height, width, 3] uint8."""
        left = (self.rows - 1) * self.columns + int(state.paddle)
        paddle = [(square, board.AGENT) for square in range(left, left + int(parameters.width))]
        ball = int(state.time) * self.columns + int(state.ball)
        return board.draw(self.rows, self.columns, paddle, [(ball, board.BALL)])


def _drift_probability(parameters: WindyCatchParameters) -> Array:
    return jnp.abs(parameters.wind) / (_STRONGEST + 1)


def _slip_probability(parameters: WindyCatchParameters) -> Array:
    return parameters.slipperiness / 10


def _catches(parameters: WindyCatchParameters, column: Array, paddle: Array) -> Array:
    """Whether a paddle covers a column."""
    return (column >= paddle) & (column < paddle + parameters.width)
