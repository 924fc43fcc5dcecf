"""Layers as pairs of functions: one makes parameters, one applies them.

Dtypes follow the parameters, so a network whose parameters are float64 computes in float64.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from discorl.types import Array, Key, Params

# Keeps the scale of activations from layer to layer (He et al. 2015, arXiv:1502.01852). 0.88 is the
# standard deviation of a normal distribution that is truncated at two.
RELU_GAIN = 2**0.5 / 0.88


def truncated_normal(key: Key, shape: Sequence[int], stddev: float) -> Array:
    """Normal samples of the given scale, truncated at two standard deviations."""
    return stddev * jax.random.truncated_normal(key, -2.0, 2.0, tuple(shape))


def init_linear(key: Key, inputs: int, outputs: int, *, stddev: float | None = None) -> Params:
    """Weights of scale `stddev`, by default 1/sqrt(inputs); zero biases."""
    weights = truncated_normal(key, (inputs, outputs), stddev or inputs**-0.5)
    return {"w": weights, "b": jnp.zeros(outputs)}


def linear(layer: Params, x: Array) -> Array:
    """An affine map over the last axis."""
    return x @ layer["w"] + layer["b"]


def init_mlp(key: Key, inputs: int, sizes: Sequence[int], *, gain: float = 1.0) -> Params:
    """Linear layers of the given widths, named "0", "1", ..., with weights of gain/sqrt(inputs)."""
    widths = (inputs, *sizes)
    keys = jax.random.split(key, len(sizes)) if sizes else ()
    return {
        str(i): init_linear(k, widths[i], widths[i + 1], stddev=gain * widths[i] ** -0.5)
        for i, k in enumerate(keys)
    }


def mlp(layers: Params, x: Array) -> Array:
    """Applies the layers with ReLU between them and none after the last."""
    for i in range(len(layers)):
        x = linear(layers[str(i)], x if i == 0 else jax.nn.relu(x))
    return x


def lstm_step(gates: Array, cell: Array) -> tuple[Array, Array]:
    """New hidden state and cell, [..., H], from the sums of gate inputs i, g, f, o, [..., 4 H]."""
    i, g, f, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def take_action(values: Array, action: Array) -> Array:
    """Selects the taken action at each step: [T, B, A, ...] and [T, B] -> [T, B, ...]."""
    index = action.reshape(action.shape + (1,) * (values.ndim - action.ndim))
    return jnp.squeeze(jnp.take_along_axis(values, index, axis=action.ndim), axis=action.ndim)
