"""Plain convolutions: MinAtar's network for small grids, and that of DQN for images.

Young & Tian 2019, arXiv:1903.03176; Mnih et al. 2015, Nature 518. Both convolve without padding,
with a ReLU after each layer.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from discorl.networks.layers import RELU_GAIN, init_linear
from discorl.types import Array, Key, Params, UserError

SIDE = 3  # of a kernel, unless the layer has its own
NATURE = ((8, 4), (4, 2))  # sides and strides of the first layers of DQN's network
PIECE_BYTES = 2**18  # of patches, which fit in the processor's cache
MIN_PIECE = 2  # images in a piece: matrix products with fewer rows are slow


def _layer(i: int, first: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return first[i] if i < len(first) else (SIDE, 1)


def init_convolutions(
    key: Key,
    channels: int,
    filters: Sequence[int],
    first: Sequence[tuple[int, int]] = (),
    gain: float = 1.0,
) -> Params:
    """One layer per filter count, named "0", "1", ...; a kernel is a matrix [patch, filters]."""
    widths = (channels, *filters)
    layers = {}
    for i, k in enumerate(jax.random.split(key, len(filters))):
        patch = _layer(i, first)[0] ** 2 * widths[i]
        layers[str(i)] = init_linear(k, patch, widths[i + 1], stddev=gain * patch**-0.5)
    return layers


def convolutions(layers: Params, image: Array, first: Sequence[tuple[int, int]] = ()) -> Array:
    """Encodes images, [N, height, width, channels] -> [N, features].

    `first` holds sides and strides of the first layers; all others are 3 x 3 with stride 1.
    """
    x = image
    for i in range(len(layers)):
        side, stride = _layer(i, first)
        if min(x.shape[1:3]) < side:
            raise UserError(
                f"an image of {image.shape[1]} x {image.shape[2]} is too small for the torso: "
                f"{x.shape[1]} x {x.shape[2]} are left for convolution {i + 1} of {len(layers)}, "
                f"expected at least {side} a side; use fewer filters or another torso"
            )
        x = jax.nn.relu(_convolve(layers[str(i)], x, side, stride))
    return x.reshape(x.shape[0], -1)


init_nature = functools.partial(init_convolutions, first=NATURE, gain=RELU_GAIN)
nature = functools.partial(convolutions, first=NATURE)


def _convolve(layer: Params, x: Array, side: int, stride: int) -> Array:
    x = _blocks(x, stride)
    kernel = layer["w"].reshape(side // stride, side // stride, x.shape[-1], -1)
    return convolve(x, kernel) + layer["b"]


def convolve(x: Array, kernel: Array) -> Array:
    """Convolves images [N, height, width, I] with a kernel [side, side, I, O], without padding."""
    return jax.lax.platform_dependent(x, kernel, cpu=_by_products, default=_by_library)


def _by_library(x: Array, kernel: Array) -> Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=numbers)


def _by_products(x: Array, kernel: Array) -> Array:
    """Convolves as matrix products of patches, a few images at a time.

    XLA's CPU backend has no fast gradients of convolutions in the body of a loop, where training
    runs. These products are 5 to 50 times as fast (`benchmarks/convolutions.py`).
    """
    side, count = kernel.shape[0], x.shape[0]
    height, width = x.shape[1] - side + 1, x.shape[2] - side + 1
    # Filters are rows, because XLA computes the gradient of [filters, patch] two to three times as
    # fast as that of [patch, filters].
    rows = kernel.reshape(-1, kernel.shape[-1]).T

    def convolve_some(images: Array) -> Array:
        shifted = [
            images[:, i : i + height, j : j + width] for i in range(side) for j in range(side)
        ]
        return jnp.concatenate(shifted, axis=-1) @ rows.T

    image_bytes = height * width * rows.shape[1] * x.dtype.itemsize
    size = min(count, max(MIN_PIECE, PIECE_BYTES // image_bytes))
    pieces = math.ceil(count / size)
    padded = jnp.pad(x, [(0, size * pieces - count)] + [(0, 0)] * 3)
    # Patches are recomputed for the gradient: they are side^2 times as large as the images.
    some = jax.checkpoint(convolve_some, prevent_cse=False)
    y = jax.lax.map(some, padded.reshape(pieces, size, *x.shape[1:]))
    return y.reshape(-1, *y.shape[2:])[:count]


def _blocks(x: Array, size: int) -> Array:
    """Pixels of a block become channels, [N, height / size, width / size, size^2 channels].

    A kernel whose stride divides its side then has stride 1, which is faster on a CPU. Rows and
    columns that no kernel reaches are dropped.
    """
    if size == 1:
        return x
    count, height, width, channels = x.shape
    rows, columns = height // size, width // size
    x = x[:, : rows * size, : columns * size].reshape(count, rows, size, columns, size, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(count, rows, columns, size * size * channels)
