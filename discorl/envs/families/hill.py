"""Hill climbing with a weak engine: swinging leaves a valley sooner than pushing alone."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.families import draws
from discorl.envs.families.base import Family, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded

_PUSHES = (-1, 0, 1)  # left, none, right


class HillParameters(NamedTuple):
    """One valley."""

    bottom: Array  # [] int32, position of the lowest point
    power: Array  # [] float32, probability that a push changes the speed
    gravity: Array  # [] float32, probability that the steepest slope changes the speed
    cost: Array  # [] float32, of an episode that never reaches the top
    meanings: Array  # [3] int32, the push of each action, less one


class HillState(NamedTuple):
    """A car in a valley."""

    position: Array  # [] int32
    speed: Array  # [] int32
    time: Array  # [] int32, steps taken


@dataclasses.dataclass(frozen=True)
class Hill(Family[HillParameters, HillState]):
    """Drive a car with a weak engine out of a valley, as soon as possible.

    After the mountain car (Moore 1990), with whole numbers for positions and speeds, so that
    returns are exact. The actions push left, not at all, or right, in a member-specific
    order. A push changes the speed by one with the probability `power`. The slope changes it by one
    toward the bottom, with a probability that grows with the distance from there, up to `gravity`.
    Speeds lie from `-top_speed` to `top_speed`; the car moves by its new speed. The left end stops
    it. The right end is the top: reaching it terminates the episode. Every step costs
    `cost / limit`; after `limit` steps the episode is truncated. The observation is the position
    and the speed, each from -1 to 1: [2] float32.

    The reward is the same in every step, so it does not distinguish actions before the top has been
    reached by luck.

    Members differ in the position of the bottom, in the middle third; in the power and the gravity;
    in the cost; and in the meanings of the actions.

    Splits: the bottom is at an even position in train members and at an odd one in held-out
    members.
    """

    width: int = bounded(21, least=6)
    top_speed: int = bounded(3, least=1)
    limit: int = bounded(60, least=1)
    power: Range[float] = bounded(Range(0.25, 0.5), least=0.05, most=1)
    gravity: Range[float] = bounded(Range(0.7, 1.0), least=0, most=1)
    cost: Range[float] = bounded(Range(0.3, 3.0), least=0.001, most=100)

    @property
    def sizes(self) -> Sizes:
        return Sizes(len(_PUSHES), (2,), self.limit, (self.width, 2 * self.top_speed + 1))

    def draw(self, key: Key, parity: Array) -> HillParameters:
        bottom_key, power_key, gravity_key, cost_key, meaning_key = jax.random.split(key, 5)
        third = self.width // 3
        bottom = draws.with_parity(draws.index(bottom_key, third), third, parity + third)
        return HillParameters(
            bottom=third + bottom,
            power=draws.number(power_key, self.power),
            gravity=draws.number(gravity_key, self.gravity),
            cost=draws.number(cost_key, self.cost),
            meanings=draws.order(meaning_key, len(_PUSHES)),
        )

    def begin(self, parameters: HillParameters, key: Key) -> HillState:
        return HillState(parameters.bottom, jnp.int32(0), jnp.int32(0))

    def transition(
        self, parameters: HillParameters, state: HillState, action: Array, key: Key
    ) -> tuple[HillState, Array, Array]:
        pushed, pulled = jax.random.uniform(key, (2,)) < jnp.stack(
            [parameters.power, self._steepness(parameters, state.position)]
        )
        position, speed = self._move(
            parameters, state.position, state.speed, parameters.meanings[action], pushed, pulled
        )
        state = HillState(position, speed, state.time + 1)
        return state, -parameters.cost / self.limit, position == self.width - 1

    def _steepness(self, parameters: HillParameters, position: Array) -> Array:
        """Probability that the slope changes the speed."""
        distance = jnp.abs(position - parameters.bottom) / (self.width // 3)
        return parameters.gravity * jnp.minimum(1, distance)

    def _move(
        self,
        parameters: HillParameters,
        position: Array,
        speed: Array,
        meaning: Array,
        pushed: Array | bool,
        pulled: Array | bool,
    ) -> tuple[Array, Array]:
        """Position and speed after a step."""
        push = jnp.where(pushed, meaning - 1, 0)
        pull = jnp.where(pulled, jnp.sign(parameters.bottom - position), 0)
        speed = jnp.clip(speed + push + pull, -self.top_speed, self.top_speed)
        position = jnp.clip(position + speed, 0, self.width - 1)
        return position, jnp.where(position == 0, jnp.maximum(speed, 0), speed)

    def observe(self, parameters: HillParameters, state: HillState) -> Array:
        shares = (2 * state.position / (self.width - 1) - 1, state.speed / self.top_speed)
        return jnp.stack(shares, axis=-1).astype(jnp.float32)

    def situation(self, state: HillState) -> tuple[Array, ...]:
        return state.position, state.speed + self.top_speed

    def observations(self, parameters: HillParameters) -> Array | None:
        """[width, speeds, 2]."""
        position, speed = jnp.broadcast_arrays(*self._grid())
        return self.observe(parameters, HillState(position, speed, jnp.int32(0)))

    def _grid(self) -> tuple[Array, Array]:
        """Positions and speeds of the table: [width, 1] and [1, speeds]."""
        speeds = jnp.arange(-self.top_speed, self.top_speed + 1)
        return jnp.arange(self.width)[:, None], speeds[None]

    def lookahead(self, parameters: HillParameters, time: Array, values: Array) -> Array:
        position, speed = (x[..., None] for x in self._grid())
        steepness = self._steepness(parameters, position)
        ahead = values.at[self.width - 1].set(0.0)
        total = -parameters.cost / self.limit
        for pushed in (False, True):
            for pulled in (False, True):
                chance = parameters.power if pushed else 1 - parameters.power
                chance = chance * (steepness if pulled else 1 - steepness)
                there, fast = self._move(
                    parameters, position, speed, parameters.meanings, pushed, pulled
                )
                total = total + chance * ahead[there, fast + self.top_speed]
        return total

    def render(self, parameters: HillParameters, state: HillState) -> np.ndarray | None:
        """The valley from the side: the slope in grey, the top in green, the car in white."""
        bottom, position = int(parameters.bottom), int(state.position)
        heights = np.abs(np.arange(self.width) - bottom) // 2
        picture = np.zeros((int(heights.max()) + 3, self.width, 3), np.uint8)
        for column, height in enumerate(heights):
            picture[len(picture) - 1 - height :, column] = 96
            if column == self.width - 1:
                picture[len(picture) - 1 - height, column] = (80, 200, 120)
        picture[len(picture) - 2 - heights[position], position] = 255
        return picture
