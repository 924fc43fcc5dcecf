"""Dtypes of what other packages return, so that compiled loops can carry their states."""

import jax

from discorl.types import PyTree


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


def same_types(tree: PyTree) -> PyTree:
    """Shapes and dtypes: a pytree of `jax.ShapeDtypeStruct`."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
