"""The meta-gradient: how the rule should change for its agents to earn more.

A window of agent updates is differentiated with respect to the rule's parameters eta: through the
targets, the gradient of the agent's loss, Adam's first moment, the target network and the rule's
state. The data are constants: no gradient flows through acting.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from discorl.agent import frames
from discorl.agent.learner import Learner, LearnerState
from discorl.discovery.meta_critic import FEATURES, Critic, estimated_returns
from discorl.discovery.meta_value import Estimates, MetaValue, MetaValueState
from discorl.rules import returns
from discorl.types import Array, Metrics, Outputs, Params, PyTree, Trajectory


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Update:
    """The record of one update, to be differentiated later."""

    learner: LearnerState  # before the update
    batch: Trajectory  # [T, B], with single frames if frames are stacked


@dataclasses.dataclass(frozen=True)
class MetaGradient:
    """Binds a learner and its meta-value function into pure functions.

    The updates of a window are made once, while data are collected, and recorded. The backward pass
    then goes from the last update to the first: it recomputes an update and pulls the gradient back
    through it. Memory grows with the number of updates only by the recorded states and data. Frames
    are recorded once, and stacked where a network is applied.
    """

    learner: Learner
    meta_value: MetaValue
    entropy_cost: float = 0.01  # weight of the reward for the policy's entropy
    frame_stack: int = 1  # frames that both networks see at once

    def update(
        self, learner: LearnerState, meta_value: MetaValueState, eta: Params, batch: Trajectory
    ) -> tuple[LearnerState, MetaValueState, Metrics]:
        """One update of the agent, and of its meta-value function on the same batch."""
        batch = frames.with_stacks(batch, self.frame_stack)
        learner, metrics, details = self.learner.update_in_detail(learner, eta, batch)
        meta_value = self.meta_value.update(meta_value, batch, details.policy[:-1])
        return learner, meta_value, metrics

    def differentiate(
        self,
        eta: Params,
        window: Update,
        learner: LearnerState,
        meta_value: MetaValueState,
        validation: Trajectory,
        kept: MetaValueState | None = None,
        critic: Critic | None = None,
    ) -> tuple[Params, MetaValueState, Metrics]:
        """Pulls the gradient of the meta-loss back through a recorded window.

        The leaves of the window are [N, ...]. Agent and meta-value function are those after the
        last update. `validation` is experience of the updated agent, [T', B'], evaluated by
        `critic` or, by default, by the actor-critic loss. Returns the meta-gradient, shaped like
        eta; the meta-value function to continue with, or `kept` if given, with updated moments; and
        metrics.
        """
        count = jax.tree.leaves(window)[0].shape[0]
        validation = frames.with_stacks(validation, self.frame_stack)
        cotangent, (meta_value, estimates, metrics) = jax.grad(
            lambda params: self._validation_loss(params, meta_value, validation, critic),
            has_aux=True,
        )(learner.params)
        if kept is not None:
            meta_value = self.meta_value.take_in(kept, validation, estimates)
        zeros = jax.tree.map(jnp.zeros_like, _floats(learner))
        after = dataclasses.replace(zeros, params=cotangent)

        def pull(carry: tuple, update: Update) -> tuple[tuple, Array]:
            after, gradient = carry

            def forward(eta: Params, floats: LearnerState) -> tuple[LearnerState, Array]:
                state = _merge(floats, update.learner)
                batch = frames.with_stacks(update.batch, self.frame_stack)
                state, _, details = self.learner.update_in_detail(state, eta, batch)
                return _floats(state), self.learner.rule.penalty(
                    details.targets, batch, details.online, details.target
                )

            (_, penalty), pullback = jax.vjp(forward, eta, _floats(update.learner))
            share = jnp.ones_like(penalty) / count
            eta_gradient, before = pullback((after, share))
            return (before, jax.tree.map(jnp.add, gradient, eta_gradient)), penalty

        start = (after, jax.tree.map(jnp.zeros_like, eta))
        (_, gradient), penalties = jax.lax.scan(pull, start, window, reverse=True)
        penalty = jnp.mean(penalties)
        regularisation = metrics["meta/entropy_penalty"] + penalty
        metrics |= {
            "meta/target_penalty": penalty,
            "meta/regularisation": regularisation,
            "meta/loss": metrics["meta/policy_gradient"] + regularisation,
        }
        return gradient, meta_value, metrics

    def __call__(
        self,
        eta: Params,
        learner: LearnerState,
        meta_value: MetaValueState,
        batches: Trajectory,
        validation: Trajectory,
    ) -> tuple[Params, LearnerState, MetaValueState, Metrics]:
        """Makes the updates of a window on given batches, [N, T, B], and differentiates them.

        Returns the meta-gradient, the agent and its meta-value function after the window, and
        metrics.
        """

        def step(carry: tuple, batch: Trajectory) -> tuple[tuple, Update]:
            learner, meta_value = carry
            record = Update(learner, batch)
            learner, meta_value, _ = self.update(learner, meta_value, eta, batch)
            return (learner, meta_value), record

        (learner, meta_value), window = jax.lax.scan(step, (learner, meta_value), batches)
        gradient, meta_value, metrics = self.differentiate(
            eta, window, learner, meta_value, validation
        )
        return gradient, learner, meta_value, metrics

    def _validation_loss(
        self,
        params: Params,
        meta_value: MetaValueState,
        validation: Trajectory,
        critic: Critic | None = None,
    ) -> tuple[Array, tuple[MetaValueState, Estimates, Metrics]]:
        """The meta-loss without the penalty on targets."""
        rule = self.learner.rule
        outputs, _ = self.learner.outputs(params, validation)
        logits = rule.policy(outputs)[:-1]
        estimates, adv, meta_value = jax.lax.stop_gradient(
            self.meta_value.estimate(meta_value, validation, logits)
        )
        log_pi = returns.take_action(jax.nn.log_softmax(logits), validation.action)
        mean = returns.weighted_mean
        moments = (~_at_fillers(validation)).astype(logits.dtype)
        steps = moments[:-1]
        policy_gradient = -mean(log_pi * adv, steps)
        entropy = mean(returns.entropy(logits), steps)
        output_penalty, of_outputs = rule.output_penalty(outputs, moments)
        penalty = -self.entropy_cost * entropy + output_penalty
        metrics: dict[str, Array] = {}
        if critic is not None:
            value = returns.normalise(meta_value.adv_moments, estimates.value[:-1], centre=False)
            if critic.exact is not None:
                earned = critic.exact(params)
                metrics["outcome"] = earned[0]
            else:
                earned = estimated_returns(logits, validation.action, value, adv, steps)
                metrics["outcome"] = mean(estimates.value, moments)
            features = jnp.append(earned, entropy / math.log(logits.shape[-1]))
            policy_gradient, penalty = -critic.coefficients @ features, output_penalty
            metrics |= {name: features[i] for i, name in enumerate(FEATURES)}
        metrics |= {
            "entropy": entropy,
            **of_outputs,
            "policy_gradient": policy_gradient,
            "entropy_penalty": penalty,
            "adv": mean(estimates.adv, steps),
            "normalised_adv": mean(adv, steps),
            "value": mean(estimates.value, moments),
            "importance_ratio": mean(jnp.minimum(1, estimates.rho), steps),
        }
        named: Outputs = {f"meta/{name}": value for name, value in metrics.items()}
        return policy_gradient + penalty, (meta_value, estimates, named)


def _at_fillers(trajectory: Trajectory) -> Array:
    """Moments at which a filler is taken, or would be next: [T+1, B] bool.

    They are the last observations of cut episodes, which serve only for bootstrapping.
    """
    last = jnp.zeros_like(trajectory.action[:1], bool)
    if trajectory.truncated is not None:
        last = trajectory.truncated[-1:].astype(bool)
    return jnp.concatenate([trajectory.fillers(), last])


def _floats(tree: PyTree) -> PyTree:
    """The tree with None for leaves without a gradient: counters and keys."""

    def keep(leaf: Any) -> Any:
        return leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else None

    return jax.tree.map(keep, tree)


def _merge(floats: PyTree, tree: PyTree) -> PyTree:
    """Restores the leaves that `_floats` removed, from the whole tree."""
    return jax.tree.map(
        lambda part, whole: whole if part is None else part,
        floats,
        tree,
        is_leaf=lambda leaf: leaf is None,
    )
