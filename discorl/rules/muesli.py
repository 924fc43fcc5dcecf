"""Regularised policy optimisation with clipped advantages: the rule of Muesli."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from discorl.rules import masks, returns, searched
from discorl.rules.base import PLAIN, Rule
from discorl.rules.returns import Moments
from discorl.types import Array, Metrics, Outputs, OutputSpec, Params, Trajectory
from discorl.types.validation import bounded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muesli(Rule):
    """Policy gradient, regularised toward a policy that clipped advantages improve.

    After Hessel et al. (2021, arXiv:2104.06159). With the target network's policy as the prior and
    its action values Q, V(s) = sum_a prior(a|s) Q(s,a), and G_t the Retrace return of the prior:

        sigma^2 = moving average of (G_t - V(s_t))^2
        pi_CMPO(a|s) ~ prior(a|s) exp(clip((Q(s,a) - V(s)) / sigma, -clip, clip))
        loss_t = - min(1, pi/mu) (G_t - V(s_t)) / sigma log pi(a_t|s_t)
                 + cmpo_cost KL(pi_CMPO(s_t) || pi(s_t))
                 + model_cost KL(pi_CMPO(s_{t+1}) || aux_pi(s_t, a_t))    unless s_t is the last
                 + q_cost 1/2 (h(Q(s_t, a_t)) - h(G_t))^2

    Differences from the paper: Q is a scalar output instead of a model's reward and value; the
    model looks one step ahead; and the prior is not mixed with another policy.
    """

    name: ClassVar[str] = "muesli"
    recipe: ClassVar[Mapping[str, Any]] = {**PLAIN, "learning_rate": 1e-3, "max_gradient_norm": 1.0}
    recipes: ClassVar[searched.Recipes] = searched.MUESLI
    target_decay: ClassVar[float | None] = 0.9

    lambda_: float = bounded(0.95, least=0, most=1)  # decay of the traces
    clip: float = bounded(1.0, above=0)  # of the normalised advantages that improve the prior
    cmpo_cost: float = 1.0  # weight of the distance from the improved prior
    model_cost: float = 1.0  # weight of the prediction of the next improved prior
    q_cost: float = 1.0  # weight of the value loss

    def outputs(self, num_actions: int) -> OutputSpec:
        """A policy, squashed action values, and each action's prediction of the next policy."""
        return OutputSpec(
            num_actions,
            state={"logits": (num_actions,), "q": (num_actions,)},
            action={"aux_pi": (num_actions,)},
        )

    def init_state(self, lifetime: Array) -> Moments:
        return returns.init_moments()

    def summarise(self, eta: Params, name: str, output: Array) -> Array | None:
        """Unsquashes values; targets do not read aux_pi."""
        if name == "q":
            return returns.unsquash(output)
        return output if name == "logits" else None

    def targets(
        self, eta: Params, state: Moments, trajectory: Trajectory, online: Outputs, target: Outputs
    ) -> tuple[dict[str, Array], Moments, Metrics]:
        """Returns "q", [T, B], normalised advantages times the clipped ratio, and improved priors.

        The priors are logits of pi_CMPO at each step, "pi", and after it, "next_pi", [T, B, A]. All
        targets are constant. See `Rule.targets`.
        """
        online, target = jax.lax.stop_gradient((online, target))
        prior_logits, q = target["logits"], target["q"]
        v = jnp.sum(jax.nn.softmax(prior_logits) * q, axis=-1)
        action, mu = trajectory.action, trajectory.behaviour_logits
        trace_t = self.lambda_ * jnp.minimum(
            1, returns.importance_ratio(prior_logits[:-1], mu, action)
        )
        q_t = returns.take_action(q[:-1], action)
        q_target_t = returns.retrace_along(trajectory, self.discount, v, q_t, trace_t)
        advantage_t = q_target_t - v[:-1]
        weight = trajectory.learnable(v.dtype)
        state = returns.update_moments(state, advantage_t, weight)
        sigma = jnp.sqrt(state.moment2 / (1 - state.decay_product) + 1e-12)
        clipped = jnp.clip((q - v[..., None]) / sigma, -self.clip, self.clip)
        pi_cmpo = jax.nn.log_softmax(prior_logits) + clipped
        rho_t = returns.importance_ratio(online["logits"][:-1], mu, action)
        targets = {
            "q": q_target_t,
            "advantage": jnp.minimum(1, rho_t) * advantage_t / sigma,
            "pi": pi_cmpo[:-1],
            "next_pi": pi_cmpo[1:],
        }
        metrics = {
            "value": returns.weighted_mean(v[:-1], weight),
            "advantage_size": returns.weighted_mean(jnp.abs(advantage_t), weight),
            "importance_ratio": returns.weighted_mean(rho_t, weight),
        }
        return targets, state, metrics

    def loss(
        self, outputs: Outputs, targets: dict[str, Array], trajectory: Trajectory
    ) -> dict[str, Array]:
        """Terms "policy", "cmpo", "model" and "q", as above; see `Rule.loss`."""
        logits_t = outputs["logits"][:-1]
        log_pi_t = returns.take_action(jax.nn.log_softmax(logits_t), trajectory.action)
        continues_t = 1 - trajectory.terminated.astype(logits_t.dtype)
        aux_pi = masks.mask_logits(outputs["aux_pi"], trajectory.legal(slice(1, None)))
        predicted = returns.categorical_kl(targets["next_pi"], aux_pi)
        q_t = returns.take_action(outputs["q"][:-1], trajectory.action)
        return {
            "policy": -log_pi_t * targets["advantage"],
            "cmpo": self.cmpo_cost * returns.categorical_kl(targets["pi"], logits_t),
            "model": self.model_cost * predicted * continues_t,
            "q": self.q_cost * 0.5 * jnp.square(q_t - returns.squash(targets["q"])),
        }
