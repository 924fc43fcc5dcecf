"""Random Markov decision processes, given as tables."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from discorl.envs.families import draws
from discorl.envs.families.base import PlaceFamily, PlaceState, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded

_SURE_REWARD = 1.0  # of one pair, so that every member has a reward
_LEAST_BRANCH = 0.2  # weight of a successor before normalisation, relative to the largest possible


class TabularParameters(NamedTuple):
    """The tables; `S` is the number of states, `A` of actions and `K` of successors of a pair."""

    successors: Array  # [S, A, K] int32, states that may follow
    probabilities: Array  # [S, A, K] float32, of the successors
    rewards: Array  # [S, A] float32
    hazards: Array  # [S] float32, probability that the episode terminates on entering a state
    appearance: Array  # [S, features] float32, the observation of each state


@dataclasses.dataclass(frozen=True)
class Tabular(PlaceFamily[TabularParameters]):
    """A sparse random decision process with a uniformly random first state.

    A (state, action) pair leads to `branches` random states, with random probabilities. A share
    `rewarded` of the pairs pay a reward, normally distributed over the pairs, and one pays 1 for
    certain; the others pay nothing. A share `hazardous` of the states terminate the episode on
    entry with a probability from `hazard`. After `limit` steps the episode is truncated.

    The observation is the state, one-hot, [states] float32; or, if `features` is not 0, a fixed
    vector of normal random numbers for each state, [features] float32.

    Splits: the successors of all pairs sum to an even number in train members and to an odd one
    in held-out members, so some pair has other successors.
    """

    states: int = bounded(8, least=2)
    actions: int = bounded(3, least=2)
    branches: int = bounded(2, least=1)
    features: int = bounded(0, least=0)
    limit: int = bounded(32, least=1)
    rewarded: float = bounded(0.3, least=0, most=1)
    hazardous: float = bounded(0.25, least=0, most=1)
    hazard: Range[float] = bounded(Range(0.1, 0.5), least=0, most=1)

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.actions, (self.features or self.states,), self.limit, (self.states,))

    def draw(self, key: Key, parity: Array) -> TabularParameters:
        keys = iter(jax.random.split(key, 7))
        pairs = (self.states, self.actions)
        shape = (*pairs, self.branches)
        successors = draws.index(next(keys), self.states, shape)
        weights = jax.random.uniform(next(keys), shape, minval=_LEAST_BRANCH)
        pays = jax.random.bernoulli(next(keys), self.rewarded, pairs)
        hazardous = jax.random.bernoulli(next(keys), self.hazardous, (self.states,))
        hazards = draws.number(next(keys), self.hazard, (self.states,))
        appearance = jnp.eye(self.states)
        if self.features:
            appearance = jax.random.normal(next(keys), (self.states, self.features))
        rewards = jnp.where(pays, jax.random.normal(next(keys), pairs), 0)
        return TabularParameters(
            successors=draws.with_parity_of_sum(successors, self.states, parity),
            probabilities=weights / weights.sum(axis=-1, keepdims=True),
            rewards=rewards.at[0, 0].set(_SURE_REWARD),
            hazards=jnp.where(hazardous, hazards, 0),
            appearance=appearance,
        )

    def start(self, parameters: TabularParameters) -> None:
        """Any state."""

    def observe(self, parameters: TabularParameters, state: PlaceState) -> Array:
        return parameters.appearance[state.place]

    def transition(
        self, parameters: TabularParameters, state: PlaceState, action: Array, key: Key
    ) -> tuple[PlaceState, Array, Array]:
        pair = (state.place, action)
        chances = jax.random.uniform(key, (2,))
        below = jnp.cumsum(parameters.probabilities[pair])[:-1]
        place = parameters.successors[pair][jnp.sum(chances[0] >= below)]
        over = chances[1] < parameters.hazards[place]
        return PlaceState(place, state.time + 1), parameters.rewards[pair], over

    def lookahead(self, parameters: TabularParameters, time: Array, values: Array) -> Array:
        """Rewards plus the value of the successors that do not end the episode: [S, A]."""
        survived = ((1 - parameters.hazards) * values)[parameters.successors]
        return parameters.rewards + (parameters.probabilities * survived).sum(axis=-1)
