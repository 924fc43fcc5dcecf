"""REINFORCE with a learned baseline (Williams 1992, doi:10.1007/BF00992696)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from discorl.rules import returns
from discorl.rules.policy_and_value import PolicyAndValue
from discorl.types import Array, Metrics, Outputs, Params, PyTree, Trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradient(PolicyAndValue):
    """Policy gradient along discounted returns, less a learned value.

    Returns run to the end of the episode. Where the trajectory ends first, or a time limit cuts
    the episode, the value of the last observation stands in for what would have followed. Nothing
    corrects for experience of another policy: it has to come from the present one.
    """

    name: ClassVar[str] = "policy_gradient"

    def targets(
        self, eta: Params, state: PyTree, trajectory: Trajectory, online: Outputs, target: Outputs
    ) -> tuple[dict[str, Array], PyTree, Metrics]:
        """Returns and what they exceed the value by; see `Rule.targets`."""
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
