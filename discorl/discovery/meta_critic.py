"""The meta-critic: predicts how a life will end from the policy at the end of a window.

A window covers a few updates. Maximising the return at its end makes rules greedy: a policy's
current return says little about its return at the end of its life. The meta-critic predicts the
latter from three features of the policy: its return J, the return of the sharpened policy,
softmax(4 logits), and its entropy. The prediction is a ridge regression for each group of agents
and quarter of life, learned from lives that have ended. Its gradient with respect to the features
is the meta-objective.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.families import Family
from discorl.rules import returns
from discorl.types import Array, Params, PyTree

FEATURES = ("policy_return", "sharpened_return", "relative_entropy")
STAGES = 4  # equal parts of a life
SHARPNESS = 4.0  # factor on the logits
LEAST_GAP = 0.25  # lower bound of the gap between optimal and random return as a divisor
# Coefficients of the features by stage before any life has ended: first explore, finally exploit.
PRIOR = ((0.0, 1.0, 0.1), (0.0, 1.0, 0.07), (0.5, 0.5, 0.04), (1.0, 0.0, 0.0))
RIDGE = 1.0  # pull toward the prior; features have variances of about 0.05 over windows
DECAY = 0.99  # of the statistics, at each meta-step
# The regression is only correlational, so returns never count negatively and entropy is bounded.
BOUNDS = ((0.0, 0.0, -0.05), (2.0, 2.0, 0.5))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Moments:
    """Sums over windows of features x and of their lives' outcomes y, [..., STAGES]."""

    count: Array
    x: Array  # [..., STAGES, 3]
    xx: Array  # [..., STAGES, 3, 3]
    y: Array
    xy: Array  # [..., STAGES, 3]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CriticState:
    """Statistics of current lives and of those that have ended."""

    count: Array  # [agents, STAGES], windows of the life so far
    x: Array  # [agents, STAGES, 3], sums of their features
    xx: Array  # [agents, STAGES, 3, 3]
    outcome: Array  # [agents, 2], sum and number of the outcomes in the last stage
    ended: Moments  # of each group's lives that have ended: [groups, STAGES, ...]
    coefficients: Array  # [groups, STAGES, 3]


@dataclasses.dataclass(frozen=True)
class Critic:
    """The meta-objective of one agent's window.

    `exact` maps the parameters of the agent's network to its J and sharpened J, [2]. It is None if
    there is no table of the task; the meta-value function then estimates both.
    """

    coefficients: Array  # [3]
    exact: Callable[[Params], Array] | None = None


def prior(objective: str) -> PyTree:
    """Coefficients at the start of a discovery, [STAGES, 3]; () without a meta-critic."""
    return jnp.array(PRIOR, jnp.float32) if objective == "meta_critic" else ()


def init(group_of: np.ndarray) -> CriticState:
    """The state before the first life has ended; `group_of` is each agent's group, [agents]."""
    agents, groups = len(group_of), int(group_of.max()) + 1
    features = len(FEATURES)

    def zeros(*shape: int) -> Array:
        return jnp.zeros(shape, jnp.float32)

    return CriticState(
        count=zeros(agents, STAGES),
        x=zeros(agents, STAGES, features),
        xx=zeros(agents, STAGES, features, features),
        outcome=zeros(agents, 2),
        ended=Moments(
            count=zeros(groups, STAGES),
            x=zeros(groups, STAGES, features),
            xx=zeros(groups, STAGES, features, features),
            y=zeros(groups, STAGES),
            xy=zeros(groups, STAGES, features),
        ),
        coefficients=jnp.tile(jnp.array(PRIOR, jnp.float32), (groups, 1, 1)),
    )


def stage_of(share: Array) -> Array:
    """The stage, int32, after a share of a life."""
    return jnp.clip((share * STAGES).astype(jnp.int32), 0, STAGES - 1)


