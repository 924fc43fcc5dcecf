"""A gambler who chooses between tables to reach a target capital."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from discorl.envs.families import draws
from discorl.envs.families.base import PlaceFamily, PlaceState, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded


class GamblerParameters(NamedTuple):
    """One casino."""

    stakes: Array  # [tables] int32, what a round costs at each table, and pays if it is won
    chances: Array  # [tables] float32, probability of winning a round
    purse: Array  # [] int32, capital at the start


@dataclasses.dataclass(frozen=True)
class Gambler(PlaceFamily[GamblerParameters]):
    """Choose the tables to play at until the capital has reached the target, or is lost.

    Each action plays one round at one of the tables, which is won with the table's chance. The
    capital rises by the table's stake after a win and falls by it after a loss; a smaller capital
    is staked entirely. Reaching `target` pays 1, the only reward; it and ruin terminate the
    episode. After `limit` rounds the episode is truncated. The observation is the capital as a
    share of the target and the share of the rounds that are left: [2] float32.

    Whether small or large stakes are better depends on the chances, the capital and the rounds
    left. The value of a choice shows only at the end, through the luck of many rounds.

    Members differ in the stakes of the tables, from 1 to `stakes`; in their chances, from `good`
    for one of the tables and from `poor` for the others; and in the capital at the start, from a
    quarter of the target to half of it.

    Splits: the stakes of the tables sum to an even number in train members and to an odd one in
    held-out members, so the stake of some table differs.
    """

    tables: int = bounded(4, least=2)
    target: int = bounded(12, least=4)
    stakes: int = bounded(4, least=2)
    limit: int = bounded(32, least=1)
    good: Range[float] = bounded(Range(0.5, 0.65), least=0, most=1)
    poor: Range[float] = bounded(Range(0.2, 0.45), least=0, most=1)

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.tables, (2,), self.limit, (self.target + 1,))

    def draw(self, key: Key, parity: Array) -> GamblerParameters:
        stake_key, table_key, good_key, poor_key, purse_key = jax.random.split(key, 5)
        ranks = draws.index(stake_key, self.stakes, (self.tables,))
        is_good = jnp.arange(self.tables) == draws.index(table_key, self.tables)
        good = draws.number(good_key, self.good)
        poor = draws.number(poor_key, self.poor, (self.tables,))
        least = self.target // 4
        return GamblerParameters(
            stakes=1 + draws.with_parity_of_sum(ranks, self.stakes, parity + self.tables),
            chances=jnp.where(is_good, good, poor),
            purse=least + draws.index(purse_key, self.target // 2 - least + 1),
        )

    def start(self, parameters: GamblerParameters) -> Array:
        return parameters.purse

    def transition(
        self, parameters: GamblerParameters, state: PlaceState, action: Array, key: Key
    ) -> tuple[PlaceState, Array, Array]:
        won = jax.random.uniform(key) < parameters.chances[action]
        after_win, after_loss = self._outcomes(state.place, parameters.stakes[action])
        state = PlaceState(jnp.where(won, after_win, after_loss), state.time + 1)
        arrived = state.place == self.target
        return state, jnp.where(arrived, 1.0, 0.0), arrived | (state.place == 0)

    def _outcomes(self, capital: Array, stake: Array) -> tuple[Array, Array]:
        """The capital after a win and after a loss."""
        stake = jnp.minimum(stake, capital)
        return jnp.minimum(capital + stake, self.target), capital - stake

    def observe(self, parameters: GamblerParameters, state: PlaceState) -> Array:
        shares = (state.place / self.target, 1 - state.time / self.limit)
        return jnp.stack(shares).astype(jnp.float32)

    def observations(self, parameters: GamblerParameters) -> Array | None:
        return None

    def lookahead(self, parameters: GamblerParameters, time: Array, values: Array) -> Array:
        worth = values.at[0].set(0.0).at[self.target].set(1.0)
        capital = jnp.arange(self.target + 1)[:, None]
        after_win, after_loss = self._outcomes(capital, parameters.stakes)
        chances = parameters.chances
        return chances * worth[after_win] + (1 - chances) * worth[after_loss]
