"""The lean rule: Muesli's update with learned coefficients and a small residual network.

It needs only logits and scalar action values from an agent, and costs little more than a
hand-designed rule. Untrained, it is Muesli without the model, so discovery starts from the best
hand-designed rule.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from discorl.rules import masks, returns, searched
from discorl.rules.base import PLAIN, Rule
from discorl.rules.returns import Moments
from discorl.types import Array, Key, Metrics, Outputs, OutputSpec, Params, Trajectory
from discorl.types.validation import bounded

# Every coefficient is its hand-designed value times exp(gain * row @ features). With these gains,
# equal changes of the rows are about equally important.
GAINS: Mapping[str, float] = {
    "prior": 0.1,  # power of the prior in the improved policy; below one, it forgets
    "clip": 1.0,  # bound of the normalised action values
    "improvement": 1.0,  # weight of the action values in the improved policy
    "advantage": 1.0,  # weight of the policy gradient
    "policy_cost": 1.0,
    "q_cost": 1.0,
    "trace": 2.0,  # 1 - lambda
    "discount": 2.0,  # 1 - gamma
    "learning_rate": 1.0,
}
FEATURES = ("one", "life", "cooldown", "length", "sigma")  # inputs of the coefficients
NUM_INPUTS = 18  # of the residual network, per action
# The residual network changes the improved policy's logits, the return in units of sigma, and the
# log-weight of the policy gradient. The second gain is small because bonuses to returns accumulate
# over an episode.
OUTPUT_GAINS = (1.0, 0.2, 1.0)

# Lifetimes seen in discovery map to -1..1. Longer ones are clipped at _MOST_LENGTH.
_MIDDLE_LENGTH, _LENGTH_RATIO, _MOST_LENGTH = 450.0, 2.25, 1.5
_COOLDOWN = 0.75  # share of the life at which the cooldown feature starts to rise
_UNKNOWN_SIGMA = 0.1  # before the first update
_LEAST_LOG = -7.0  # clip of log-probabilities


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LeanState:
    """The rule's state over an agent's life."""

    moments: Moments  # of the advantage
    updates: Array  # [] int32, made so far
    lifetime: Array  # [] int32, updates that the agent will make


@dataclasses.dataclass(frozen=True)
class _Values:
    """Values along a trajectory, constant with respect to the agent."""

    q: Array  # [A, T, B], of the target network
    v: Array  # [T, B]
    returns: Array  # [T, B], G_t
    advantage: Array  # [T, B], G_t - v_t
    one_step: Array  # [T, B], r_t + gamma v_{t+1} - v_t
    td: Array  # [T, B], G_t minus the online network's value of the action taken
    disagreement: Array  # [A, T, B], online minus target network


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lean(Rule):
    """Muesli's loss (Hessel et al. 2021, arXiv:2104.06159) with learned adjustments.

    With the target network's policy as the prior and its action values Q, V the prior's value, G_t
    its Retrace return and sigma^2 the moving average of (G_t - V_t)^2, the targets are

        pi_CMPO(a) ~ prior(a)^prior exp(improvement clip((Q(a) - V) / sigma, -clip, clip) + o_1(a))
        pi_hat(a) = pi_CMPO(a) + w_t (1[a = a_t] - pi(a))
        w_t = advantage exp(o_3(a_t)) min(1, pi/mu) (G_t - V_t) / sigma
        q_hat = G_t + sigma o_2(a_t)

    and the loss is

        - policy_cost sum_a pi_hat(a) log pi(a|s_t) + q_cost 1/2 (h(Q(s_t, a_t)) - h(q_hat))^2

    `pi_hat` sums to one but may be negative: it is a gradient in the form of a target. The words in
    the formulas, 1 - lambda, 1 - gamma and the learning rate are coefficients. Each depends on the
    share of life used, the length of the life and sigma. The outputs o of the residual network are
    zero in a new rule.
    """

    name: ClassVar[str] = "lean"
    # With a smaller epsilon, Adam amplifies the vanishing gradients of a solved task.
    recipe: ClassVar[Mapping[str, Any]] = {
        **PLAIN,
        "adam_epsilon": 1e-5,
        "max_gradient_norm": 1.0,
    }
    recipes: ClassVar[searched.Recipes] = searched.LEAN
    target_decay: ClassVar[float | None] = 0.9
    noise_scales: ClassVar[Mapping[str, float]] = {"hidden": 0.0, "output": 0.3}

    lambda_: float = bounded(0.95, least=0, most=1)  # decay of the traces, before the coefficients
    clip: float = bounded(1.0, above=0)  # of the normalised action values, before the coefficients
    hidden: int = bounded(16, least=1)  # units of the residual network
    residual_cost: float = 0.01  # of the network's outputs, in discovery by meta-gradients

    def outputs(self, num_actions: int) -> OutputSpec:
        """A policy and squashed action values."""
        return OutputSpec(num_actions, state={"logits": (num_actions,), "q": (num_actions,)})

    def init_params(self, key: Key) -> Params:
        """Muesli, with a random hidden layer in the residual network and zero outputs."""
        return {
            "coefficients": jnp.zeros((len(GAINS), len(FEATURES))),
            "hidden": jax.random.normal(key, (NUM_INPUTS, self.hidden)) * 1.5 / NUM_INPUTS**0.5,
            "output": jnp.zeros((NUM_INPUTS + self.hidden, len(OUTPUT_GAINS))),
        }

    def init_state(self, lifetime: Array) -> LeanState:
        return LeanState(returns.init_moments(), jnp.zeros((), jnp.int32), lifetime)

    def summarise(self, eta: Params, name: str, output: Array) -> Array | None:
        return returns.unsquash(output) if name == "q" else output

    def step_size(self, eta: Params, state: LeanState) -> Array:
        return self.coefficients(eta, state)["learning_rate"]

    def coefficients(self, eta: Params, state: LeanState) -> dict[str, Array]:
        """Multipliers of the hand-designed coefficients at a moment of an agent's life, each []."""
        features = self._features(state)
        dtype = eta["coefficients"].dtype
        gains = jnp.array(list(GAINS.values()), dtype)
        rows = jnp.exp(gains * (eta["coefficients"] @ jnp.stack(list(features.values()))))
        return dict(zip(GAINS, rows, strict=True))

    def _features(self, state: LeanState) -> dict[str, Array]:
        """Inputs of the coefficients, by `FEATURES`; about -1/2..1/2 each."""
        moments = state.moments
        dtype = moments.moment2.dtype
        lifetime = jnp.maximum(state.lifetime, 1).astype(dtype)
        life = jnp.minimum(state.updates / lifetime, 1).astype(dtype)
        length = jnp.log(lifetime / _MIDDLE_LENGTH) / math.log(_LENGTH_RATIO)
        known = moments.decay_product < 1
        sigma = jnp.where(known, _sigma(moments, known), _UNKNOWN_SIGMA)
        values = (
            jnp.ones((), dtype),
            life - 0.5,
            jnp.maximum(0, life - _COOLDOWN) / (1 - _COOLDOWN),
            0.5 * jnp.clip(length, -_MOST_LENGTH, _MOST_LENGTH),
            0.5 * jnp.tanh(jnp.log10(sigma + 1e-6) + 1.5),
        )
        return dict(zip(FEATURES, values, strict=True))

    def targets(
        self,
        eta: Params,
        state: LeanState,
        trajectory: Trajectory,
        online: Outputs,
        target: Outputs,
    ) -> tuple[dict[str, Array], LeanState, Metrics]:
        """Pseudo-targets of the policy and of the action value; see `Rule.targets`.

        Internally, actions come first, because sums over the first axis are fast.

        Values are constant with respect to the agent. Policies are not, so that discovery
        differentiates the policy gradient like a loss.

        Returns:
            {"pi": pi_hat, [T, B, A]; "q": q_hat, [T, B]; "policy_cost" and "q_cost", [T, B];
            "residual": mean square of the network's outputs, [T, B]}; the state; metrics.
        """
        coefficients = self.coefficients(eta, state)
        online, target = _actions_first(online), _actions_first(target)
        log_mu = jax.nn.log_softmax(jnp.moveaxis(trajectory.behaviour_logits, -1, 0), axis=0)
        taken = jax.nn.one_hot(trajectory.action, log_mu.shape[0], axis=0, dtype=log_mu.dtype)
        values = self._values(
            coefficients, trajectory, taken, log_mu, *jax.lax.stop_gradient((online, target))
        )
        weight = trajectory.learnable(values.v.dtype)
        moments = returns.update_moments(state.moments, values.advantage, weight)
        sigma = _sigma(moments, True)
        log_pi = jax.nn.log_softmax(online["logits"][:, :-1], axis=0)
        log_prior = jax.nn.log_softmax(target["logits"][:, :-1], axis=0)
        log_rho = jnp.sum(taken * (log_pi - log_mu), axis=0)
        legal = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), trajectory.legal(slice(-1)))
        features = self._features(state)
        inputs = _inputs(features, values, sigma, log_pi, log_prior, taken, log_rho, legal)
        residual = _network(eta, inputs)
        # Two sums, because XLA is slow at sums over an axis that is not the first.
        q_bonus, log_emphasis = (jnp.sum(taken * part, axis=0) for part in residual[1:])
        clip = self.clip * coefficients["clip"]
        improved = jax.nn.softmax(
            coefficients["prior"] * log_prior
            + coefficients["improvement"] * jnp.clip((values.q - values.v) / sigma, -clip, clip)
            + residual[0],
            axis=0,
        )
        emphasis = coefficients["advantage"] * jnp.exp(jnp.clip(log_emphasis, -3, 3))
        rho = jax.lax.stop_gradient(jnp.exp(log_rho))
        step = emphasis * jnp.minimum(1, rho) * values.advantage / sigma
        targets = {
            "pi": jnp.moveaxis(improved + step * (taken - jnp.exp(log_pi)), 0, -1),
            "q": values.returns + sigma * q_bonus,
            "policy_cost": jnp.broadcast_to(coefficients["policy_cost"], weight.shape),
            "q_cost": jnp.broadcast_to(coefficients["q_cost"], weight.shape),
            "residual": masks.mean_over_actions(jnp.square(residual), legal, axis=(0, 1)),
        }
        metrics = {
            "value": returns.weighted_mean(values.v, weight),
            "advantage_size": returns.weighted_mean(jnp.abs(values.advantage), weight),
            "importance_ratio": returns.weighted_mean(rho, weight),
        }
        return targets, LeanState(moments, state.updates + 1, state.lifetime), metrics

    def _values(
        self,
        coefficients: Mapping[str, Array],
        trajectory: Trajectory,
        taken: Array,
        log_mu: Array,
        online: Outputs,
        target: Outputs,
    ) -> _Values:
        q, log_prior = target["q"], jax.nn.log_softmax(target["logits"], axis=0)
        v = jnp.sum(jnp.exp(log_prior) * q, axis=0)
        discount = jnp.clip(1 - (1 - self.discount) * coefficients["discount"], 0, 1)
        lambda_ = jnp.clip(1 - (1 - self.lambda_) * coefficients["trace"], 0, 1)
        discount_t = discount * (1 - trajectory.terminated.astype(v.dtype))
        ratio_t = jnp.exp(jnp.sum(taken * (log_prior[:, :-1] - log_mu), axis=0))
        q_t, trace_t = jnp.sum(taken * q[:, :-1], axis=0), lambda_ * jnp.minimum(1, ratio_t)
        returns_t = returns.retrace_along(trajectory, discount, v, q_t, trace_t)
        return _Values(
            q=q[:, :-1],
            v=v[:-1],
            returns=returns_t,
            advantage=returns_t - v[:-1],
            one_step=trajectory.reward.astype(v.dtype) + discount_t * v[1:] - v[:-1],
            td=returns_t - jnp.sum(taken * online["q"][:, :-1], axis=0),
            disagreement=(online["q"] - q)[:, :-1],
        )

    def loss(
        self, outputs: Outputs, targets: dict[str, Array], trajectory: Trajectory
    ) -> dict[str, Array]:
        """Terms "policy" and "q", as above; see `Rule.loss`."""
        log_pi_t = jax.nn.log_softmax(outputs["logits"][:-1])
        taken = jax.nn.one_hot(trajectory.action, log_pi_t.shape[-1], dtype=log_pi_t.dtype)
        q_t = jnp.sum(taken * outputs["q"][:-1], axis=-1)
        error_t = q_t - returns.squash(targets["q"])
        return {
            "policy": -targets["policy_cost"] * jnp.sum(targets["pi"] * log_pi_t, axis=-1),
            "q": targets["q_cost"] * 0.5 * jnp.square(error_t),
        }

    def penalty(
        self, targets: dict[str, Array], trajectory: Trajectory, online: Outputs, target: Outputs
    ) -> Array:
        """Mean square of the residual network's outputs, weighted; see `Rule.penalty`."""
        square = targets["residual"]
        return self.residual_cost * returns.weighted_mean(
            square, trajectory.learnable(square.dtype)
        )