def learn(
    group_of: np.ndarray,
    state: CriticState,
    features: Array,
    outcome: Array,
    share: Array,
    over: Array,
    sound: Array,
) -> CriticState:
    """Learns from a window of every agent, and from the lives that end with it.

    Features are those of the policies at the ends of the windows, [agents, 3]. The outcome,
    [agents], is J or, if that is not exact, the mean value of the visited states. The regression
    target of a window is the outcome's mean over the last stage of its life. `share` is the share
    of its life that each agent has used, `over` marks lives that end here, and lives that are not
    `sound` are ignored, [agents] each.
    """
    stage = jax.nn.one_hot(stage_of(share), STAGES)  # [agents, STAGES]
    finite = jnp.all(jnp.isfinite(features), axis=-1)
    stage = stage * finite[:, None]
    x = jnp.where(finite[:, None], features, 0)
    count = state.count + stage
    sum_x = state.x + stage[..., None] * x[:, None]
    sum_xx = state.xx + stage[..., None, None] * (x[:, None, :, None] * x[:, None, None, :])
    known = jnp.isfinite(outcome) & finite & (stage_of(share) == STAGES - 1)
    counted = jnp.stack([jnp.where(known, outcome, 0), known.astype(outcome.dtype)], axis=-1)
    outcomes = state.outcome + counted
    ends = over & sound & (outcomes[:, 1] > 0)
    y = outcomes[:, 0] / jnp.maximum(outcomes[:, 1], 1)
    groups = state.coefficients.shape[0]
    # [groups, agents]: which lives end in which group.
    chosen = (jnp.asarray(group_of) == jnp.arange(groups)[:, None]) & ends

    def added(old: Array, new: Array) -> Array:
        return DECAY * old + jnp.tensordot(chosen.astype(new.dtype), new, axes=1)

    of_lives = Moments(count, sum_x, sum_xx, count * y[:, None], sum_x * y[:, None, None])
    ended = jax.tree.map(added, state.ended, of_lives)

    def continued(total: Array) -> Array:
        return jnp.where(over.reshape(-1, *[1] * (total.ndim - 1)), 0, total)

    count, sum_x, sum_xx, outcomes = map(continued, (count, sum_x, sum_xx, outcomes))
    return CriticState(count, sum_x, sum_xx, outcomes, ended, regress(ended))


def regress(moments: Moments) -> Array:
    """Coefficients of the features, [..., STAGES, 3].

    Ridge regression on centred features, pulled toward PRIOR and kept within BOUNDS.
    """
    count = jnp.where(moments.count > 0, moments.count, 1)[..., None]
    centred_xx = moments.xx - moments.x[..., :, None] * moments.x[..., None, :] / count[..., None]
    centred_xy = moments.xy - moments.x * moments.y[..., None] / count
    prior = jnp.broadcast_to(jnp.array(PRIOR, moments.x.dtype), moments.x.shape)
    ridge = RIDGE * jnp.eye(len(FEATURES), dtype=moments.x.dtype)
    solved = jnp.linalg.solve(centred_xx + ridge, (centred_xy + RIDGE * prior)[..., None])
    return jnp.clip(solved[..., 0], *(jnp.array(bound, solved.dtype) for bound in BOUNDS))


# --- features -------------------------------------------------------------------------------------


def exact_returns(
    family: Family, task: PyTree, logits_of: Callable[[Params, Array], Array]
) -> Callable[[Params], Array] | None:
    """J and sharpened J of an agent in a task as a function of its parameters, [2].

    Both are normalised: 0 for random and 1 for optimal play. None if the family has no table of the
    observations in all states. `logits_of` maps parameters and observations [N, ...] to logits of
    the policy, [N, A].
    """
    seen = family.observations(task)
    if seen is None:
        return None
    shape = seen.shape[: seen.ndim - len(family.observation.shape)]
    rows = seen.reshape(-1, *family.observation.shape)
    reference = family.solve(task).reference
    gap = jnp.maximum(reference.optimal - reference.random, LEAST_GAP)

    def normalised(params: Params) -> Array:
        logits = logits_of(params, rows).reshape(*shape, -1)
        earned = [
            family.evaluate(task, jax.nn.softmax(sharpness * logits))
            for sharpness in (1.0, SHARPNESS)
        ]
        return (jnp.stack(earned) - reference.random) / gap

    return normalised


def estimated_returns(
    logits: Array, action: Array, value: Array, adv: Array, weight: Array
) -> Array:
    """Estimates of J and sharpened J, [2], whose gradients are policy gradients.

    J is the mean value of the visited states, with the gradient of the actor-critic loss. The
    sharpened policy is evaluated on the same actions by importance ratios, which are at most A.
    Logits are [T, B, A]; values have the unit of the advantages, through which no gradient flows.
    """
    log_pi = returns.take_action(jax.nn.log_softmax(logits), action)
    sharp_log_pi = returns.take_action(jax.nn.log_softmax(SHARPNESS * logits), action)
    behaviour = jax.lax.stop_gradient(log_pi)
    mean_value = jax.lax.stop_gradient(returns.weighted_mean(value, weight))

    def gain(log_policy: Array) -> Array:
        return returns.weighted_mean((jnp.exp(log_policy - behaviour) - 1) * adv, weight)

    return mean_value + jnp.stack([gain(log_pi), gain(sharp_log_pi)])
