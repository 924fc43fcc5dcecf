"""A network with a preprocessing step."""

import dataclasses
from collections.abc import Callable

from discorl.networks.base import Network, Parts
from discorl.types import Key, Outputs, Params, PyTree


def prepared(network: Network, prepare: Callable[[PyTree], PyTree]) -> Network:
    """The network applied to `prepare(observations)`, [N, ...]; `prepare` is a pure function."""

    def init(key: Key, observation: PyTree) -> Params:
        return network.init(key, prepare(observation))

    if network.recurrence is not None:
        encode = network.recurrence.encode

        def encode_prepared(params: Params, observation: PyTree) -> PyTree:
            return encode(params, prepare(observation))

        # The rest of the network reads what its recurrence makes of observations.
        seeing = dataclasses.replace(network.recurrence, encode=encode_prepared)
        return dataclasses.replace(network, init=init, recurrence=seeing)

    def apply(params: Params, observation: PyTree) -> Outputs:
        return network.apply(params, prepare(observation))

    parts = network.parts
    if parts is None:
        return Network(init, apply)
    observe = parts.observe

    def observe_prepared(params: Params, observation: PyTree) -> tuple[Outputs, PyTree]:
        return observe(params, prepare(observation))

    return Network(init, apply, Parts(observe_prepared, parts.all_actions, parts.taken_actions))
