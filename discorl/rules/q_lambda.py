"""Watkins's Q(lambda) with a double target network: the value-based rule, after DQN."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from discorl.rules import masks, returns, searched
from discorl.rules.base import PLAIN, Rule
from discorl.types import Array, Metrics, Outputs, OutputSpec, Params, PyTree, Trajectory
from discorl.types.validation import bounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class QLambda(Rule):
    """Moves action values toward lambda-returns of the greedy policy; acts epsilon-greedily.

    Watkins's Q(lambda) (1989) is Retrace (Munos et al. 2016, arXiv:1606.02647) with the greedy
    policy as target policy. A trace is cut at the first action that is not greedy now, so the rule
    can learn from any replayed experience. The online network chooses the greedy action, the target
    network evaluates it (van Hasselt et al. 2016, arXiv:1509.06461). The network outputs squashed
    values h(Q) (Pohlen et al. 2018, arXiv:1805.11593).
    """

    name: ClassVar[str] = "q_lambda"
    recipe: ClassVar[Mapping[str, Any]] = {**PLAIN, "learning_rate": 1e-3, "max_gradient_norm": 1.0}
    recipes: ClassVar[searched.Recipes] = searched.Q_LAMBDA
    target_decay: ClassVar[float | None] = 0.9

    lambda_: float = bounded(0.95, least=0, most=1)  # decay of the traces
    # Probability of acting at random; above 0, as every action in replay must have a probability.
    epsilon: float = bounded(0.02, above=0, most=1)

    def outputs(self, num_actions: int) -> OutputSpec:
        """The squashed value of each action, and no policy."""
        return OutputSpec(num_actions, state={"q": (num_actions,)})

    def mask_actions(self, outputs: Outputs, legal: Array) -> Outputs:
        """Makes illegal actions never greedy, and adds the mask for `policy`."""
        q = masks.mask_logits(outputs["q"], legal)
        return outputs | {"q": q, "legal": legal.astype(q.dtype)}

    def policy(self, outputs: Outputs) -> Array:
        """Logits of the policy that is epsilon-greedy among legal actions; see `Rule.policy`."""
        q, legal = outputs["q"], outputs.get("legal")
        count: Any = q.shape[-1] if legal is None else jnp.sum(legal, axis=-1, keepdims=True)
        greedy = jax.nn.one_hot(jnp.argmax(q, axis=-1), q.shape[-1], dtype=q.dtype)
        logits = jnp.log((1 - self.epsilon) * greedy + self.epsilon / count)
        return masks.mask_logits(logits, None if legal is None else legal > 0)

    def summarise(self, eta: Params, name: str, output: Array) -> Array:
        return returns.unsquash(output)

    def targets(
        self, eta: Params, state: PyTree, trajectory: Trajectory, online: Outputs, target: Outputs
    ) -> tuple[dict[str, Array], PyTree, Metrics]:
        """Lambda-returns of the greedy policy, {"q": [T, B]}, constant; see `Rule.targets`."""
        q, target_q = jax.lax.stop_gradient((online["q"], target["q"]))
        action = trajectory.action
        greedy = jnp.argmax(q, axis=-1)
        is_greedy_t = (action == greedy[:-1]).astype(q.dtype)
        q_target_t = returns.retrace_along(
            trajectory,
            self.discount,
            returns.take_action(target_q, greedy),
            returns.take_action(target_q[:-1], action),
            self.lambda_ * is_greedy_t,
        )
        weight = trajectory.learnable(q.dtype)
        q_td_t = q_target_t - returns.take_action(q[:-1], action)
        metrics = {
            "value": returns.weighted_mean(jnp.max(q[:-1], axis=-1), weight),
            "q_td": returns.weighted_mean(jnp.abs(q_td_t), weight),
            "greedy": returns.weighted_mean(is_greedy_t, weight),
        }
        return {"q": q_target_t}, state, metrics

    def loss(
        self, outputs: Outputs, targets: dict[str, Array], trajectory: Trajectory
    ) -> dict[str, Array]:
        """Half the squared distance of squashed values; see `Rule.loss`."""
        q_t = returns.take_action(outputs["q"][:-1], trajectory.action)
        return {"q": 0.5 * jnp.square(q_t - returns.squash(targets["q"]))}
