"""Random numbers that members of families are made of."""

import jax
import jax.numpy as jnp

from discorl.types import Array, Key
from discorl.types.specs import Range


def index(key: Key, size: Array | int, shape: tuple[int, ...] = ()) -> Array:
    """Numbers from 0 to size - 1, int32 of the given shape.

    It is as good as `jax.random.randint` for small sizes, and several times cheaper to compile and
    to run, which matters because episodes begin all the time.
    """
    number = jnp.floor(jax.random.uniform(key, shape) * size).astype(jnp.int32)
    return jnp.minimum(number, size - 1)  # the product may round up to the size


def integer(key: Key, within: Range[int]) -> Array:
    """A whole number in a range, [] int32."""
    return within.low + index(key, within.high - within.low + 1)


def number(key: Key, within: Range[float], shape: tuple[int, ...] = ()) -> Array:
    """Numbers in a range, float32 of the given shape."""
    return jax.random.uniform(key, shape, jnp.float32, *within)


def order(key: Key, size: int) -> Array:
    """The numbers from 0 to size - 1, shuffled: [size] int32."""
    return jnp.argsort(jax.random.uniform(key, (size,))).astype(jnp.int32)


def with_parity(number: Array, size: int, wanted: Array) -> Array:
    """The number if it has the wanted parity, else a neighbour in [0, size) that has."""
    # An even number swaps with the next one. The last number of an odd size goes one down.
    neighbour = jnp.where((number ^ 1) < size, number ^ 1, number - 1)
    return jnp.where(number % 2 == wanted % 2, number, neighbour)


def with_parity_of_sum(numbers: Array, size: int, wanted: Array) -> Array:
    """Numbers in [0, size) of any shape; the first changes if their sum needs another parity."""
    flat = numbers.ravel()
    first = with_parity(flat[0], size, wanted + flat[1:].sum())
    return flat.at[0].set(first).reshape(numbers.shape)
