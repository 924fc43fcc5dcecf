"""The residual convolutional encoder of IMPALA (Espeholt et al. 2018, arXiv:1802.01561)."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from discorl.networks.convolutions import convolve
from discorl.networks.layers import truncated_normal
from discorl.types import Array, Key, Params

BLOCKS = 2  # residual blocks a section


def _init_convolution(key: Key, inputs: int, outputs: int) -> Params:
    scale = (9 * inputs) ** -0.5
    return {"w": truncated_normal(key, (3, 3, inputs, outputs), scale), "b": jnp.zeros(outputs)}


def _convolution(layer: Params, x: Array) -> Array:
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return convolve(padded, layer["w"]) + layer["b"]


def _halve(x: Array) -> Array:
    """Max-pooling over 3 x 3 windows with stride 2.

    It pools rows, then columns, because the gradient of XLA's own pooling is slow.
    """
    for axis in (1, 2):
        outputs = -(-x.shape[axis] // 2)
        missing = 2 * outputs + 1 - x.shape[axis]
        padding = [(0, 0)] * x.ndim
        padding[axis] = (missing // 2, missing - missing // 2)
        padded = jnp.pad(x, padding, constant_values=-jnp.inf)
        every_second = [
            jax.lax.slice_in_dim(padded, k, k + 2 * outputs - 1, stride=2, axis=axis)
            for k in range(3)
        ]
        x = functools.reduce(jnp.maximum, every_second)
    return x


def init_residual(key: Key, channels: int, filters: Sequence[int]) -> Params:
    """One section per filter count, each with a convolution and residual blocks."""
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
