"""Types of what other packages return, so that states can be carried through compiled loops."""

import jax

from discorl.types import PyTree


def fix_types(tree: PyTree) -> PyTree:
    """Makes arrays of all leaves, with a type of their own instead of one that adapts to others.

    A compiled loop carries only what has the same type after a step as before it, and a Python
    number in a state ("weakly typed") would change when it meets an array.
    """

    def fix(leaf: PyTree) -> jax.Array:
        array = jax.numpy.asarray(leaf)
        if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):  # random keys
            return array
        return jax.lax.convert_element_type(array, array.dtype)

    return jax.tree.map(fix, tree)


def same_types(tree: PyTree) -> PyTree:
    """Shapes and dtypes alone, a pytree of `jax.ShapeDtypeStruct`."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
