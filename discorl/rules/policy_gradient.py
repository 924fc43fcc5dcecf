"""REINFORCE with a learned baseline (Williams 1992, doi:10.1007/BF00992696)."""

import dataclasses
from typing import ClassVar

from discorl.rules import returns
from discorl.rules.policy_and_value import PolicyAndValue
from discorl.types import Array, Trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradient(PolicyAndValue):
    """Policy gradient along discounted returns, with a learned value as baseline.

    Returns run to the end of the episode. Where the trajectory ends first, or a time limit cuts the
    episode, they bootstrap from the value of the last observation. Nothing corrects for off-policy
    data: experience must come from the current policy.
    """

    name: ClassVar[str] = "policy_gradient"

    def estimate(
        self, trajectory: Trajectory, logits_t: Array, v_t: Array, v_tp1: Array, discount_t: Array
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Returns, and returns minus values; see `PolicyAndValue.estimate`."""
        # With lambda 1, all values between a step and the end cancel out.
        advantage_t = returns.gae(
            trajectory.reward, discount_t, v_t, v_tp1, trajectory.cut(), lambda_=1.0
        )
        return {"value": v_t + advantage_t, "advantage": advantage_t}, {}
