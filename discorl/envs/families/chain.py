"""Chains: a reward at the far end, and temptations on the way."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from discorl.envs.families import draws
from discorl.envs.families.base import PlaceFamily, PlaceState, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded

_STEPS_PER_PLACE = 4  # the time limit, in multiples of the chain's length
_FATAL_SHARE = 0.3  # largest temptation, as a share of the goal, where it ends the episode


class ChainParameters(NamedTuple):
    """One chain."""

    correct: Array  # [length] int32, the action that leads on from each place
    places: Array  # [] int32, how many places of the `length` possible ones this chain has
    goal: Array  # [] float32, reward of completing the chain
    cost: Array  # [] float32, of every step
    temptations: Array  # [length] float32, immediate reward of a wrong action at each place
    fatal: Array  # [] bool, a wrong action terminates the episode
    setback: Array  # [] int32, places that a wrong action costs if it is not fatal


@dataclasses.dataclass(frozen=True)
class Chain(PlaceFamily[ChainParameters]):
    """From each place one action leads on; completing the chain pays `goal` and terminates.

    Every step costs a little. A wrong action pays an immediate temptation, and either terminates
    the episode or sets the agent back. Taking only correct actions is optimal, although a wrong one
    always pays more at once. After `4 * length` steps the episode is truncated. The observation is
    the place, one-hot: [length] float32.

    Members differ in the correct actions; in the number of places, from half of `length` to all;
    in the goal; in whether a wrong action is fatal, with probability `fatal`, or by how many
    places, from 1 to `length`, it sets back; in the temptations, from `temptation` in units of the
    largest that leaves the goal worthwhile: 0.3 of the goal if a wrong action is fatal, the cost of
    a step if it can be repeated.

    Splits: the correct actions of a chain's places sum to an even number in train members and to
    an odd one in held-out members, so chains of one length differ in some correct action.
    """

    length: int = bounded(6, least=2)
    actions: int = bounded(3, least=2)
    goal: Range[float] = bounded(Range(0.5, 1.5), least=0.01, most=100)
    temptation: Range[float] = bounded(Range(0.3, 0.9), least=0, most=1)
    fatal: float = bounded(0.5, least=0, most=1)

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.actions, (self.length,), _STEPS_PER_PLACE * self.length, (self.length,))

    def draw(self, key: Key, parity: Array) -> ChainParameters:
        correct_key, place_key, goal_key, temptation_key, fatal_key, setback_key = jax.random.split(
            key, 6
        )
        places = self.length - draws.index(place_key, self.length // 2 + 1)
        correct = draws.index(correct_key, self.actions, (self.length,))
        later = jnp.where(jnp.arange(self.length) < places, correct, 0)[1:].sum()
        first = draws.with_parity(correct[0], self.actions, parity + later)
        goal = draws.number(goal_key, self.goal)
        # Even the whole time limit costs no more than half the goal.
        cost = goal / (2 * self.horizon)
        fatal = jax.random.bernoulli(fatal_key, self.fatal)
        largest = jnp.where(fatal, _FATAL_SHARE * goal, cost)
        temptations = draws.number(temptation_key, self.temptation, (self.length,))
        return ChainParameters(
            correct=correct.at[0].set(first),
            places=places,
            goal=goal,
            cost=cost,
            temptations=temptations * largest,
            fatal=fatal,
            setback=1 + draws.index(setback_key, self.length),
        )

    def transition(
        self, parameters: ChainParameters, state: PlaceState, action: Array, key: Key
    ) -> tuple[PlaceState, Array, Array]:
        right = action == parameters.correct[state.place]
        back = jnp.maximum(state.place - parameters.setback, 0)
        state_after = PlaceState(jnp.where(right, state.place + 1, back), state.time + 1)
        complete = state_after.place >= parameters.places
        temptation = jnp.where(right, 0, parameters.temptations[state.place])
        reward = temptation + jnp.where(complete, parameters.goal, 0) - parameters.cost
        return state_after, reward, complete | (parameters.fatal & ~right)

    def lookahead(self, parameters: ChainParameters, time: Array, values: Array) -> Array:
        place = jnp.arange(self.length)
        # The value past the last place of the table is never used: a chain is complete there.
        ahead = jnp.where(place + 1 < parameters.places, jnp.roll(values, -1), parameters.goal)
        back = values[jnp.maximum(place - parameters.setback, 0)]
        wrong = parameters.temptations + jnp.where(parameters.fatal, 0, back)
        is_correct = jax.nn.one_hot(parameters.correct, self.actions, dtype=bool)
        return jnp.where(is_correct, ahead[:, None], wrong[:, None]) - parameters.cost
