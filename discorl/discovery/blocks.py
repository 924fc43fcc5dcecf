"""Blocks of agents: their assignment to devices, and the sum of their contributions to the rule.

A block is a program on one device, whose shape follows from the settings. The sum over blocks adds
agents in order. Results therefore depend on the settings, never on the number of devices.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from discorl.runs import processes
from discorl.types import Array

_AXIS = "devices"


@dataclasses.dataclass(frozen=True)
class Block:
    """Agents of one group that run as one program on one device."""

    group: int
    first: int  # index of its first agent in the group
    start: int  # index of its first agent in the population
    count: int

    @property
    def agents(self) -> slice:
        """Its agents in an array over the population, [agents]."""
        return slice(self.start, self.start + self.count)


def split(counts: Sequence[int], size: int) -> list[Block]:
    """The blocks of a population, given the number of agents in each group.

    A block has `size` agents, 0 for the whole group; the last block of a group may be smaller.
    """
    starts = itertools.accumulate(counts, initial=0)
    return [
        Block(group, first, start + first, min(size or count, count - first))
        for group, (count, start) in enumerate(zip(counts, starts, strict=False))
        for first in range(0, count, size or count)
    ]


def deal(costs: Sequence[float], places: int) -> list[int]:
    """Assigns each block to a place, the most expensive first, to the least loaded place."""
    load = [0.0] * places
    chosen = [0] * len(costs)
    for block in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        place = min(range(places), key=lambda p: (load[p], p))
        chosen[block] = place
        load[place] += costs[block]
    return chosen


class OrderedSum:
    """Sums rows of numbers, one for each agent, in the order of the agents.

    Every device gets a slice of all rows (all-to-all), sums it and shares the result (all-gather).
    """

    def __init__(
        self, blocks: Sequence[Block], devices: Sequence[jax.Device], every: Sequence[jax.Device]
    ) -> None:
        """Lays out the rows, given the device of each block, and `every` device.

        A device without a block takes part only if its process has no other device that does.
        """
        held: dict[jax.Device, list[int]] = {}
        for i, device in enumerate(devices):
            held.setdefault(device, []).append(i)
        for device in every:
            if all(device.process_index != other.process_index for other in held):
                held[device] = []
        self._height = max(sum(blocks[i].count for i in rows) for rows in held.values())
        self._order = np.zeros(sum(block.count for block in blocks), np.int32)
        for place, rows in enumerate(held.values()):
            offset = place * self._height
            for i in rows:
                self._order[blocks[i].agents] = offset + np.arange(blocks[i].count)
                offset += blocks[i].count
        self._held = {d: rows for d, rows in held.items() if processes.owns(d)}
        self._mesh = Mesh(np.array(list(held)), (_AXIS,))
        processes.connect(self._mesh)  # before compiling, whose duration varies between processes
        self.program = jax.jit(
            jax.shard_map(
                self._add,
                mesh=self._mesh,
                in_specs=PartitionSpec(_AXIS),
                out_specs=PartitionSpec(),
                check_vma=False,
            )
        )

    def __call__(self, rows: Mapping[int, Array], like: jax.ShapeDtypeStruct) -> Array:
        """The sum, [R], on a device of this process.

        Each block of this process has rows [agents of the block, R]; `like` is the shape and dtype
        of the sum.
        """
        total = self.program(self.place(rows, like)).addressable_data(0)
        return total[: like.shape[0]]

    def place(self, rows: Mapping[int, Array], like: jax.ShapeDtypeStruct) -> Array:
        """The rows of all devices as one array, padded with zeros.

        It is [devices x rows, R rounded up to a multiple of the devices].
        """
        count = self._mesh.size
        shape = (self._height, -(-like.shape[0] // count) * count)
        parts = [
            _stack([rows[i] for i in blocks], shape)
            if blocks
            else jnp.zeros(shape, like.dtype, device=device)
            for device, blocks in self._held.items()
        ]
        sharding = NamedSharding(self._mesh, PartitionSpec(_AXIS))
        whole = (count * shape[0], shape[1])
        return jax.make_array_from_single_device_arrays(whole, sharding, parts)

    def _add(self, rows: Array) -> Array:
        slices = jax.lax.all_to_all(rows, _AXIS, split_axis=1, concat_axis=0, tiled=True)
        total, _ = jax.lax.scan(
            lambda total, i: (total + slices[i], None),
            jnp.zeros_like(slices[0]),
            jnp.asarray(self._order),
        )
        return jax.lax.all_gather(total, _AXIS, tiled=True)


@functools.partial(jax.jit, static_argnums=1)
def _stack(rows: Sequence[Array], shape: tuple[int, int]) -> Array:
    """Concatenates rows and pads them with zeros to the shape."""
    stacked = jnp.concatenate(rows)
    return jnp.pad(stacked, [(0, n - m) for n, m in zip(shape, stacked.shape, strict=True)])
