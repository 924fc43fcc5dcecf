"""The optimiser: Adam, clipping, weight decay, schedules of the learning rate."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from discorl.agent.optimiser import Optimisation, scale_by_adam, with_learning_rate

pytestmark = pytest.mark.usefixtures("float64")


def run_optimizer(optimizer, gradients, start=1.0):
    params = {"a": jnp.full(3, start)}
    state, steps = optimizer.init(params), []
    for gradient in gradients:
        step, state = optimizer.update({"a": jnp.asarray(gradient)}, state, params)
        params = optax.apply_updates(params, step)
        steps.append(np.asarray(step["a"]))
    return np.array(steps)


GRADIENTS = np.random.default_rng(0).normal(size=(6, 3)) * [1e-9, 1.0, 1e3]


@pytest.mark.parametrize("epsilon", [1e-8, 1e-3])
def test_adam_is_adam(epsilon):
    ours = run_optimizer(scale_by_adam(epsilon=epsilon), GRADIENTS)
    theirs = run_optimizer(optax.scale_by_adam(eps=epsilon), GRADIENTS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_an_adam_state_can_be_donated():
    state = scale_by_adam().init({"w": jnp.ones(3)})
    moved = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)(state)
    assert moved.mu["w"].tolist() == moved.nu["w"].tolist() == [1, 1, 1]


def test_adam_has_no_gradient_through_its_second_moment():
    optimizer = scale_by_adam()

    def step(gradient):
        return optimizer.update(gradient, optimizer.init(gradient))[0]

    # The first step is g / |g|; with the denominator constant its slope is 1 / |g|.
    np.testing.assert_allclose(jax.grad(step)(jnp.float64(0.5)), 2.0, rtol=1e-6)


def test_elements_are_clipped_after_adam():
    gradients = np.array([[0.01, 0.01, 0.01]] + [[0.0, 100.0, -100.0]] * 2)
    free = run_optimizer(Optimisation(learning_rate=0.5, max_abs_update=1e9).optimizer(), gradients)
    ours = run_optimizer(Optimisation(learning_rate=0.5, max_abs_update=0.6).optimizer(), gradients)
    assert np.abs(free).max() > 0.3
    np.testing.assert_allclose(ours, np.clip(free, -0.3, 0.3), rtol=1e-9)


def test_norm_is_clipped_before_adam():
    plain = Optimisation(learning_rate=0.1, max_abs_update=1e9)
    clipped = dataclasses.replace(plain, max_gradient_norm=1.0)
    norms = np.linalg.norm(GRADIENTS, axis=1, keepdims=True)
    expected = run_optimizer(plain.optimizer(), GRADIENTS / np.maximum(norms, 1))
    np.testing.assert_allclose(run_optimizer(clipped.optimizer(), GRADIENTS), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"warmup": 2, "weight_decay": 0.1},
        {"schedule": "cosine", "steps": 5, "warmup": 2},
        {"schedule": "cosine", "steps": 4, "end_learning_rate": 0.25},
    ],
)
def test_a_learning_rate_in_the_state(settings):
    """The same steps, to the last bit, as with the rate in the program; and any other rate."""
    gradients = jnp.asarray(GRADIENTS, jnp.float32)

    def steps(optimizer, rate=None):
        state = optimizer.init(gradients[0])
        state = state if rate is None else with_learning_rate(state, rate)

        def step(carry, gradient):
            params, state = carry
            updates, state = optimizer.update(gradient, state, params)
            return (params + updates, state), updates

        return jax.jit(lambda carry: jax.lax.scan(step, carry, gradients)[1])((gradients[0], state))

    fixed, other = (Optimisation(learning_rate=rate, **settings) for rate in (0.7, 0.5))
    expected = steps(fixed.optimizer())
    np.testing.assert_array_equal(steps(fixed.optimizer(rate_in_state=True)), expected)
    np.testing.assert_array_equal(steps(other.optimizer(rate_in_state=True), 0.7), expected)
    assert not np.array_equal(steps(other.optimizer(rate_in_state=True)), expected)


def test_weight_decay_is_decoupled_and_comes_after_the_clip():
    optimizer = Optimisation(learning_rate=0.1, weight_decay=30.0).optimizer()
    steps = run_optimizer(optimizer, np.zeros((1, 3)), start=2.0)
    np.testing.assert_allclose(steps, -0.1 * 30.0 * 2.0)


def test_schedules():
    rates = Optimisation(learning_rate=0.2, steps=100).learning_rates()
    np.testing.assert_allclose([rates(t) for t in (0, 50, 1000)], 0.2)

    cosine = Optimisation(
        learning_rate=0.2, end_learning_rate=0.05, schedule="cosine", warmup=20, steps=120
    ).learning_rates()
    for t in (0, 7, 20):
        np.testing.assert_allclose(cosine(t), 0.2 * t / 20, rtol=1e-6)
    for t in (20, 45, 70, 120, 500):
        share = min(1.0, (t - 20) / 100)
        expected = 0.05 + 0.15 * 0.5 * (1 + np.cos(np.pi * share))
        np.testing.assert_allclose(cosine(t), expected, rtol=1e-6)

    rising = Optimisation(learning_rate=0.2, warmup=10, steps=100).learning_rates()
    np.testing.assert_allclose([rising(t) for t in (0, 5, 10, 90)], [0, 0.1, 0.2, 0.2], rtol=1e-6)
