"""Updates that a new meta-network can imitate: each makes a policy target from an agent's outputs.

A teacher sees the policy and the scalar action values of a Disco agent. Its target is a
distribution, as those of the Disco rule are.
"""

import dataclasses

import jax
import jax.numpy as jnp

from discorl import rules
from discorl.rules import masks
from discorl.rules.lean import Lean, LeanState
from discorl.rules.regularisers import LEAST, improved_policy
from discorl.types import Array, Outputs, Params, PyTree, Trajectory, UserError

MUESLI = "muesli"
_PREFIX = "imitation:"
_CLIP = 1.0  # of the advantages, as in Muesli


class Teacher:
    """Muesli's update as a distribution, see `improved_policy`; other teachers extend this."""

    def init_state(self, lifetime: Array) -> PyTree:
        """What the teacher remembers at the beginning of a life of so many updates, [] int32."""
        return ()

    def policy(
        self,
        state: PyTree,
        trajectory: Trajectory,
        online: Outputs,
        target: Outputs,
        q_target: Array,
        discount: float,
    ) -> tuple[Array, PyTree]:
        """Logits of a policy to move towards, [T, B, A], and the teacher's next state.

        Online and target outputs are what the rule was told of the networks', [T+1, B, ...], and
        `q_target` has the returns G of the Disco rule, [T, B].
        """
        return improved_policy(trajectory, online, target, q_target, _CLIP), state


@dataclasses.dataclass(frozen=True, eq=False)  # arrays have no hash
class LeanTeacher(Teacher):
    """A lean rule's policy target, as a distribution that has its gradient.

    The lean rule's loss has the gradient policy_cost (pi - pi_hat) in the logits, and so has the
    KL from

        pi + policy_cost (pi_hat - pi)

    wherever that is a distribution; it is at least LEAST. Coefficients depend on sigma as usual,
    and are otherwise those of the middle of a life, because a Disco rule is not told how long an
    agent will live. The learning rate and the learning of action values remain those of the
    Disco rule.
    """

    rule: Lean
    eta: Params

    def init_state(self, lifetime: Array) -> LeanState:
        return dataclasses.replace(self.rule.init_state(lifetime), updates=lifetime // 2)

    def policy(
        self,
        state: LeanState,
        trajectory: Trajectory,
        online: Outputs,
        target: Outputs,
        q_target: Array,
        discount: float,
    ) -> tuple[Array, LeanState]:
        rule = dataclasses.replace(self.rule, discount=discount)
        targets, new, _ = rule.targets(self.eta, state, trajectory, online, target)
        pi = jax.nn.softmax(online["logits"][:-1])
        policy = pi + targets["policy_cost"][..., None] * (targets["pi"] - pi)
        # Normalised by the softmax of whoever reads it.
        logits = masks.mask_logits(jnp.log(jnp.maximum(policy, LEAST)), trajectory.legal(slice(-1)))
        return logits, dataclasses.replace(new, updates=state.updates)


def name_of(start: str) -> str | None:
    """The teacher that a start of discovery names; None if it is no imitation."""
    if start == MUESLI:
        return start
    return start.removeprefix(_PREFIX) if start.startswith(_PREFIX) else None


def load(start: str, rules_path: str | None = None) -> Teacher:
    """The teacher of an imitation: Muesli's update, or a lean rule by its name or file."""
    name = name_of(start)
    assert name is not None, "only imitations have teachers"
    if name == MUESLI:
        return Teacher()
    rule, eta = rules.load(name, rules_path=rules_path)
    if not isinstance(rule, Lean):
        raise UserError(
            f"start is {start!r}; expected {MUESLI!r}, or {_PREFIX!r} and a lean rule by its name "
            "or file"
        )
    return LeanTeacher(rule, eta)
