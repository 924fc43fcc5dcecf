"""The residual encoder against XLA's own convolution and pooling, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discorl.networks import convolutions, residual

FILTERS = (2, 3)


def by_xla(sections, image):
    """The same encoder, of operations whose derivatives are JAX's own."""

    def convolution(layer, x):
        dimensions = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(
            x, layer["w"], (1, 1), "SAME", dimension_numbers=dimensions
        )
        return y + layer["b"]

    def pool(x):
        lowest = np.array(-np.inf, x.dtype)
        return jax.lax.reduce_window(x, lowest, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    x = image
    for _, section in sorted(sections.items()):
        x = pool(convolution(section["first"], x))
        for one, other in (("0", "1"), ("2", "3")):
            y = convolution(section[one], jax.nn.relu(x))
            x += convolution(section[other], jax.nn.relu(y))
    return jax.nn.relu(x).reshape(x.shape[0], -1)


def value(encoder):
    return lambda params, image: jnp.sin(encoder(params, image)).sum()


def gradient(encoder):
    return jax.grad(value(encoder), argnums=(0, 1))


def gradient_of_gradient(encoder):
    def size(params, image):
        return sum(jnp.square(x).sum() for x in jax.tree.leaves(gradient(encoder)(params, image)))

    return jax.grad(size, argnums=(0, 1))


def forward_over_reverse(encoder):
    return lambda params, image: jax.jvp(
        lambda params: jax.grad(value(encoder))(params, image), (params,), (params,)
    )


def agents_at_once(encoder):
    def of_one(params, image):
        return jax.vmap(lambda scale: gradient(encoder)(scale_by(scale, params), image))(
            jnp.array([0.5, 2.0])
        )

    return of_one


def scale_by(scale, params):
    return jax.tree.map(lambda x: scale * x, params)


@pytest.mark.parametrize(
    "quantity",
    [lambda encoder: encoder, gradient, gradient_of_gradient, forward_over_reverse, agents_at_once],
    ids=["values", "gradient", "gradient_of_gradient", "forward_over_reverse", "agents_at_once"],
)
@pytest.mark.parametrize("size", [(8, 9), (5, 1)])
def test_encoder_and_its_derivatives_are_those_of_xlas_operations(quantity, size, monkeypatch):
    # Three images make two pieces in the first layers and one in the last.
    monkeypatch.setattr(convolutions, "PIECE_BYTES", 2 * np.prod(size) * 27 * 8)
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        shapes = jax.eval_shape(
            lambda key: residual.init_residual(key, 3, FILTERS), jax.random.key(0)
        )
        params = jax.tree.map(lambda x: 0.3 * rng.normal(size=x.shape), shapes)
        image = rng.normal(size=(3, *size, 3))
        ours = jax.jit(quantity(residual.residual))(params, image)
        expected = jax.jit(quantity(by_xla))(params, image)
        jax.tree.map(assert_equal_but_for_rounding, ours, expected)


def assert_equal_but_for_rounding(ours, expected):
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_products_are_the_convolutions_of_other_devices(monkeypatch):
    monkeypatch.setattr(convolutions, "PIECE_BYTES", 2 * 4 * 5 * 18 * 8)  # two images of five
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x, kernel = rng.normal(size=(5, 6, 7, 2)), rng.normal(size=(3, 3, 2, 4))
        ours = convolutions._by_products(x, kernel)
        assert_equal_but_for_rounding(ours, convolutions._by_library(x, kernel))
