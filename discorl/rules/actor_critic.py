"""Actor-critic with V-trace: the rule of IMPALA (Espeholt et al. 2018, arXiv:1802.01561)."""

import dataclasses
from typing import ClassVar

from discorl.rules import returns
from discorl.rules.policy_and_value import PolicyAndValue
from discorl.types import Array, Trajectory
from discorl.types.validation import bounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCritic(PolicyAndValue):
    """Policy gradient along V-trace advantages, with a value learned from V-trace targets.

    Importance ratios, clipped at one, correct for off-policy data, so moderate replay is possible.
    """

    name: ClassVar[str] = "actor_critic"

    lambda_: float = bounded(0.95, least=0, most=1)  # decay of the traces
    entropy_cost: float = 0.03  # weight of the entropy bonus

    def estimate(
        self, trajectory: Trajectory, logits_t: Array, v_t: Array, v_tp1: Array, discount_t: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """V-trace value targets and advantages; see `PolicyAndValue.estimate`."""
        rho_t = returns.importance_ratio(logits_t, trajectory.behaviour_logits, trajectory.action)
        vs_t, advantage_t = returns.vtrace(
            trajectory.reward, discount_t, v_t, v_tp1, rho_t, trajectory.cut(), self.lambda_
        )
        return {"value": vs_t, "advantage": advantage_t}, {"importance_ratio": rho_t}
