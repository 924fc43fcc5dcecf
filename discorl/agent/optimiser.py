"""The optimiser of agents and rules: Adam with elementwise clipping and a schedule."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discorl.agent.config import OptimiserConfig
from discorl.types import Array, Params, PyTree


class AdamState(NamedTuple):
    """Moments of the gradient, and the number of their updates."""

    steps: Array
    mu: Params
    nu: Params


def scale_by_adam(
    decay1: float = 0.9, decay2: float = 0.999, epsilon: float = 1e-8
) -> optax.GradientTransformation:
    """Adam (Kingma & Ba 2015) without gradients through the second moment.

    Discovery differentiates through the optimiser. The gradient of the root of the second moment
    explodes where a gradient is nearly zero, so it is stopped.
    """

    def init(params: Params) -> AdamState:
        # Two separate trees: a donated buffer may appear in a state only once.
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return AdamState(jnp.zeros((), jnp.int32), mu, nu)

    def update(
        gradients: Params, state: AdamState, params: Params | None = None
    ) -> tuple[Params, AdamState]:
        steps = state.steps + 1
        mu = jax.tree.map(lambda m, g: decay1 * m + (1 - decay1) * g, state.mu, gradients)
        nu = jax.tree.map(
            lambda n, g: decay2 * n + (1 - decay2) * jax.lax.stop_gradient(g * g),
            state.nu,
            gradients,
        )

        def step(m: Array, n: Array) -> Array:
            debias1 = 1 - jnp.asarray(decay1, m.dtype) ** steps
            debias2 = 1 - jnp.asarray(decay2, m.dtype) ** steps
            return (m / debias1) / (jnp.sqrt(jax.lax.stop_gradient(n) / debias2) + epsilon)

        return jax.tree.map(step, mu, nu), AdamState(steps, mu, nu)

    return optax.GradientTransformation(init, update)


def learning_rate_at(
    config: OptimiserConfig, step: Array | int, peak: Array | float, steps: Array | int, warmup: int
) -> Array:
    """The learning rate of the gradient step that follows `step` earlier ones.

    It rises linearly to `peak` over the first `warmup` of the schedule's `steps`.
    """
    rate = jnp.asarray(peak)
    if config.schedule == "cosine":
        length = jnp.maximum(1, steps - warmup)
        done = jnp.clip(step - warmup, 0, length)
        end = config.end_learning_rate
        rate = end + (rate - end) * (0.5 * (1 + jnp.cos(jnp.pi * done / length)))
    if warmup:
        rate = jnp.where(step < warmup, peak * step / warmup, rate)
    return rate


class Optimiser(NamedTuple):
    """An optax gradient transformation that knows its learning rate."""

    init: optax.TransformInitFn
    update: optax.TransformUpdateExtraArgsFn
    learning_rate: Callable[[PyTree], Array]  # of the next step, from the state


def make_optimiser(config: OptimiserConfig, *, steps: int = 1, warmup: int = 0) -> Optimiser:
    """Clip of the norm, Adam, clip of each element, weight decay, learning rate.

    The learning rate and the length of its schedule are part of the state, so one compiled program
    serves all values; `with_learning_rate` and `with_schedule_steps` change them. No gradient flows
    to either. `steps` and `warmup` count gradient steps; `config.warmup_steps`, which counts
    environment steps, is not read.
    """

    def chain(learning_rate: Array, schedule_steps: Array) -> optax.GradientTransformation:
        peak = jax.lax.stop_gradient(learning_rate)
        transformations = [
            scale_by_adam(epsilon=config.adam_epsilon),
            optax.clip(config.max_abs_update),
        ]
        if config.max_gradient_norm > 0:
            transformations.insert(0, optax.clip_by_global_norm(config.max_gradient_norm))
        if config.weight_decay > 0:
            transformations.append(optax.add_decayed_weights(config.weight_decay))
        schedule = lambda step: learning_rate_at(config, step, peak, schedule_steps, warmup)  # noqa: E731
        return optax.chain(*transformations, optax.scale_by_learning_rate(schedule))

    def learning_rate(state: PyTree) -> Array:
        peak, length = (state.hyperparams[name] for name in ("learning_rate", "schedule_steps"))
        return learning_rate_at(config, state.count, peak, length, warmup)

    made = optax.inject_hyperparams(chain)(
        learning_rate=config.learning_rate, schedule_steps=np.asarray(steps, np.int32)
    )
    return Optimiser(made.init, made.update, learning_rate)


def with_learning_rate(state: PyTree, learning_rate: float | Array) -> PyTree:
    """Changes the learning rate in the state of an optimiser, or in a tree that holds one."""
    old = optax.tree.get(state, "learning_rate")
    return optax.tree.set(state, learning_rate=jnp.full_like(old, learning_rate))


def with_schedule_steps(state: PyTree, steps: int | Array) -> PyTree:
    """Likewise changes the number of gradient steps that the schedule spans.

    The state of a user's optimiser without a schedule is returned unchanged.
    """
    old = optax.tree.get(state, "schedule_steps")
    if old is None:
        return state
    return optax.tree.set(state, schedule_steps=jnp.full_like(old, steps))
