"""Helpers of adapters: their base class, dtypes that compiled loops can carry, one-hot cells."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax

from discorl.envs.base import Environment
from discorl.types import Array, PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Adapted(Environment[PyTree]):
    """An environment of another package; `reset` determines the observation's shapes."""

    item: str  # its name in the suite
    environment: Any  # of the package
    num_actions: int

    @functools.cached_property  # tracing a reset takes a while
    def observation(self) -> PyTree:
        observation = jax.eval_shape(self.reset, jax.random.key(0))[1]
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), observation)


def fix_types(tree: PyTree) -> PyTree:
    """Turns all leaves into arrays that are not weakly typed.

    A compiled loop only carries values whose types do not change, and a Python number in a state
    changes its type when combined with an array.
    """

    def fix(leaf: PyTree) -> jax.Array:
        array = jax.numpy.asarray(leaf)
        if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):  # random keys
            return array
        return jax.lax.convert_element_type(array, array.dtype)

    return jax.tree.map(fix, tree)


def one_hot_cells(cells: Array, sizes: Sequence[int]) -> Array:
    """Properties of cells, [rows, columns, len(sizes)] uint8, as [rows, columns, sum(sizes)] bool.

    Integer codes would be read as quantities by a network.
    """
    codes = [jax.nn.one_hot(cells[..., i], size, dtype=bool) for i, size in enumerate(sizes)]
    return jax.numpy.concatenate(codes, axis=-1)
