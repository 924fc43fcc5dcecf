"""Rivers: a large reward upstream, against the current, and a small one at the start."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from discorl.envs.families import draws
from discorl.envs.families.base import PlaceFamily, PlaceState, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded

_STEPS_PER_PLACE = 8  # the time limit, in multiples of the river's length
_CARRIED = 0.25  # share of failed strokes upstream that end one place downstream


class RiverSwimParameters(NamedTuple):
    """One river."""

    places: Array  # [] int32, how many places of the `length` possible ones this river has
    rapids: Array  # [length] bool, where a stroke upstream succeeds half as often
    current: Array  # [] float32, probability that a stroke upstream fails in calm water
    source: Array  # [] float32, reward of swimming upstream at the last place
    mouth: Array  # [] float32, reward of swimming downstream at the first place
    mirrored: Array  # [] bool, the two actions are exchanged


@dataclasses.dataclass(frozen=True)
class RiverSwim(PlaceFamily[RiverSwimParameters]):
    """Swim upstream to the large reward, against the current, or settle for the mouth.

    After RiverSwim (Strehl and Littman, 2008). The actions are downstream and upstream, exchanged
    in half of the members. A stroke downstream always moves one place. A stroke upstream fails with
    the probability of the current; a quarter of the failures carry the swimmer one place downstream
    and the others leave it where it is. In rapids, a stroke upstream succeeds half as often.
    Swimming upstream at the last place pays `source` each time, swimming downstream at the first
    place a small share of it, and everything else nothing. An episode begins at the first place and
    is truncated after `8 * length` steps. The observation is the place, one-hot: [length] float32.

    Members differ in the number of places, from half of `length` to all; in where there are rapids;
    in the current, from `current`; in the reward at the source, from `source`; in the reward at the
    mouth, a share of that from `mouth`; and in which action is which.

    Splits: a river has an even number of rapids in train members and an odd one in held-out
    members, so rivers of one length differ in some place.
    """

    length: int = bounded(6, least=3)
    # With a current of 1, strokes upstream would always fail.
    current: Range[float] = bounded(Range(0.1, 0.5), least=0, most=0.9)
    source: Range[float] = bounded(Range(0.05, 0.15), least=0.001, most=100)
    mouth: Range[float] = bounded(Range(0.01, 0.1), least=0, most=0.5)

    @property
    def sizes(self) -> Sizes:
        return Sizes(2, (self.length,), _STEPS_PER_PLACE * self.length, (self.length,))

    def draw(self, key: Key, parity: Array) -> RiverSwimParameters:
        place_key, rapid_key, current_key, source_key, mouth_key, mirror_key = jax.random.split(
            key, 6
        )
        places = self.length - draws.index(place_key, self.length // 2 + 1)
        rapids = jax.random.bernoulli(rapid_key, 0.5, (self.length,))
        rapids &= jnp.arange(self.length) < places
        # Rapids at the first place give their number its parity.
        first = (rapids[1:].sum() + parity) % 2 == 1
        source = draws.number(source_key, self.source)
        return RiverSwimParameters(
            places=places,
            rapids=rapids.at[0].set(first),
            current=draws.number(current_key, self.current),
            source=source,
            mouth=source * draws.number(mouth_key, self.mouth),
            mirrored=jax.random.bernoulli(mirror_key),
        )

    def transition(
        self, parameters: RiverSwimParameters, state: PlaceState, action: Array, key: Key
    ) -> tuple[PlaceState, Array, Array]:
        chance = jax.random.uniform(key)
        succeeds, carried = _chances(parameters, parameters.rapids[state.place])
        upstream = (action == 1) != parameters.mirrored
        against = jnp.where(chance < succeeds, 1, jnp.where(chance < succeeds + carried, -1, 0))
        change = jnp.where(upstream, against, -1)
        at_source, at_mouth = state.place == parameters.places - 1, state.place == 0
        reward = jnp.where(
            upstream,
            jnp.where(at_source, parameters.source, 0.0),
            jnp.where(at_mouth, parameters.mouth, 0.0),
        )
        place = jnp.clip(state.place + change, 0, parameters.places - 1)
        return PlaceState(place, state.time + 1), reward, jnp.zeros((), bool)

    def lookahead(self, parameters: RiverSwimParameters, time: Array, values: Array) -> Array:
        """Of a stroke downstream and one upstream at each place: [length, 2]."""
        place = jnp.arange(self.length)
        last = parameters.places - 1
        below, above = values[jnp.maximum(place - 1, 0)], values[jnp.minimum(place + 1, last)]
        succeeds, carried = _chances(parameters, parameters.rapids)
        stays = 1 - succeeds - carried
        upstream = jnp.where(place == last, parameters.source, 0.0)
        upstream += succeeds * above + carried * below + stays * values
        downstream = jnp.where(place == 0, parameters.mouth, 0.0) + below
        return jnp.where(
            parameters.mirrored,
            jnp.stack([upstream, downstream], axis=-1),
            jnp.stack([downstream, upstream], axis=-1),
        )


def _chances(parameters: RiverSwimParameters, rapids: Array) -> tuple[Array, Array]:
    """Probabilities that a stroke upstream succeeds and that it is carried downstream."""
    succeeds = (1 - parameters.current) * jnp.where(rapids, 0.5, 1.0)
    return succeeds, _CARRIED * (1 - succeeds)
