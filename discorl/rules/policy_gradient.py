"""REINFORCE with a learned baseline (Williams 1992, doi:10.1007/BF00992696)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from discorl import returns
from discorl.rules.base import Rule
from discorl.types import Array, Metrics, Outputs, OutputSpec, Params, PyTree, Trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradient(Rule):
    """Policy gradient along discounted returns, less a learned value.

    Returns run to the end of the episode. Where the trajectory ends first, or a time limit cuts
    the episode, the value of the last observation stands in for what would have followed. Nothing
    corrects for experience of another policy: it has to come from the present one.
    """

    name: ClassVar[str] = "policy_gradient"
    recipe: ClassVar[Mapping[str, Any]] = {
        "environments": 8,
        "batch": 8,
        "replay_fraction": 0.0,
        "learning_rate": 1e-3,
        "unroll": 14,
        "max_gradient_norm": 1.0,
        "adam_epsilon": 1e-8,
    }

    value_cost: float = 0.5  # weight of the value loss
    entropy_cost: float = 0.01  # weight of the entropy bonus

    def outputs(self, num_actions: int) -> OutputSpec:
        """A policy and a scalar value."""
        return OutputSpec(num_actions, state={"logits": (num_actions,), "value": ()})

    def targets(
        self,
        eta: Params,
        state: PyTree,
        trajectory: Trajectory,
        online: Outputs,
        target: Outputs,
    ) -> tuple[dict[str, Array], PyTree, Metrics]:
        """Returns and what they exceed the value by; see `Rule.targets`.

        Returns:
            {"value", "advantage"}, each [T, B] and constant; the state as it was; metrics.
        """
        del eta, target
        online = jax.lax.stop_gradient(online)
        v_t, v_tp1 = online["value"][:-1], online["value"][1:]
        discount_t = self.discount * (1 - trajectory.terminated.astype(v_t.dtype))
        # Without decay of the errors, every value between a step and the end cancels out.
        advantage_t = returns.gae(
            trajectory.reward, discount_t, v_t, v_tp1, trajectory.cut(), lambda_=1.0
        )
        weight = trajectory.learnable(v_t.dtype)
        metrics = {
            "value": returns.weighted_mean(v_t, weight),
            "advantage_size": returns.weighted_mean(jnp.abs(advantage_t), weight),
        }
        return {"value": v_t + advantage_t, "advantage": advantage_t}, state, metrics

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
