"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from discorl.rules import returns, searched
from discorl.rules.base import PLAIN
from discorl.rules.policy_and_value import PolicyAndValue
from discorl.types import Array, Outputs, Trajectory
from discorl.types.validation import bounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPO(PolicyAndValue):
    """Several epochs over fresh experience, with clipped probability ratios.

    Advantages are generalised advantage estimates, normalised within each minibatch.
    """

    name: ClassVar[str] = "ppo"
    recipe: ClassVar[Mapping[str, Any]] = {
        **PLAIN,
        "num_envs": 32,
        "batch": 32,
        "replay_fraction": 0.0,
        "learning_rate": 4e-4,
        "unroll": 28,
        "max_gradient_norm": 0.5,
        "adam_epsilon": 1e-5,
    }
    recipes: ClassVar[searched.Recipes] = searched.PPO

    lambda_: float = bounded(0.95, least=0, most=1)  # of the advantage estimates
    clip: float = bounded(0.2, above=0)  # of the probability ratio, around 1
    value_clip: float | None = None  # of a value's change; None: no clip
    entropy_cost: float = 0.02  # weight of the entropy bonus
    epochs: int = 4
    minibatches: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value_clip is not None:
            self._fields().number("value_clip", above=0)

    def estimate(
        self, trajectory: Trajectory, logits_t: Array, v_t: Array, v_tp1: Array, discount_t: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Advantages, returns, and the old policy and values, "old_log_pi" and "old_value".

        See `PolicyAndValue.estimate`.
        """
        advantage_t = returns.gae(
            trajectory.reward, discount_t, v_t, v_tp1, trajectory.cut(), self.lambda_
        )
        log_mu_t = jax.nn.log_softmax(trajectory.behaviour_logits)
        targets = {
            "advantage": advantage_t,
            "value": v_t + advantage_t,
            "old_log_pi": returns.take_action(log_mu_t, trajectory.action),
            "old_value": v_t,
        }
        return targets, {}

    def loss(
        self, outputs: Outputs, targets: dict[str, Array], trajectory: Trajectory
    ) -> dict[str, Array]:
        """Terms "policy", "value" and "entropy"; see `Rule.loss`."""
        logits_t, v_t = outputs["logits"][:-1], outputs["value"][:-1]
        advantage_t = _normalise(targets["advantage"], trajectory.learnable(v_t.dtype))
        log_pi_t = returns.take_action(jax.nn.log_softmax(logits_t), trajectory.action)
        ratio_t = jnp.exp(log_pi_t - targets["old_log_pi"])
        clipped_t = jnp.clip(ratio_t, 1 - self.clip, 1 + self.clip)
        return {
            "policy": -jnp.minimum(ratio_t * advantage_t, clipped_t * advantage_t),
            "value": self.value_cost * 0.5 * self._value_error(v_t, targets),
            "entropy": -self.entropy_cost * returns.entropy(logits_t),
        }

    def _value_error(self, v_t: Array, targets: dict[str, Array]) -> Array:
        """Squared error of the value or of the clipped value, whichever is larger: [T, B]."""
        error_t = jnp.square(v_t - targets["value"])
        if self.value_clip is None:
            return error_t
        move_t = jnp.clip(v_t - targets["old_value"], -self.value_clip, self.value_clip)
        clipped_t = targets["old_value"] + move_t
        return jnp.maximum(error_t, jnp.square(clipped_t - targets["value"]))


def _normalise(x: Array, weight: Array) -> Array:
    """Scales to weighted mean zero and standard deviation one: [T, B] twice."""
    centred = x - returns.weighted_mean(x, weight)
    deviation = jnp.sqrt(returns.weighted_mean(jnp.square(centred), weight))
    return centred / (deviation + 1e-8)
