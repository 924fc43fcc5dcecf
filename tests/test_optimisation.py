"""The optimiser: Adam, clipping, weight decay, schedules of the learning rate."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from discorl.agent.config import OptimiserConfig
from discorl.agent.optimiser import (
    learning_rate_at,
    make_optimiser,
    scale_by_adam,
    with_learning_rate,
    with_schedule_steps,
)

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
    free = run_optimizer(
        make_optimiser(OptimiserConfig(learning_rate=0.5, max_abs_update=1e9)), gradients
    )
    ours = run_optimizer(
        make_optimiser(OptimiserConfig(learning_rate=0.5, max_abs_update=0.6)), gradients
    )
    assert np.abs(free).max() > 0.3
    np.testing.assert_allclose(ours, np.clip(free, -0.3, 0.3), rtol=1e-9)


def test_norm_is_clipped_before_adam():
    plain = OptimiserConfig(learning_rate=0.1, max_abs_update=1e9)
    clipped = dataclasses.replace(plain, max_gradient_norm=1.0)
    norms = np.linalg.norm(GRADIENTS, axis=1, keepdims=True)
    expected = run_optimizer(make_optimiser(plain), GRADIENTS / np.maximum(norms, 1))
    np.testing.assert_allclose(
        run_optimizer(make_optimiser(clipped), GRADIENTS), expected, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("settings", "warmup"),
    [
        ({}, 0),
        ({"weight_decay": 0.1}, 2),
        ({"schedule": "cosine"}, 2),
        ({"schedule": "cosine", "end_learning_rate": 0.25}, 0),
    ],
)
def test_the_learning_rate_and_its_schedule_are_part_of_the_state(settings, warmup):
    """One program makes the steps of any rate and schedule, to the last bit."""
    gradients = jnp.asarray(GRADIENTS, jnp.float32)
    wanted, other = (OptimiserConfig(learning_rate=rate, **settings) for rate in (0.7, 0.5))
    program = make_optimiser(other, steps=9, warmup=warmup)

    def step(carry, gradient):
        params, state = carry
        updates, state = program.update(gradient, state, params)
        return (params + updates, state), updates

    @jax.jit
    def run(state):
        return jax.lax.scan(step, (gradients[0], state), gradients)[1]

    expected = run(make_optimiser(wanted, steps=5, warmup=warmup).init(gradients[0]))
    start = program.init(gradients[0])
    changed = with_schedule_steps(with_learning_rate(start, 0.7), 5)
    np.testing.assert_array_equal(run(changed), expected)
    assert not np.array_equal(run(start), expected)
    rate = learning_rate_at(wanted, 3, 0.7, 5, warmup)
    plain = run_optimizer(optax.chain(scale_by_adam(), optax.clip(1.0)), GRADIENTS)
    if not wanted.weight_decay:
        np.testing.assert_allclose(expected[3], -rate * plain[3], rtol=1e-4)


def test_no_gradient_flows_to_the_learning_rate():
    optimizer = make_optimiser(OptimiserConfig(learning_rate=0.5, schedule="cosine"), steps=4)

    def moved(rate):
        state = with_learning_rate(optimizer.init(jnp.ones(2)), rate)
        return optimizer.update(jnp.ones(2), state, jnp.ones(2))[0].sum()

    assert jax.grad(moved)(0.3) == 0


def test_weight_decay_is_decoupled_and_comes_after_the_clip():
    optimizer = make_optimiser(OptimiserConfig(learning_rate=0.1, weight_decay=30.0))
    steps = run_optimizer(optimizer, np.zeros((1, 3)), start=2.0)
    np.testing.assert_allclose(steps, -0.1 * 30.0 * 2.0)


def test_schedules():
    constant = OptimiserConfig(learning_rate=0.2)
    rates = [learning_rate_at(constant, t, 0.2, steps=100, warmup=0) for t in (0, 50, 1000)]
    np.testing.assert_allclose(rates, 0.2)
    rates = [learning_rate_at(constant, t, 0.2, steps=100, warmup=10) for t in (0, 5, 10, 90)]
    np.testing.assert_allclose(rates, [0, 0.1, 0.2, 0.2], rtol=1e-6)

    cosine = OptimiserConfig(learning_rate=0.2, end_learning_rate=0.05, schedule="cosine")
    for t in (0, 7, 20):
        rate = learning_rate_at(cosine, t, 0.2, steps=120, warmup=20)
        np.testing.assert_allclose(rate, 0.2 * t / 20, rtol=1e-6)
    for t in (20, 45, 70, 120, 500):
        share = min(1.0, (t - 20) / 100)
        expected = 0.05 + 0.15 * 0.5 * (1 + np.cos(np.pi * share))
        rate = learning_rate_at(cosine, t, 0.2, steps=120, warmup=20)
        np.testing.assert_allclose(rate, expected, rtol=1e-6)
