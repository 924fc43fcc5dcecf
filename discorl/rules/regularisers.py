"""Regularisers of the Disco rule's targets and predictions in discovery."""

import dataclasses

import jax
import jax.numpy as jnp

from discorl.rules import masks, returns
from discorl.types import Array, Metrics, Outputs, Trajectory
from discorl.types.validation import Fields, bounded

TEMPER = 0.03  # of an improved policy
LEAST = 1e-3  # probability of an action in it


@dataclasses.dataclass(frozen=True)
class Regularisers:
    """Weights of the terms that discovery adds to its loss for a Disco rule."""

    prediction_entropy_cost: float = bounded(0.001, least=0)
    """Reward for the entropy of y and z."""
    target_mean_cost: float = bounded(0.001, least=0)
    """Penalty on the squared mean of the targets' logits."""
    target_kl_cost: float = bounded(0.01, least=0)
    """Penalty on the distance of pi_hat from the target network's policy."""
    target_improvement: float = bounded(0.0, least=0)
    """How much that policy is improved first: the clip of the advantages that improve it, for all
    actions and for the actions taken (1 in Muesli); 0, as in the paper: not at all. A new rule
    starts learning much earlier with it."""

    def __post_init__(self) -> None:
        Fields(self).declared()

    def of_targets(
        self,
        pi: Array,
        predictions: tuple[Array, ...],
        q_target: Array,
        trajectory: Trajectory,
        online: Outputs,
        target: Outputs,
    ) -> Array:
        """The weighted penalty, [], that keeps targets centred and pi_hat near the target policy.

        `pi` are the logits of pi_hat, [T, B, A], `predictions` those of y_hat and z_hat, [T, B, P]
        each, and `q_target` returns, [T, B]. Summaries of outputs are [T+1, B, ...].
        """
        weight = (~trajectory.fillers()).astype(pi.dtype)
        means = [masks.mean_over_actions(pi, trajectory.legal(slice(-1)), axis=-1)]
        means += [jnp.mean(x, axis=-1) for x in predictions]
        centres = [jnp.square(returns.weighted_mean(mean, weight)) for mean in means]
        policy = jax.lax.stop_gradient(
            improved_policy(trajectory, online, target, q_target, self.target_improvement)
        )
        kl = returns.weighted_mean(returns.categorical_kl(policy, pi), weight)
        return self.target_mean_cost * sum(centres) + self.target_kl_cost * kl

    def of_predictions(self, y: Array, z: Array, weight: Array) -> tuple[Array, Metrics]:
        """The weighted penalty, [], for low entropy of the predictions; and both entropies.

        `y` and `z` are logits, [T+1, B, P] and, of the actions taken, [T, B, P]. The weight is that
        of each moment, [T+1, B].
        """
        y_entropy = returns.weighted_mean(returns.entropy(y), weight)
        z_entropy = returns.weighted_mean(returns.entropy(z), weight[:-1])
        penalty = -self.prediction_entropy_cost * (y_entropy + z_entropy)
        return penalty, {"y_entropy": y_entropy, "z_entropy": z_entropy}


def improved_policy(
    trajectory: Trajectory, online: Outputs, target: Outputs, q_target: Array, clip: float
) -> Array:
    """The target network's policy, improved as Muesli's update would (arXiv:2104.06159).

    With sigma^2 the mean square of the advantage A_t = G_t - V'(s_t):

        pi_CMPO(a|s) ~ pi_target(a|s)^(1 - TEMPER) exp(clip((Q'(s,a) - V'(s)) / sigma, -clip, clip))
        improved(a|s_t) ~ pi_CMPO(a|s_t) + clip(A_t / sigma, -clip, clip) ([a = a_t] - pi(a|s_t))

    but at least LEAST. The gradient of the KL to `improved` is that of Muesli's loss: a policy
    gradient plus a KL to pi_CMPO. Muesli clips only the advantages in pi_CMPO. The tempering lets a
    policy that has only drifted by noise become uniform again.

    Summaries of outputs are [T+1, B, ...], returns G [T, B] and the logits of the result [T, B, A].
    With a clip of 0, the target network's policy is not improved.
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
    # Unnormalised: readers apply a softmax.
    return masks.mask_logits(jnp.log(jnp.maximum(improved, LEAST)), trajectory.legal(slice(-1)))
