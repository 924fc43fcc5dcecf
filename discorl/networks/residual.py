"""The residual convolutional encoder of IMPALA (Espeholt et al. 2018, arXiv:1802.01561)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from discorl.networks.layers import truncated_normal
from discorl.types import Array, Key, Params

BLOCKS = 2  # residual blocks a section


def _init_convolution(key: Key, inputs: int, outputs: int) -> Params:
    scale = (9 * inputs) ** -0.5
    return {"w": truncated_normal(key, (3, 3, inputs, outputs), scale), "b": jnp.zeros(outputs)}


def _convolution(layer: Params, x: Array) -> Array:
    y = jax.lax.conv_general_dilated(
        x, layer["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + layer["b"]


def _halve(x: Array) -> Array:
    """Max-pooling over 3 x 3 windows with stride 2."""
    # Of numpy: only a constant tells JAX that this is a maximum, which it can differentiate.
    lowest = np.array(-np.inf, x.dtype)
    return jax.lax.reduce_window(x, lowest, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def init_residual(key: Key, channels: int, filters: Sequence[int]) -> Params:
    """One section a filter count, each with a convolution and its residual blocks."""
    sections = {}
    for i, section_key in enumerate(jax.random.split(key, len(filters))):
        first, *rest = jax.random.split(section_key, 1 + 2 * BLOCKS)
        section = {"first": _init_convolution(first, channels, filters[i])}
        for j, block_key in enumerate(rest):
            section[str(j)] = _init_convolution(block_key, filters[i], filters[i])
        sections[str(i)] = section
        channels = filters[i]
    return sections


def residual(sections: Params, image: Array) -> Array:
    """Encodes images, [N, height, width, channels] -> [N, features]."""
    x = image
    for i in range(len(sections)):
        section = sections[str(i)]
        x = _halve(_convolution(section["first"], x))
        for j in range(BLOCKS):
            y = _convolution(section[str(2 * j)], jax.nn.relu(x))
            x = x + _convolution(section[str(2 * j + 1)], jax.nn.relu(y))
    return jax.nn.relu(x).reshape(x.shape[0], -1)
