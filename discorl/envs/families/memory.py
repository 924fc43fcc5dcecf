"""Memory: a cue at the start determines the right action at the end."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from discorl.envs.families import draws
from discorl.envs.families.base import PlaceFamily, PlaceState, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded


class MemoryParameters(NamedTuple):
    """The answers to the cues."""

    answers: Array  # [cues] int32, a permutation: the action that each cue asks for
    delay: Array  # [] int32, steps from the cue to the question


@dataclasses.dataclass(frozen=True)
class Memory(PlaceFamily[MemoryParameters]):
    """A corridor of `delay` steps, where actions do nothing, and then a question.

    The first observation shows a random cue. At the end of the corridor the action that the cue
    asks for pays 1, any other -1, and the episode terminates. The observation is the cue, one-hot,
    and a flag that is 1 at the question: [cues + 1] float32. The cue is shown only at the first
    step, so an agent without memory can only guess; if `visible`, it is shown at every step. There
    are as many actions as cues.

    Members differ in the answers and in the delay.

    Splits: the answers are an even permutation in train members and an odd one in held-out
    members, so at least two cues ask for other actions.
    """

    cues: int = bounded(3, least=2)
    visible: bool = False
    delay: Range[int] = bounded(Range(1, 6), least=1, most=10_000)

    truncates = False

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.cues, (self.cues + 1,), self.delay.high + 1, (self.cues,))

    def draw(self, key: Key, parity: Array) -> MemoryParameters:
        answer_key, delay_key = jax.random.split(key)
        answers = draws.order(answer_key, self.cues)
        # Exchanging two answers changes the parity of a permutation.
        exchanged = answers.at[:2].set(answers[1::-1])
        keep = _inversions(answers) % 2 == parity
        return MemoryParameters(
            answers=jnp.where(keep, answers, exchanged),
            delay=draws.integer(delay_key, self.delay),
        )

    def start(self, parameters: MemoryParameters) -> None:
        """A random cue."""

    def transition(
        self, parameters: MemoryParameters, state: PlaceState, action: Array, key: Key
    ) -> tuple[PlaceState, Array, Array]:
        asked = state.time >= parameters.delay
        payment = jnp.where(action == parameters.answers[state.place], 1.0, -1.0)
        state = PlaceState(state.place, state.time + 1)
        return state, jnp.where(asked, payment, 0.0), asked

    def observe(self, parameters: MemoryParameters, state: PlaceState) -> Array:
        shown = jnp.logical_or(self.visible, state.time == 0)
        cue = jnp.where(shown, jax.nn.one_hot(state.place, self.cues), 0.0)
        flag = (state.time == parameters.delay).astype(jnp.float32)
        return jnp.concatenate([cue, flag[None]])

    def observations(self, parameters: MemoryParameters) -> Array | None:
        return None

    def lookahead(self, parameters: MemoryParameters, time: Array, values: Array) -> Array:
        """The payment at the question, before it the value of the next step: [cues, A]."""
        payments = 2 * jax.nn.one_hot(parameters.answers, self.cues) - 1
        walking = jnp.broadcast_to(values[:, None], payments.shape)
        return jnp.where(time < parameters.delay, walking, payments)


def _inversions(permutation: Array) -> Array:
    """Number of pairs in the wrong order, [] int; odd for an odd permutation."""
    return jnp.triu(permutation[:, None] > permutation).sum()
