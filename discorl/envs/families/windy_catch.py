"""Catch in a wind, with paddles that differ in width and grip."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.families import board, draws
from discorl.envs.families.base import Family, Sizes
from discorl.types import Array, Key, UserError
from discorl.types.specs import Range
from discorl.types.validation import Fields, bounded

_WINDS = 5  # the ball drifts with probability wind / 5
_SLIPS = 10  # the paddle slips with probability slipperiness / 10


class WindyCatchParameters(NamedTuple):
    """Wind and paddle."""

    wind: Array  # [] int32, negative if it blows to the left; the absolute value is its strength
    slipperiness: Array  # [] int32
    width: Array  # [] int32, columns that the paddle covers
    mirrored: Array  # [] bool, the actions left and right are exchanged


class WindyCatchState(NamedTuple):
    """Positions; the ball's row is the number of steps taken."""

    ball: Array  # [] int32, column
    paddle: Array  # [] int32, leftmost column that it covers
    time: Array  # [] int32, steps taken


@dataclasses.dataclass(frozen=True)
class WindyCatch(Family[WindyCatchParameters, WindyCatchState]):
    """A ball falls one row per step and drifts sideways; the paddle must be where it lands.

    The actions are left, stay and right, or right, stay and left. An episode begins with the ball
    in a random column of the top row and the paddle in the middle of the bottom row. It terminates
    after `rows - 1` steps with a reward of 1 if the ball met the paddle and -1 if not. The
    observation is a picture, [rows, columns] float32, with ones at the ball and at the paddle.

    Members differ in the wind, which each step blows the ball to one side with a probability from
    `wind`, in steps of 0.2; in the probability, from `slip` in steps of 0.1, that the paddle slips
    and stays where it is; in its width; and in the meaning of the actions.

    Splits: strength of the wind, slipperiness and width, counted in steps of their scales, sum to
    an even number in train members and to an odd one in held-out members, so one of them differs.
    """

    rows: int = bounded(8, least=2)
    columns: int = bounded(8, least=2)
    wind: Range[float] = bounded(Range(0.0, 0.8), least=0, most=1)
    # With a slip of 1, actions would have no effect.
    slip: Range[float] = bounded(Range(0.0, 0.3), least=0, most=0.9)
    width: Range[int] = Range(1, 3)

    truncates = False

    def __post_init__(self) -> None:
        super().__post_init__()
        Fields(self, "windy_catch").integer("width", least=1, most=self.columns)
        if all(low == high for low, high in (self._winds, self._slips, self.width)):
            raise UserError(
                f"windy_catch: wind={self.wind}, slip={self.slip} and width={self.width} cannot "
                "separate train from held-out tasks; expected two steps of one or more"
            )

    @property
    def _winds(self) -> Range[int]:
        return _steps("wind", self.wind, _WINDS)

    @property
    def _slips(self) -> Range[int]:
        return _steps("slip", self.slip, _SLIPS)

    @property
    def sizes(self) -> Sizes:
        return Sizes(3, (self.rows, self.columns), self.rows - 1, (self.columns, self.columns))

    def draw(self, key: Key, parity: Array) -> WindyCatchParameters:
        wind_key, slip_key, width_key, mirror_key = jax.random.split(key, 4)
        wind = _random_wind(wind_key, self._winds)
        slip = draws.integer(slip_key, self._slips)
        width = draws.integer(width_key, self.width)
        # The first of the three that can vary gives their sum its parity.
        if self.width.high > self.width.low:
            width = _with_parity(width, self.width, parity - wind - slip)
        elif self._slips.high > self._slips.low:
            slip = _with_parity(slip, self._slips, parity - wind - width)
        else:
            strength = _with_parity(jnp.abs(wind), self._winds, parity - slip - width)
            left = (wind < 0) | (
                (wind == 0) & jax.random.bernoulli(jax.random.fold_in(wind_key, 1))
            )
            wind = jnp.where(left, -strength, strength)
        return WindyCatchParameters(wind, slip, width, jax.random.bernoulli(mirror_key))

    def begin(self, parameters: WindyCatchParameters, key: Key) -> WindyCatchState:
        ball = draws.index(key, self.columns)
        return WindyCatchState(ball, self._middle(parameters), jnp.int32(0))

    def _middle(self, parameters: WindyCatchParameters) -> Array:
        return (self.columns - parameters.width) // 2

    def transition(
        self, parameters: WindyCatchParameters, state: WindyCatchState, action: Array, key: Key
    ) -> tuple[WindyCatchState, Array, Array]:
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
        return state, jnp.where(landed, jnp.where(caught, 1.0, -1.0), 0.0), landed

    def _move(self, parameters: WindyCatchParameters, paddle: Array, action: Array) -> Array:
        """The paddle after an action that does not slip."""
        direction = jnp.where(parameters.mirrored, 1 - action, action - 1)
        return jnp.clip(paddle + direction, 0, self.columns - parameters.width)

    def _drift(self, parameters: WindyCatchParameters, ball: Array) -> Array:
        """The ball's column after a gust."""
        return jnp.clip(ball + jnp.sign(parameters.wind), 0, self.columns - 1)

    def observe(self, parameters: WindyCatchParameters, state: WindyCatchState) -> Array:
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

    def observations(self, parameters: WindyCatchParameters) -> Array:
        columns = jnp.arange(self.columns)
        axes = jnp.meshgrid(columns, columns, jnp.arange(self.horizon), indexing="ij")
        seen = jax.vmap(lambda *state: self.observe(parameters, WindyCatchState(*state)))
        rows = seen(*(axis.reshape(-1) for axis in axes))
        table = rows.reshape(*axes[0].shape, *self.sizes.observation)
        return jnp.moveaxis(table, 2, 0)

    def render(self, parameters: WindyCatchParameters, state: WindyCatchState) -> np.ndarray:
        left = (self.rows - 1) * self.columns + int(state.paddle)
        paddle = [(square, board.AGENT) for square in range(left, left + int(parameters.width))]
        ball = int(state.time) * self.columns + int(state.ball)
        return board.draw(self.rows, self.columns, paddle, [(ball, board.BALL)])