def _sigma(moments: Moments, known: Array | bool) -> Array:
    """Size of the advantages; the denominator is safe where they are not `known`."""
    missing = jnp.where(known, moments.decay_product, 0)
    return jnp.sqrt(moments.moment2 / (1 - missing) + 1e-12)


def _actions_first(outputs: Outputs) -> Outputs:
    """[T+1, B, A] -> [A, T+1, B]."""
    return {name: jnp.moveaxis(x, -1, 0) for name, x in outputs.items()}


def _inputs(
    features: Mapping[str, Array],
    values: _Values,
    sigma: Array,
    log_pi: Array,
    log_prior: Array,
    taken: Array,
    log_rho: Array,
    legal: Array | None,
) -> Array:
    """Inputs of the residual network for each action: [NUM_INPUTS, A, T, B]."""
    normalised_q = (values.q - values.v) / sigma
    advantage = jnp.tanh(values.advantage / sigma)
    pi = jnp.exp(log_pi)
    most_entropy = masks.uniform_entropy(legal, pi.shape[0], axis=0)
    entropy = -jnp.sum(pi * log_pi, axis=0) / most_entropy
    inputs = (
        jnp.ones_like(pi),
        pi,
        jnp.maximum(log_pi, _LEAST_LOG) * (2 / -_LEAST_LOG),
        jnp.maximum(log_prior, _LEAST_LOG) * (2 / -_LEAST_LOG),
        taken,
        values.q >= masks.max_over_actions(values.q, legal, axis=0),
        jnp.tanh(normalised_q),
        jnp.tanh(0.3 * normalised_q),
        jnp.tanh(values.disagreement / sigma),
        advantage,
        advantage * taken,
        jnp.tanh(values.one_step / sigma) * taken,
        jnp.tanh(values.td / sigma) * taken,
        entropy,
        jnp.clip(log_rho, -3, 3) / 3,
        2 * features["life"],
        2 * features["length"],
        2 * features["sigma"],
    )
    return jnp.stack([jnp.broadcast_to(x, pi.shape).astype(pi.dtype) for x in inputs])


def _network(eta: Params, inputs: Array) -> Array:
    """One hidden layer, with a skip connection from the inputs: [3, A, T, B]."""
    rows = inputs.reshape(NUM_INPUTS, -1)
    weights = eta["output"] * jnp.array(OUTPUT_GAINS, rows.dtype)
    # One product serves the hidden layer and the skip connection.
    first = jnp.concatenate([eta["hidden"], weights[:NUM_INPUTS]], axis=1).T @ rows
    units = eta["hidden"].shape[1]
    outputs = first[units:] + weights[NUM_INPUTS:].T @ jnp.tanh(first[:units])
    return outputs.reshape(-1, *inputs.shape[1:])
