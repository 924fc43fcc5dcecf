"""The optimiser of agents and rules: Adam, each element of its step clipped, and a schedule."""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from discorl.types import Array, Params, PyTree

Schedule = Literal["constant", "cosine"]


class AdamState(NamedTuple):
    """Moments of the gradient, and how often they were updated."""

    steps: Array
    mu: Params
    nu: Params


class RateState(NamedTuple):
    """Gradient steps so far, and the learning rate that the schedule goes up to."""

    steps: Array
    learning_rate: Array


def scale_by_adam(
    decay1: float = 0.9, decay2: float = 0.999, epsilon: float = 1e-8
) -> optax.GradientTransformation:
    """Adam (Kingma & Ba 2015) whose second moment is a constant to differentiation.

    Discovery differentiates through the optimiser. The gradient of the root of the second moment
    explodes where a gradient is nearly zero, so none flows there.
    """

    def init(params: Params) -> AdamState:
        # Two trees of their own: a buffer that is donated may stand in a state only once.
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return AdamState(jnp.zeros((), jnp.int32), mu, nu)

    def update(
        gradients: Params, state: AdamState, params: Params | None = None
    ) -> tuple[Params, AdamState]:
        del params
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


@dataclasses.dataclass(frozen=True)
class Optimisation:
    """Settings of an optimiser."""

    learning_rate: float = 3e-4
    end_learning_rate: float = 0.0  # where a cosine schedule arrives
    schedule: Schedule = "constant"
    warmup: int = 0  # gradient steps of linear warm-up
    steps: int = 1  # gradient steps of the whole run, over which the schedule is laid
    weight_decay: float = 0.0  # decoupled, as in AdamW
    max_abs_update: float = 1.0  # clip of each element of Adam's step
    max_gradient_norm: float = 0.0  # clip of the gradient's norm, before Adam; 0: none
    adam_epsilon: float = 1e-8

    def learning_rates(self, learning_rate: float | Array | None = None) -> optax.Schedule:
        """The learning rate as a function of the gradient step.

        Args:
            learning_rate: in place of the settings' own; an array is no part of the program.
        """
        peak: Any = self.learning_rate if learning_rate is None else learning_rate
        if self.schedule == "cosine":
            after = optax.cosine_decay_schedule(
                peak,
                max(1, self.steps - self.warmup),
                alpha=self.end_learning_rate / peak,
            )
        else:
            after = optax.constant_schedule(peak)
        if self.warmup == 0:
            return after
        rise = optax.linear_schedule(0.0, peak, self.warmup)
        return optax.join_schedules([rise, after], [self.warmup])

    def optimizer(self, *, rate_in_state: bool = False) -> optax.GradientTransformation:
        """Clip of the norm, Adam, clip of each element, weight decay, learning rate.

        Args:
            rate_in_state: keep the learning rate in the state, where `with_learning_rate` changes
                it, so that one compiled program serves all learning rates.
        """
        transformations = [
            scale_by_adam(epsilon=self.adam_epsilon),
            optax.clip(self.max_abs_update),
        ]
        if self.max_gradient_norm > 0:
            transformations.insert(0, optax.clip_by_global_norm(self.max_gradient_norm))
        if self.weight_decay > 0:
            transformations.append(optax.add_decayed_weights(self.weight_decay))
        if rate_in_state:
            transformations.append(self._scale_by_rate_in_state())
        else:
            transformations.append(optax.scale_by_learning_rate(self.learning_rates()))
        return optax.chain(*transformations)

    def _scale_by_rate_in_state(self) -> optax.GradientTransformation:
        def init(params: Params) -> RateState:
            del params
            return RateState(jnp.zeros((), jnp.int32), jnp.asarray(self.learning_rate, float))

        def update(
            updates: Params, state: RateState, params: Params | None = None
        ) -> tuple[Params, RateState]:
            del params
            rate = self.learning_rates(state.learning_rate)(state.steps)
            scaled = jax.tree.map(lambda u: jnp.asarray(-rate, u.dtype) * u, updates)
            return scaled, state._replace(steps=state.steps + 1)

        return optax.GradientTransformation(init, update)


def with_learning_rate(state: PyTree, learning_rate: float | Array) -> PyTree:
    """A state, of whatever holds an optimiser with its rate in the state, with another rate."""

    def change(node: PyTree) -> PyTree:
        if not isinstance(node, RateState):
            return node
        return node._replace(learning_rate=jnp.full_like(node.learning_rate, learning_rate))

    return jax.tree.map(change, state, is_leaf=lambda node: isinstance(node, RateState))