def _steps(name: str, within: Range[float], steps: int) -> Range[int]:
    """The multiples of 1 / `steps` in a range, in units of 1 / `steps`."""
    # Products such as 0.6 * 5 may be slightly off.
    found = Range(math.ceil(within.low * steps - 1e-6), math.floor(within.high * steps + 1e-6))
    if found.low > found.high:
        raise UserError(
            f"windy_catch: {name} is a multiple of {1 / steps}, and {within} holds none; "
            f"expected for example {found.high / steps}..{found.low / steps}"
        )
    return found


def _random_wind(key: Key, strengths: Range[int]) -> Array:
    """A uniformly random wind: a strength in either direction, or none."""
    count = 2 * (strengths.high - strengths.low + 1) - (strengths.low == 0)
    wind = draws.index(key, count) - strengths.high
    gap = max(2 * strengths.low - 1, 0)  # between the weakest winds of both directions
    return jnp.where(wind > -strengths.low, wind + gap, wind)


def _with_parity(number: Array, within: Range[int], wanted: Array) -> Array:
    """See `with_parity`; the number and its neighbour are in a range."""
    size = within.high - within.low + 1
    return within.low + draws.with_parity(number - within.low, size, wanted - within.low)


def _drift_probability(parameters: WindyCatchParameters) -> Array:
    return jnp.abs(parameters.wind) / _WINDS


def _slip_probability(parameters: WindyCatchParameters) -> Array:
    return parameters.slipperiness / _SLIPS


def _catches(parameters: WindyCatchParameters, column: Array, paddle: Array) -> Array:
    """Whether a paddle covers a column."""
    return (column >= paddle) & (column < paddle + parameters.width)
