"""A network with a preprocessing step."""

import dataclasses
from collections.abc import Callable
from typing import Any

from discorl.networks.base import Network
from discorl.types import PyTree


def prepared(network: Network, prepare: Callable[[PyTree], PyTree]) -> Network:
    """The network applied to `prepare(observations)`, [N, ...]; `prepare` is a pure function."""

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
