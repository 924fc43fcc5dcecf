"""Where a training state lives when a process has several devices."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from discorl.training.config import TrainConfig
from discorl.training.state import TrainState
from discorl.types import PyTree

_AXIS = "parts"


def placement(config: TrainConfig, state: TrainState) -> Any:
    """Shardings of a state, a tree like it; None: one device has it all.

    Several seeds are spread over the devices, each of which trains its own. A single agent is
    spread by its environments, replay and batch, if `data_parallel` says so; every device then has
    the parameters.
    """
    parts = config.seeds if config.seeds > 1 else config.agent.data_parallel
    devices = jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if parts % n == 0)
    if count == 1:
        return None
    mesh = Mesh(np.array(devices[:count]), (_AXIS,))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((_AXIS,), ()))

    def everywhere(tree: PyTree, sharding: NamedSharding) -> PyTree:
        return jax.tree.map(lambda _: sharding, tree)

    if config.seeds > 1:
        return everywhere(state, split)
    shared = everywhere(state, whole)
    actor, replay = (everywhere(part, split) for part in (state.actor, state.replay))
    return dataclasses.replace(shared, actor=actor, replay=replay)
