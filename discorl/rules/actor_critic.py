"""Actor-critic with V-trace: the rule of IMPALA (Espeholt et al. 2018, arXiv:1802.01561)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from discorl.rules import returns
from discorl.rules.policy_and_value import PolicyAndValue
from discorl.types import Array, Metrics, Outputs, Params, PyTree, Trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCritic(PolicyAndValue):
    """Policy gradient along V-trace advantages, with a value learned from V-trace targets.

    Importance ratios clipped at one correct for experience of an older policy, so moderately
    replayed trajectories may be learned from as well.
    """

    name: ClassVar[str] = "actor_critic"

    lambda_: float = 0.95  # decay of the traces
    entropy_cost: float = 0.03  # weight of the entropy bonus

    def targets(
        self, eta: Params, state: PyTree, trajectory: Trajectory, online: Outputs, target: Outputs
    ) -> tuple[dict[str, Array], PyTree, Metrics]:
        """V-trace value targets and advantages; see `Rule.targets`."""
        del eta, target
        online = jax.lax.stop_gradient(online)
        logits_t = online["logits"][:-1]
        v_t, v_tp1 = online["value"][:-1], online["value"][1:]
        discount_t = self.discount * (1 - trajectory.terminated.astype(v_t.dtype))
        rho_t = returns.importance_ratio(logits_t, trajectory.behaviour_logits, trajectory.action)
        vs_t, advantage_t = returns.vtrace(
            trajectory.reward, discount_t, v_t, v_tp1, rho_t, trajectory.cut(), self.lambda_
        )
        weight = trajectory.learnable(v_t.dtype)
        metrics = {
            "value": returns.weighted_mean(v_t, weight),
            "advantage_size": returns.weighted_mean(jnp.abs(advantage_t), weight),
            "importance_ratio": returns.weighted_mean(rho_t, weight),
        }
        return {"value": vs_t, "advantage": advantage_t}, state, metrics
