"""Placement of a training state on several devices, in one process or in many."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from discorl.runs import processes
from discorl.training.config import TrainConfig
from discorl.training.state import TrainState
from discorl.types import Array, PyTree

_AXIS = "parts"


def place(state: TrainState, shardings: Any) -> TrainState:
    """Shards a state as `placement` says; a process holds all of it or its own shards."""

    def placed(x: Array, sharding: NamedSharding) -> Array:
        if x.sharding == sharding:
            return x
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    return jax.tree.map(placed, state, shardings)


def placement(config: TrainConfig, state: TrainState) -> Any:
    """Shardings of a state, a tree like it; None: one device holds it all.

    Several seeds are spread over the devices, each of which trains its own. With `data_parallel`, a
    single agent's environments, replay and batch are sharded and its parameters are replicated. All
    processes use the same number of devices.
    """
    parts = config.seeds if config.seeds > 1 else config.agent.data_parallel
    devices: dict[int, list[jax.Device]] = {}
    for device in processes.devices():
        devices.setdefault(device.process_index, []).append(device)
    most = min(map(len, devices.values()))
    each = max((n for n in range(1, most + 1) if parts % (n * len(devices)) == 0), default=0)
    chosen = [device for of_process in devices.values() for device in of_process[:each]]
    if len(chosen) < 2:
        return None
    mesh = Mesh(np.array(chosen), (_AXIS,))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((_AXIS,), ()))

    def everywhere(tree: PyTree, sharding: NamedSharding) -> PyTree:
        return jax.tree.map(lambda _: sharding, tree)

    if config.seeds > 1:
        return everywhere(state, split)
    shared = everywhere(state, whole)
    actor, replay = (everywhere(part, split) for part in (state.actor, state.replay))
    return dataclasses.replace(shared, actor=actor, replay=replay)
