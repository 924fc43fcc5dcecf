"""Networks behind a preprocessing step."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from discorl.networks.base import Network
from discorl.types import PyTree


def make_prepared(
    make: Callable[[PyTree], Network],
    observation: PyTree,
    prepare: Callable[[PyTree], PyTree] | None,
) -> Network:
    """Makes a network that is applied to `prepare(observations)`, [N, ...].

    `make` takes shapes and dtypes of one prepared observation; `observation` holds those before
    preparation. `prepare` is a pure function; None: no preprocessing.
    """
    if prepare is None:
        return make(observation)
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), observation)
    seen = jax.eval_shape(prepare, batch)
    network = make(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), seen))

    def of_prepared(function: Callable[[Any, PyTree], Any]) -> Callable[[Any, PyTree], Any]:
        return lambda first, observation: function(first, prepare(observation))

    init = of_prepared(network.init)
    if network.recurrence is not None:
        # Only the recurrence reads observations.
        encode = of_prepared(network.recurrence.encode)
        recurrence = dataclasses.replace(network.recurrence, encode=encode)
        return dataclasses.replace(network, init=init, recurrence=recurrence)
    parts = network.parts
    if parts is not None:
        parts = dataclasses.replace(parts, observe=of_prepared(parts.observe))
    return Network(init, of_prepared(network.apply), parts)
