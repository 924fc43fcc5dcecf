"""Optimal stopping: accept an offer or wait for a better one."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from discorl.envs.families import draws
from discorl.envs.families.base import Family, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded

_ACCEPT, _WAIT, _ADVERTISE = range(3)


class OffersParameters(NamedTuple):
    """One market."""

    tickets: Array  # [kinds] int32, in proportion to which kinds of offers are made
    worths: Array  # [kinds] float32, what accepting an offer of each kind pays
    cost: Array  # [] float32, of waiting for a step
    fee: Array  # [] float32, of advertising for a step
    meanings: Array  # [3] int32, what each action does: accept, wait, advertise


class OffersState(NamedTuple):
    """The current offer and the seller's fame."""

    offer: Array  # [] int32, 0 if there is none, else the kind plus one
    fame: Array  # [] int32, from 0 to `levels - 1`
    time: Array  # [] int32, steps taken


@dataclasses.dataclass(frozen=True)
class Offers(Family[OffersParameters, OffersState]):
    """Accept one of several random offers, or wait and advertise for better ones.

    Held out from discovery and from the choice of settings, for tests on an unseen kind of task.

    The actions accept the offer, wait, and advertise, in a member-specific order. Accepting
    pays the offer's worth, which is negative for some kinds, and terminates the episode; without
    an offer, it pays nothing. Waiting costs `cost`. Advertising costs `fee` and raises the
    fame by one, up to `levels - 1`. An offer that is not accepted is gone. The next one is the best
    of several draws, one more than the fame after the step. A kind is drawn with the probability
    of its tickets divided by `kinds * tickets`; if none is, there is no offer. The episode also
    terminates after `limit` steps.

    The observation is [kinds + 2] float32: the kind of the offer, one-hot, or zeros if there is
    none, the fame as a share of the greatest, and the share of the episode that is left.

    The worth of a kind shows only when it is accepted, and a policy that accepts early never sees
    the benefit of waiting. Which offers are good enough depends on the fame and the time left.

    Members differ in the tickets of each kind, from 1 to `tickets`; in the worth of the best kind,
    from `best`, and of the others, shares of it from `others`; in the cost of waiting and the fee
    of advertising, shares of it from `cost` and `fee`; and in the meanings of the actions.

    Splits: the tickets of all kinds sum to an even number in train members and to an odd one in
    held-out members, so the tickets of some kind differ.
    """

    kinds: int = bounded(8, least=2)
    tickets: int = bounded(4, least=2)
    levels: int = bounded(4, least=2)
    limit: int = bounded(32, least=1)
    best: Range[float] = bounded(Range(0.5, 1.5), least=0.01, most=100)
    others: Range[float] = bounded(Range(-0.6, 0.9), least=-1, most=1)
    cost: Range[float] = bounded(Range(0.02, 0.06), least=0, most=1)
    fee: Range[float] = bounded(Range(0.05, 0.25), least=0, most=1)

    truncates = False

    @property
    def sizes(self) -> Sizes:
        return Sizes(3, (self.kinds + 2,), self.limit, (self.kinds + 1, self.levels))

    def draw(self, key: Key, parity: Array) -> OffersParameters:
        ticket_key, kind_key, best_key, other_key, cost_key, fee_key, meaning_key = (
            jax.random.split(key, 7)
        )
        extra = draws.index(ticket_key, self.tickets, (self.kinds,))
        best = draws.number(best_key, self.best)
        others = draws.number(other_key, self.others, (self.kinds,))
        is_best = jnp.arange(self.kinds) == draws.index(kind_key, self.kinds)
        return OffersParameters(
            tickets=1 + draws.with_parity_of_sum(extra, self.tickets, parity + self.kinds),
            worths=best * jnp.where(is_best, 1.0, others),
            cost=best * draws.number(cost_key, self.cost),
            fee=best * draws.number(fee_key, self.fee),
            meanings=draws.order(meaning_key, 3),
        )

    def _worths(self, parameters: OffersParameters) -> Array:
        """Of no offer and of every kind: [kinds + 1]."""
        return jnp.append(0.0, parameters.worths)

    def _chances(self, parameters: OffersParameters) -> Array:
        """Probability of no offer and of every kind, by fame: [levels, kinds + 1]."""
        chances = parameters.tickets / (self.kinds * self.tickets)
        chances = jnp.append(1 - chances.sum(), chances)
        # The probability that the best of n draws is at most this good is the n-th power of that
        # for a single draw.
        ranks = jnp.argsort(jnp.argsort(self._worths(parameters)))
        upto = jnp.where(ranks <= ranks[:, None], chances, 0).sum(axis=1)
        draws = 1 + jnp.arange(self.levels)[:, None]
        return upto**draws - (upto - chances) ** draws

    def _offer(self, parameters: OffersParameters, fame: Array, key: Key) -> Array:
        bounds = jnp.cumsum(self._chances(parameters)[fame])
        return jnp.sum(jax.random.uniform(key) >= bounds[:-1]).astype(jnp.int32)

    def begin(self, parameters: OffersParameters, key: Key) -> OffersState:
        fame = jnp.int32(0)
        return OffersState(self._offer(parameters, fame, key), fame, jnp.int32(0))

    def transition(
        self, parameters: OffersParameters, state: OffersState, action: Array, key: Key
    ) -> tuple[OffersState, Array, Array]:
        meaning = parameters.meanings[action]
        fame = jnp.minimum(state.fame + (meaning == _ADVERTISE), self.levels - 1)
        worth = self._worths(parameters)[state.offer]
        state = OffersState(self._offer(parameters, fame, key), fame, state.time + 1)
        reward = jnp.stack([worth, -parameters.cost, -parameters.fee])[meaning]
        return state, reward, (meaning == _ACCEPT) | (state.time >= self.limit)

    def observe(self, parameters: OffersParameters, state: OffersState) -> Array:
        shares = jnp.stack([state.fame / (self.levels - 1), 1 - state.time / self.limit])
        kind = jax.nn.one_hot(state.offer - 1, self.kinds)
        return jnp.concatenate([kind, shares]).astype(jnp.float32)

    def starts(self, parameters: OffersParameters) -> Array:
        """Without fame: [kinds + 1, levels]."""
        chances = self._chances(parameters)[0]
        return jnp.zeros(self.sizes.situations).at[:, 0].set(chances)

    def lookahead(self, parameters: OffersParameters, time: Array, values: Array) -> Array:
        ahead = jnp.sum(self._chances(parameters).T * values, axis=0)  # [levels]
        more = ahead[jnp.minimum(jnp.arange(self.levels) + 1, self.levels - 1)]
        shape = self.sizes.situations
        accept = jnp.broadcast_to(self._worths(parameters)[:, None], shape)
        wait = jnp.broadcast_to(ahead - parameters.cost, shape)
        advertise = jnp.broadcast_to(more - parameters.fee, shape)
        choices = jnp.stack([accept, wait, advertise], axis=-1)
        return choices[..., parameters.meanings]
