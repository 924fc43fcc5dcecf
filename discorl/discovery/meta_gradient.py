"""The meta-gradient: how the rule should change for agents trained by it to earn more.

A window of agent updates is differentiated with respect to the rule's parameters eta: through the
targets, the gradient of the agent's loss, Adam's first moment, the target network and the meta-RNN.
Data are given; acting is not part of what is differentiated.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from discorl.agent import frames
from discorl.agent.learner import Details, Learner, LearnerState
from discorl.discovery.meta_value import Estimates, MetaValue, MetaValueState
from discorl.rules import returns
from discorl.types import Array, Metrics, Outputs, Params, PyTree, Trajectory

TEMPER = 0.03  # of a policy that is improved
LEAST = 1e-3  # probability in it


@dataclasses.dataclass(frozen=True)
class MetaLoss:
    """Weights of the meta-loss's regularisers."""

    entropy: float = 0.01  # of the policy, rewarded
    prediction_entropy: float = 0.001  # of y and z(a_t), rewarded
    target_mean: float = 0.001  # squared mean of each target's logits
    target_kl: float = 0.01  # from the target network's policy, improved or not, to pi_hat
    target_improvement: float = 0.0  # clip of the advantages that improve that policy; 0: not


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Update:
    """One update of a window, as it is recorded to be differentiated later."""

    learner: LearnerState  # before the update
    batch: Trajectory  # [T, B], with single frames if frames are stacked


