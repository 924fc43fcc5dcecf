"""Deep seas: a single sequence of costly moves leads to the treasure."""

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


class DeepSeaParameters(NamedTuple):
    """One sea."""

    right: Array  # [size, size] int32, the action that moves right in each square
    depth: Array  # [] int32, how many rows of the `size` possible ones this sea has
    goal: Array  # [] float32, reward of the treasure
    cost: Array  # [] float32, of every attempt to move right
    slip: Array  # [] float32, probability that a move right goes left instead


@dataclasses.dataclass(frozen=True)
class DeepSea(PlaceFamily[DeepSeaParameters]):
    """Sink one row per step; only moving right every time leads to the treasure.

    After Deep Sea (Osband et al., 2019). An episode begins in the upper left corner and terminates
    after `depth` steps. In each square one action moves right, and all others move left. Moving
    right costs a little, which is the only other reward, so random play finds the treasure once in
    `actions ** depth` episodes and all smaller rewards lead away from it. The observation is the
    diver's square, one-hot: [size * size] float32.

    Members differ in the action that moves right in each square; in the depth, from half of `size`
    to all of it; in the treasure, from `goal`; in what moving right all the way costs, a share of
    the treasure from `cost`; and in whether moves right slip, with probability `slippery`: those
    go left with a probability from `slip`.

    Splits: the actions that lead to the treasure sum to an even number in train members and to an
    odd one in held-out members, so in seas of one depth the way to the treasure differs.
    """

    size: int = bounded(7, least=2)
    actions: int = bounded(2, least=2)
    goal: Range[float] = bounded(Range(0.5, 1.5), least=0.01, most=100)
    cost: Range[float] = bounded(Range(0.0, 0.02), least=0, most=0.9)
    slippery: float = bounded(0.5, least=0, most=1)
    slip: Range[float] = bounded(Range(0.02, 0.1), least=0, most=0.9)

    truncates = False

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.actions, (self.size**2,), self.size, (self.size,))

    def draw(self, key: Key, parity: Array) -> DeepSeaParameters:
        right_key, depth_key, goal_key, cost_key, slippery_key, slip_key = jax.random.split(key, 6)
        depth = self.size - draws.index(depth_key, self.size // 2 + 1)
        right = draws.index(right_key, self.actions, (self.size, self.size))
        later = self._way(right, depth)[1:].sum()
        first = draws.with_parity(right[0, 0], self.actions, parity + later)
        goal = draws.number(goal_key, self.goal)
        slip = draws.number(slip_key, self.slip)
        return DeepSeaParameters(
            right=right.at[0, 0].set(first),
            depth=depth,
            goal=goal,
            cost=goal * draws.number(cost_key, self.cost) / depth,
            slip=jnp.where(jax.random.bernoulli(slippery_key, self.slippery), slip, 0.0),
        )

    def _way(self, right: Array, depth: Array) -> Array:
        """The actions that lead to the treasure, and zeros below it: [size] int32."""
        return jnp.where(jnp.arange(self.size) < depth, jnp.diagonal(right), 0)

    def transition(
        self, parameters: DeepSeaParameters, state: PlaceState, action: Array, key: Key
    ) -> tuple[PlaceState, Array, Array]:
        right = action == parameters.right[state.time, state.place]
        moves = right & (jax.random.uniform(key) >= parameters.slip)
        column = jnp.where(moves, state.place + 1, jnp.maximum(state.place - 1, 0))
        state = PlaceState(column, state.time + 1)
        found = column == parameters.depth  # the last step of moving right all the way
        cost = jnp.where(right, parameters.cost, 0.0)
        reward = jnp.where(found, parameters.goal, 0.0) - cost
        return state, reward, state.time >= parameters.depth

    def observe(self, parameters: DeepSeaParameters, state: PlaceState) -> Array:
        """The diver's square; its row is the number of steps taken."""
        # The row below the last one has no squares, so the deepest sea ends with a zero vector.
        return jax.nn.one_hot(state.time * self.size + state.place, self.size**2)

    def observations(self, parameters: DeepSeaParameters) -> Array:
        return jax.vmap(lambda time: self._seen(parameters, time))(jnp.arange(self.horizon))

    def lookahead(self, parameters: DeepSeaParameters, time: Array, values: Array) -> Array:
        """See `Family.lookahead`; the row is the time: [size, A]."""
        column = jnp.arange(self.size)
        values = jnp.where(time + 1 < parameters.depth, values, 0.0)
        left = values[jnp.maximum(column - 1, 0)]
        found = column + 1 == parameters.depth
        ahead = jnp.where(found, parameters.goal, jnp.roll(values, -1))
        right = (1 - parameters.slip) * ahead + parameters.slip * left - parameters.cost
        is_right = jax.nn.one_hot(parameters.right[time], self.actions, dtype=bool)
        return jnp.where(is_right, right[:, None], left[:, None])

    def render(self, parameters: DeepSeaParameters, state: PlaceState) -> np.ndarray:
        depth, last = int(parameters.depth), self.size - 1
        floor = [(square, board.WALL) for square in range(depth * self.size, self.size**2)]
        treasure = (depth - 1) * self.size + depth - 1
        diver = min(int(state.time), last) * self.size + min(int(state.place), last)
        filled = [*floor, (treasure, board.GOOD)]
        return board.draw(self.size, self.size, filled, [(diver, board.AGENT)])
