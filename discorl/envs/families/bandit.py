"""Contextual bandits: the best arm depends on the observation."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.base import Step
from discorl.envs.families import draws
from discorl.envs.families.base import PlaceFamily, PlaceState, Sizes
from discorl.types import Array, Key, UserError
from discorl.types.specs import Range
from discorl.types.validation import bounded

_LARGEST_REWARD = 100.0


class BanditParameters(NamedTuple):
    """The rewards of the arms."""

    means: Array  # [contexts, arms] float32
    deviation: Array  # [] float32, standard deviation of the normal noise on every reward


@dataclasses.dataclass(frozen=True)
class Bandit(PlaceFamily[BanditParameters]):
    """An episode is `pulls` pulls, each in a newly drawn context; then it terminates.

    The observation is the context, one-hot, followed by `distractors` meaningless normal random
    numbers: [contexts + distractors] float32.

    Every (context, arm) has a mean reward: from `best` for the context's best arm, and from
    `others`, which lies below, for the others. The noise's standard deviation is from `noise`.

    Splits: the indices of the best arms sum to an even number over the contexts in train members
    and to an odd one in held-out members, so the best arm differs in some context.
    """

    contexts: int = bounded(4, least=1)
    arms: int = bounded(3, least=2)
    pulls: int = bounded(1, least=1)
    distractors: int = bounded(0, least=0)
    best: Range[float] = bounded(Range(0.5, 1.0), least=-_LARGEST_REWARD, most=_LARGEST_REWARD)
    others: Range[float] = bounded(Range(-1.0, 0.4), least=-_LARGEST_REWARD, most=_LARGEST_REWARD)
    noise: Range[float] = bounded(Range(0.0, 0.5), least=0, most=_LARGEST_REWARD)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Compared as drawn, in float32: the best arm decides the split and must not be ambiguous.
        if np.float32(self.others.high) >= np.float32(self.best.low):
            raise UserError(
                f"bandit: others must end below where best begins, got others={self.others} and "
                f"best={self.best}"
            )

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.arms, (self.contexts + self.distractors,), self.pulls, (self.contexts,))

    def draw(self, key: Key, parity: Array) -> BanditParameters:
        arm_key, best_key, other_key, deviation_key = jax.random.split(key, 4)
        best = draws.index(arm_key, self.arms, (self.contexts,))
        best = draws.with_parity_of_sum(best, self.arms, parity)
        is_best = jax.nn.one_hot(best, self.arms, dtype=bool)
        others = draws.number(other_key, self.others, is_best.shape)
        bests = draws.number(best_key, self.best, (self.contexts, 1))
        deviation = draws.number(deviation_key, self.noise)
        return BanditParameters(jnp.where(is_best, bests, others), deviation)

    def reset(self, parameters: BanditParameters, key: Key) -> tuple[PlaceState, Array]:
        return self._present(jnp.int32(0), key)

    def step(
        self, parameters: BanditParameters, state: PlaceState, action: Array, key: Key
    ) -> tuple[PlaceState, Step]:
        context_key, noise_key = jax.random.split(key)
        noise = parameters.deviation * jax.random.normal(noise_key)
        reward = parameters.means[state.place, action] + noise
        state, observation = self._present(state.time + 1, context_key)
        over = state.time >= self.pulls
        return state, Step(observation, reward, over, jnp.zeros((), bool))

    def _present(self, time: Array, key: Key) -> tuple[PlaceState, Array]:
        """A new context and its observation."""
        context_key, distractor_key = jax.random.split(key)
        context = draws.index(context_key, self.contexts)
        observation = jax.nn.one_hot(context, self.contexts)
        if self.distractors:
            noise = jax.random.normal(distractor_key, (self.distractors,))
            observation = jnp.concatenate([observation, noise])
        return PlaceState(context, time), observation

    def start(self, parameters: BanditParameters) -> None:
        """Any context."""

    def observations(self, parameters: BanditParameters) -> Array | None:
        return None

    def lookahead(self, parameters: BanditParameters, time: Array, values: Array) -> Array:
        """Mean rewards plus the mean value of a context: [contexts, arms]."""
        return parameters.means + values.mean()
