"""Stock control: order ahead for a seasonal demand."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from discorl.envs.families import draws
from discorl.envs.families.base import Family, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded

_EXTRAS = 3  # customers beyond the season's: none, one or two


class InventoryParameters(NamedTuple):
    """One shop."""

    demands: Array  # [seasons] int32, units that each season's regular customers ask for
    surge: Array  # [] float32, probability that each of two more customers asks for a unit
    price: Array  # [] float32, income from a unit
    cost: Array  # [] float32, of a unit ordered
    holding: Array  # [] float32, cost of keeping a unit for a step
    meanings: Array  # [orders] int32, the units that each action orders


class InventoryState(NamedTuple):
    """Units in stock and on their way."""

    stock: Array  # [] int32, units
    arriving: Array  # [] int32, units ordered in the step before
    time: Array  # [] int32, steps taken


@dataclasses.dataclass(frozen=True)
class Inventory(Family[InventoryParameters, InventoryState]):
    """Order goods one step ahead of a seasonal, random demand; sell, store, or run out.

    Each action orders a number of units from 0 to `orders - 1`, in a member-specific order. In a
    step, the units ordered in the previous step arrive; those beyond `capacity` are lost. Then
    customers ask for the season's demand and up to two units more, and buy what is in stock. The
    reward is the price of the units sold, minus the cost of the units ordered, minus the cost of
    holding those left. The season changes every step and repeats after `seasons` steps. An episode
    begins with an empty stock and terminates after `periods` steps.

    The observation is [5] float32: the stock as a share of the capacity, the units on their way as
    a share of the largest order, the sine and cosine of the season's angle, and the share of the
    episode that is left.

    Members differ in the demand of each season, from 0 to `orders - 1` units; in the probability,
    from `surge`, that each of two more customers asks for a unit; in the price, from `price`; in
    the cost of a unit and of holding it for a step, shares of the price from `cost` and `holding`;
    and in the meanings of the actions.

    Splits: the demands of all seasons sum to an even number in train members and to an odd one in
    held-out members, so the demand of some season differs.
    """

    capacity: int = bounded(6, least=1)
    orders: int = bounded(5, least=2)
    seasons: int = bounded(4, least=1)
    periods: int = bounded(32, least=2)
    surge: Range[float] = bounded(Range(0.1, 0.5), least=0, most=1)
    price: Range[float] = bounded(Range(0.05, 0.15), least=0.001, most=100)
    cost: Range[float] = bounded(Range(0.3, 0.7), least=0, most=1)
    holding: Range[float] = bounded(Range(0.05, 0.2), least=0, most=1)

    truncates = False

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.orders, (5,), self.periods, (self.capacity + 1, self.orders))

    def draw(self, key: Key, parity: Array) -> InventoryParameters:
        demand_key, surge_key, price_key, cost_key, holding_key, meaning_key = jax.random.split(
            key, 6
        )
        demands = draws.index(demand_key, self.orders, (self.seasons,))
        price = draws.number(price_key, self.price)
        return InventoryParameters(
            demands=draws.with_parity_of_sum(demands, self.orders, parity),
            surge=draws.number(surge_key, self.surge),
            price=price,
            cost=price * draws.number(cost_key, self.cost),
            holding=price * draws.number(holding_key, self.holding),
            meanings=draws.order(meaning_key, self.orders),
        )

    def begin(self, parameters: InventoryParameters, key: Key) -> InventoryState:
        return InventoryState(jnp.int32(0), jnp.int32(0), jnp.int32(0))

    def transition(
        self, parameters: InventoryParameters, state: InventoryState, action: Array, key: Key
    ) -> tuple[InventoryState, Array, Array]:
        extra = jnp.sum(jax.random.uniform(key, (_EXTRAS - 1,)) < parameters.surge)
        demand = self._demand(parameters, state.time) + extra.astype(jnp.int32)
        ordered = parameters.meanings[action]
        left, reward = self._trade(parameters, state.stock + state.arriving, demand, ordered)
        state = InventoryState(left, ordered, state.time + 1)
        return state, reward, state.time >= self.periods

    def _demand(self, parameters: InventoryParameters, time: Array) -> Array:
        return parameters.demands[time % self.seasons]

    def _trade(
        self, parameters: InventoryParameters, supply: Array, demand: Array, ordered: Array
    ) -> tuple[Array, Array]:
        """The stock that is left, and the reward."""
        stock = jnp.minimum(supply, self.capacity)
        sold = jnp.minimum(stock, demand)
        left = stock - sold
        income = parameters.price * sold
        return left, income - parameters.cost * ordered - parameters.holding * left

    def observe(self, parameters: InventoryParameters, state: InventoryState) -> Array:
        angle = 2 * math.pi * (state.time % self.seasons) / self.seasons
        return jnp.stack(
            [
                state.stock / self.capacity,
                state.arriving / (self.orders - 1),
                jnp.sin(angle),
                jnp.cos(angle),
                1 - state.time / self.periods,
            ]
        ).astype(jnp.float32)

    def lookahead(self, parameters: InventoryParameters, time: Array, values: Array) -> Array:
        supply = jnp.arange(self.capacity + 1)[:, None] + jnp.arange(self.orders)
        demands = self._demand(parameters, time) + jnp.arange(_EXTRAS)
        # [capacity + 1, orders, A, extras]; the last axis is averaged out.
        ordered = parameters.meanings[:, None]
        left, reward = self._trade(parameters, supply[..., None, None], demands, ordered)
        surge = parameters.surge
        chances = jnp.stack([(1 - surge) ** 2, 2 * surge * (1 - surge), surge**2])
        return ((reward + values[left, ordered]) * chances).sum(axis=-1)
