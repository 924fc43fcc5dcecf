"""The meta-gradient: how the rule should change for agents trained by it to earn more.

A window of agent updates is differentiated with respect to the rule's parameters eta: through the
targets, the gradient of the agent's loss, Adam's first moment, the target network and the meta-RNN.
Data are given; acting is not part of what is differentiated.
"""

import dataclasses

import jax
import jax.numpy as jnp

from discorl import returns
from discorl.discovery.meta_value import MetaValue, MetaValueState
from discorl.learning import Learner, LearnerState
from discorl.types import Array, Metrics, Outputs, Params, Trajectory


@dataclasses.dataclass(frozen=True)
class MetaLoss:
    """Weights of the meta-loss's regularisers."""

    entropy: float = 0.01  # of the policy, rewarded
    prediction_entropy: float = 0.001  # of y and z(a_t), rewarded
    target_mean: float = 0.001  # squared mean of each target's logits
    target_kl: float = 0.01  # from the target network's policy to pi_hat


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Agent:
    """One member of a population, as far as learning goes."""

    learner: LearnerState
    meta_value: MetaValueState


@dataclasses.dataclass(frozen=True)
class MetaGradient:
    """Binds a learner, its meta-value function and the meta-loss."""

    learner: Learner
    meta_value: MetaValue
    loss: MetaLoss = MetaLoss()
    rematerialise: bool = True  # compute each update again in the backward pass, to save memory

    def __call__(
        self, eta: Params, agent: Agent, window: Trajectory, validation: Trajectory
    ) -> tuple[Params, Agent, Metrics]:
        """Differentiates a window of updates.

        Args:
            eta: the rule's parameters.
            agent: at the start of the window.
            window: a batch for each update, [N, T, B].
            validation: experience of the updated agent, [T', B'].

        Returns:
            the meta-gradient, shaped like eta; the agent at the end of the window; metrics.
        """
        gradient, (agent, metrics) = jax.grad(self._objective, has_aux=True)(
            eta, agent, window, validation
        )
        return gradient, agent, metrics

    def _objective(
        self, eta: Params, agent: Agent, window: Trajectory, validation: Trajectory
    ) -> tuple[Array, tuple[Agent, Metrics]]:
        def update(
            learner: LearnerState, batch: Trajectory
        ) -> tuple[LearnerState, tuple[Array, Array, Metrics]]:
            learner, metrics, details = self.learner.update_in_detail(learner, eta, batch)
            penalty = self._target_penalty(details.targets, details.target["logits"])
            return learner, (penalty, details.online["logits"][:-1], metrics)

        if self.rematerialise:
            update = jax.checkpoint(update)
        learner, (penalties, logits, metrics) = jax.lax.scan(update, agent.learner, window)
        meta_value = self._learn_values(agent.meta_value, window, logits)

        outputs, _ = self.learner.outputs(learner.params, validation)
        estimates, adv, meta_value = self.meta_value.estimate(
            meta_value, validation, outputs["logits"][:-1]
        )
        adv = jax.lax.stop_gradient(adv)
        parts = self._validation_loss(outputs, validation, adv)
        regularisation = parts.pop("regularisation") + jnp.mean(penalties)
        meta_loss = parts["policy_gradient"] + regularisation
        metrics = jax.tree.map(jnp.mean, metrics) | {
            "meta/loss": meta_loss,
            "meta/regularisation": regularisation,
            "meta/adv": jnp.mean(estimates.adv),
            "meta/normalised_adv": jnp.mean(adv),
            "meta/value": jnp.mean(estimates.value),
            "meta/importance_ratio": jnp.mean(jnp.minimum(1, estimates.rho)),
        }
        metrics |= {f"meta/{name}": value for name, value in parts.items()}
        return meta_loss, (Agent(learner, meta_value), metrics)

    def _learn_values(
        self, state: MetaValueState, window: Trajectory, logits: Array
    ) -> MetaValueState:
        """Updates the meta-value function on the window; nothing of it is differentiated."""

        def update(state: MetaValueState, batch: tuple) -> tuple[MetaValueState, None]:
            return self.meta_value.update(state, *batch), None

        data = jax.lax.stop_gradient((window, logits))
        return jax.lax.scan(update, state, data)[0]

    def _target_penalty(self, targets: Params, target_logits: Array) -> Array:
        """Keeps targets centred, and pi_hat near the target network's policy."""
        centres = sum(jnp.square(jnp.mean(logits)) for logits in (targets.pi, targets.y, targets.z))
        policy = jax.lax.stop_gradient(target_logits[:-1])
        kl = jnp.mean(returns.categorical_kl(policy, targets.pi))
        return self.loss.target_mean * centres + self.loss.target_kl * kl

    def _validation_loss(
        self, outputs: Outputs, validation: Trajectory, adv: Array
    ) -> dict[str, Array]:
        """The policy-gradient term, and what is regularised on the validation data."""
        logits = outputs["logits"][:-1]
        log_pi = returns.take_action(jax.nn.log_softmax(logits), validation.action)
        weight = (~validation.filler()).astype(logits.dtype)
        entropy = jnp.mean(returns.entropy(logits))
        y_entropy = jnp.mean(returns.entropy(outputs["y"]))
        z_entropy = jnp.mean(returns.entropy(outputs["z"]))
        return {
            "policy_gradient": -returns.weighted_mean(log_pi * adv, weight),
            "regularisation": -self.loss.entropy * entropy
            - self.loss.prediction_entropy * (y_entropy + z_entropy),
            "entropy": entropy,
            "y_entropy": y_entropy,
            "z_entropy": z_entropy,
        }