@dataclasses.dataclass(frozen=True)
class MetaGradient:
    """Binds a learner, its meta-value function and the meta-loss into pure functions.

    The updates of a window are made once, while data are collected, and recorded. The backward
    pass then takes them one by one from the last to the first: it computes an update again and
    pulls the gradient back through it. So memory grows with the number of updates only by the
    recorded states and data. Frames are recorded once, and stacked where a network is asked.
    """

    learner: Learner
    meta_value: MetaValue
    loss: MetaLoss = MetaLoss()
    frame_stack: int = 1  # frames that both networks see at once

    def update(
        self, learner: LearnerState, meta_value: MetaValueState, eta: Params, batch: Trajectory
    ) -> tuple[LearnerState, MetaValueState, Metrics]:
        """One update of the agent, and of its meta-value function on the same batch."""
        batch = frames.with_stacks(batch, self.frame_stack)
        learner, metrics, details = self.learner.update_in_detail(learner, eta, batch)
        meta_value = self.meta_value.update(meta_value, batch, details.online["logits"][:-1])
        return learner, meta_value, metrics

    def differentiate(
        self,
        eta: Params,
        window: Update,
        learner: LearnerState,
        meta_value: MetaValueState,
        validation: Trajectory,
        kept: MetaValueState | None = None,
    ) -> tuple[Params, MetaValueState, Metrics]:
        """Pulls the gradient of the meta-loss back through a recorded window.

        Args:
            eta: the rule's parameters.
            window: the updates, every leaf [N, ...].
            learner: the agent after the last of them.
            meta_value: the meta-value function after the last of them.
            validation: experience of the updated agent, [T', B'].
            kept: the meta-value function to go on with, if it is an earlier one.

        Returns:
            the meta-gradient, shaped like eta; the meta-value function to go on with, its moments
            updated; metrics.
        """
        count = jax.tree.leaves(window)[0].shape[0]
        validation = frames.with_stacks(validation, self.frame_stack)
        cotangent, (meta_value, estimates, metrics) = jax.grad(
            lambda params: self._validation_loss(params, meta_value, validation), has_aux=True
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
                return _floats(state), self._target_penalty(details, batch)

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
        """Makes the updates of a window on given data, and differentiates them.

        Args:
            eta: the rule's parameters.
            learner: the agent at the start of the window.
            meta_value: its meta-value function.
            batches: a batch for each update, [N, T, B].
            validation: experience of the updated agent, [T', B'].

        Returns:
            the meta-gradient; the agent and its meta-value function after the window; metrics.
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

    def _target_penalty(self, details: Details, batch: Trajectory) -> Array:
        """Keeps targets centred, and pi_hat near the target network's policy."""
        targets = details.targets
        weight = (~batch.fillers()).astype(targets.pi.dtype)
        centres = [
            jnp.square(returns.weighted_mean(jnp.mean(x, axis=-1), weight))
            for x in (targets.pi, targets.y, targets.z)
        ]
        policy = jax.lax.stop_gradient(
            improved_policy(
                batch, details.online, details.target, targets.q, self.loss.target_improvement
            )
        )
        kl = returns.weighted_mean(returns.categorical_kl(policy, targets.pi), weight)
        return self.loss.target_mean * sum(centres) + self.loss.target_kl * kl

    def _validation_loss(
        self, params: Params, meta_value: MetaValueState, validation: Trajectory
    ) -> tuple[Array, tuple[MetaValueState, Estimates, Metrics]]:
        """The meta-loss but for the penalty on targets."""
        outputs, _ = self.learner.outputs(params, validation)
        logits = outputs["logits"][:-1]
        estimates, adv, meta_value = jax.lax.stop_gradient(
            self.meta_value.estimate(meta_value, validation, logits)
        )
        log_pi = returns.take_action(jax.nn.log_softmax(logits), validation.action)
        mean = returns.weighted_mean
        moments = (~_at_fillers(validation)).astype(logits.dtype)
        steps = moments[:-1]
        policy_gradient = -mean(log_pi * adv, steps)
        entropies = {
            "entropy": mean(returns.entropy(logits), steps),
            "y_entropy": mean(returns.entropy(outputs["y"]), moments),
            "z_entropy": mean(returns.entropy(outputs["z"]), steps),
        }
        penalty = -self.loss.entropy * entropies["entropy"]
        penalty -= self.loss.prediction_entropy * (entropies["y_entropy"] + entropies["z_entropy"])
        metrics = entropies | {
            "policy_gradient": policy_gradient,
            "entropy_penalty": penalty,
            "adv": mean(estimates.adv, steps),
            "normalised_adv": mean(adv, steps),
            "value": mean(estimates.value, moments),
            "importance_ratio": mean(jnp.minimum(1, estimates.rho), steps),
        }
        named: Outputs = {f"meta/{name}": value for name, value in metrics.items()}
        return policy_gradient + penalty, (meta_value, estimates, named)


def improved_policy(
    trajectory: Trajectory, online: Outputs, target: Outputs, q_target: Array, clip: float
) -> Array:
    """The target network's policy, improved as Muesli's update would (arXiv:2104.06159).

    With sigma^2 the mean square of the advantage A_t = G_t - V'(s_t):

        pi_CMPO(a|s) ~ pi_target(a|s)^(1 - TEMPER) exp(clip((Q'(s,a) - V'(s)) / sigma, -clip, clip))
        improved(a|s_t) ~ pi_CMPO(a|s_t) + clip(A_t / sigma, -clip, clip) ([a = a_t] - pi(a|s_t))

    but at least LEAST. Towards `improved` the gradient of the KL is that of Muesli's loss: a policy
    gradient, and a distance from pi_CMPO, of which Muesli clips the latter's advantages only.
    Tempered, a policy that only noise has moved becomes uniform again.

    Args:
        trajectory: experience, [T, B].
        online: what the rule was told of the network's outputs, [T+1, B, ...].
        target: and of the target network's.
        q_target: returns G, [T, B].
        clip: of both advantages; 0 leaves the target network's policy as it is.

    Returns:
        logits, [T, B, A].
    """
    logits = jax.nn.log_softmax(target["logits"][:-1])
    if clip == 0:
        return logits
    q, pi = target["q"][:-1], jax.nn.softmax(online["logits"][:-1])
    v = jnp.sum(pi * q, axis=-1)
    weight = (~trajectory.fillers()).astype(v.dtype)
    sigma = jnp.sqrt(returns.weighted_mean(jnp.square(q_target - v), weight) + 1e-8)
    q_advantage = jnp.clip((q - v[..., None]) / sigma, -clip, clip)
    advantage = jnp.clip((q_target - v) / sigma, -clip, clip)
    taken = jax.nn.one_hot(trajectory.action, q.shape[-1], dtype=q.dtype)
    improved = jax.nn.softmax((1 - TEMPER) * logits + q_advantage)
    improved += advantage[..., None] * (taken - pi)
    # Normalised by the softmax of whoever reads it.
    return jnp.log(jnp.maximum(improved, LEAST))


def _at_fillers(trajectory: Trajectory) -> Array:
    """Moments at which a filler is taken, or would be next: [T+1, B] bool.

    They are the last observations of cut episodes, bootstrapped from and nothing else.
    """
    last = jnp.zeros_like(trajectory.action[:1], bool)
    if trajectory.truncated is not None:
        last = trajectory.truncated[-1:].astype(bool)
    return jnp.concatenate([trajectory.fillers(), last])


def _floats(tree: PyTree) -> PyTree:
    """The tree with None in place of what has no gradient: counters and keys."""

    def keep(leaf: Any) -> Any:
        return leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else None

    return jax.tree.map(keep, tree)


def _merge(floats: PyTree, tree: PyTree) -> PyTree:
    """Puts what `_floats` took out back in, from the whole tree."""
    return jax.tree.map(
        lambda part, whole: whole if part is None else part,
        floats,
        tree,
        is_leaf=lambda leaf: leaf is None,
    )
