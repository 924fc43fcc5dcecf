"""Plain convolutions for small grids, as in the network of MinAtar (Young & Tian 2019)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from discorl.networks.layers import init_linear, linear
from discorl.types import Array, Key, Params, UserError

SIDE = 3  # of every kernel


def init_convolutions(key: Key, channels: int, filters: Sequence[int]) -> Params:
    """One layer per filter count, named "0", "1", ...; a kernel is kept as a matrix of patches."""
    widths = (channels, *filters)
    keys = jax.random.split(key, len(filters))
    return {
        str(i): init_linear(k, SIDE * SIDE * widths[i], widths[i + 1]) for i, k in enumerate(keys)
    }


def convolutions(layers: Params, image: Array) -> Array:
    """Encodes images, [N, height, width, channels] -> [N, features].

    Each layer convolves without padding and applies a ReLU. It is a product of patches with a
    matrix: on a CPU, XLA's convolutions of so few pixels are slower, above all with several seeds.

    Raises:
        UserError: the image is too small for so many layers.
    """
    least = len(layers) * (SIDE - 1) + 1
    if min(image.shape[1:3]) < least:
        raise UserError(
            f"torso is 'conv' with {len(layers)} filters, but an observation has "
            f"{image.shape[1]} x {image.shape[2]} pixels; expected at least {least} a side"
        )
    x = image
    for i in range(len(layers)):
        x = jax.nn.relu(linear(layers[str(i)], _patches(x)))
    return x.reshape(x.shape[0], -1)


def _patches(x: Array) -> Array:
    """[N, height, width, channels] -> [N, height - 2, width - 2, 9 channels]."""
    height, width = (side - SIDE + 1 for side in x.shape[1:3])
    shifted = [x[:, i : i + height, j : j + width] for i in range(SIDE) for j in range(SIDE)]
    return jnp.concatenate(shifted, axis=-1)
