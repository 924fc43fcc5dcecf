"""The base of hand-designed rules for an agent with a policy and a scalar value."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from discorl.rules import returns, searched
from discorl.rules.base import PLAIN, Rule
from discorl.types import Array, Metrics, Outputs, OutputSpec, Params, PyTree, Trajectory
from discorl.types.validation import bounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyAndValue(Rule):
    """Policy gradient along advantages, and a value that moves toward returns.

    Subclasses differ in how they estimate the two.
    """

    recipe: ClassVar[Mapping[str, Any]] = {
        **PLAIN,
        "num_envs": 8,
        "batch": 8,
        "replay_fraction": 0.0,
        "learning_rate": 1e-3,
        "unroll": 14,
        "max_gradient_norm": 1.0,
    }
    recipes: ClassVar[searched.Recipes] = searched.POLICY_AND_VALUE

    value_cost: float = bounded(0.5, least=0)  # weight of the value loss
    entropy_cost: float = bounded(0.01, least=0)  # weight of the entropy bonus

    def outputs(self, num_actions: int) -> OutputSpec:
        """A policy and a scalar value."""
        return OutputSpec(num_actions, state={"logits": (num_actions,), "value": ()})

    @abc.abstractmethod
    def estimate(
        self, trajectory: Trajectory, logits_t: Array, v_t: Array, v_tp1: Array, discount_t: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Targets, including "value" and "advantage", and metrics to be averaged.

        All are [T, B] and constant. Discounts are zero at terminations.
        """

    def targets(
        self, eta: Params, state: PyTree, trajectory: Trajectory, online: Outputs, target: Outputs
    ) -> tuple[dict[str, Array], PyTree, Metrics]:
        online = jax.lax.stop_gradient(online)
        v_t, v_tp1 = online["value"][:-1], online["value"][1:]
        discount_t = self.discount * (1 - trajectory.terminated.astype(v_t.dtype))
        targets, metrics = self.estimate(
            trajectory, self.policy(online)[:-1], v_t, v_tp1, discount_t
        )
        weight = trajectory.learnable(v_t.dtype)
        metrics = {"value": v_t, "advantage_size": jnp.abs(targets["advantage"]), **metrics}
        return targets, state, {n: returns.weighted_mean(x, weight) for n, x in metrics.items()}

    def loss(
        self, outputs: Outputs, targets: dict[str, Array], trajectory: Trajectory
    ) -> dict[str, Array]:
        """Terms "policy", "value" and "entropy"; see `Rule.loss`."""
        logits_t, v_t = outputs["logits"][:-1], outputs["value"][:-1]
        log_pi_t = returns.take_action(jax.nn.log_softmax(logits_t), trajectory.action)
        return {
            "policy": -log_pi_t * targets["advantage"],
            "value": self.value_cost * 0.5 * jnp.square(v_t - targets["value"]),
            "entropy": -self.entropy_cost * returns.entropy(logits_t),
        }
