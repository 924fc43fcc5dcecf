"""What adapters share: the item of a suite, and dtypes that compiled loops can carry."""

import dataclasses
import functools
from typing import Any

import jax

from discorl.envs.base import Environment
from discorl.types import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Adapted(Environment[PyTree]):
    """An environment of another package; its observations are like those of its `reset`."""

    item: str  # its name in the suite
    environment: Any  # the package's

    @functools.cached_property  # to trace a reset takes a while
    def observation(self) -> PyTree:
        observation = jax.eval_shape(self.reset, jax.random.key(0))[1]
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), observation)


def fix_types(tree: PyTree) -> PyTree:
    """Turns all leaves into arrays that are not weakly typed.

    A compiled loop only carries values whose types do not change, and a Python number in a state
    would change its type when it meets an array.
    """

    def fix(leaf: PyTree) -> jax.Array:
        array = jax.numpy.asarray(leaf)
        if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):  # random keys
            return array
        return jax.lax.convert_element_type(array, array.dtype)

    return jax.tree.map(fix, tree)
