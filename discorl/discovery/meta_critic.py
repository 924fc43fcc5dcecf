"""The meta-critic: what the policy at the end of a window is worth for the way its life ends.

A window sees a few updates. The return at its end makes rules greedy: what a policy earns now says
little about what it will have learned by the end of its life. The meta-critic predicts that from
three features of the policy: its return J, the return of the sharpened policy, softmax(4 logits),
and its entropy. The prediction is a ridge regression for each group of agents and quarter of life,
learned from lives that have ended. Its gradient with respect to the features is the meta-objective.
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
LEAST_GAP = 0.25  # between optimal and random return, where returns are divided by it
# Coefficients of the features by stage before any life has ended: explore first, earn at the end.
PRIOR = ((0.0, 1.0, 0.1), (0.0, 1.0, 0.07), (0.5, 0.5, 0.04), (1.0, 0.0, 0.0))
RIDGE = 1.0  # pull toward the prior; windows have variances of about 0.05
DECAY = 0.99  # of the statistics, at each meta-step
# More return is never worse, and the worth of entropy is bounded: the regression is correlational.
BOUNDS = ((0.0, 0.0, -0.05), (2.0, 2.0, 0.5))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Moments:
    """Sums over windows of the features x and of the outcome y of their lives, [..., STAGES]."""

    count: Array
    x: Array  # [..., STAGES, 3]
    xx: Array  # [..., STAGES, 3, 3]
    y: Array
    xy: Array  # [..., STAGES, 3]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CriticState:
    """What is known of lives under way and of those that have ended."""

    count: Array  # [agents, STAGES], windows of the life so far
    x: Array  # [agents, STAGES, 3], sums of their features
    xx: Array  # [agents, STAGES, 3, 3]
    outcome: Array  # [agents, 2], sum and number of the outcomes in the last stage
    ended: Moments  # of each group's lives that have ended: [groups, STAGES, ...]
    coefficients: Array  # [groups, STAGES, 3]


@dataclasses.dataclass(frozen=True)
class Critic:
    """The meta-objective of one agent's window.

    `exact` maps the parameters of the agent's network to its J and sharpened J, [2]. Where no
    table of the task exists it is None, and both are estimated by the meta-value function.
    """

    coefficients: Array  # [3]
    exact: Callable[[Params], Array] | None = None


def prior(objective: str) -> PyTree:
    """Coefficients at the beginning of a discovery, [STAGES, 3]; () without a meta-critic."""
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
    """The stage, int32, in which a share of a life is used up."""
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
    """Takes in a window of every agent, and the lives that end with it.

    Features are those of the policies at the ends of the windows, [agents, 3]. The outcome,
    [agents], is J or, where it is not exact, the mean value of the states met; windows are
    regressed on its mean over the last stage of their life. `share` is that of its life which each
    agent has used, `over` marks lives that end here, and lives that are not `sound` count for
    nothing, [agents] each.
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

    def added(old: Array, of_lives: Array) -> Array:
        return DECAY * old + jnp.tensordot(chosen.astype(of_lives.dtype), of_lives, axes=1)

    ended = Moments(
        count=added(state.ended.count, count),
        x=added(state.ended.x, sum_x),
        xx=added(state.ended.xx, sum_xx),
        y=added(state.ended.y, count * y[:, None]),
        xy=added(state.ended.xy, sum_x * y[:, None, None]),
    )

    def goes_on(total: Array) -> Array:
        return jnp.where(over.reshape(-1, *[1] * (total.ndim - 1)), 0, total)

    return CriticState(
        count=goes_on(count),
        x=goes_on(sum_x),
        xx=goes_on(sum_xx),
        outcome=goes_on(outcomes),
        ended=ended,
        coefficients=regress(ended),
    )


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

    Both are normalised: 0 for random and 1 for optimal play. None if the family has no table of
    what is seen in each situation. `logits_of` maps parameters and observations [N, ...] to logits
    of the policy, [N, A].
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
    """J and sharpened J, [2], with the gradients of their policy gradients.

    J is the mean value of the states met, with the gradient of the actor-critic loss. The sharpened
    policy is judged on the same actions by importance ratios, which are at most A. Logits are
    [T, B, A]; values are in the unit of the advantages, through which no gradient flows.
    """
    log_pi = returns.take_action(jax.nn.log_softmax(logits), action)
    sharp_log_pi = returns.take_action(jax.nn.log_softmax(SHARPNESS * logits), action)
    behaviour = jax.lax.stop_gradient(log_pi)
    mean_value = jax.lax.stop_gradient(returns.weighted_mean(value, weight))

    def gain(log_policy: Array) -> Array:
        return returns.weighted_mean((jnp.exp(log_policy - behaviour) - 1) * adv, weight)

    return mean_value + jnp.stack([gain(log_pi), gain(sharp_log_pi)])
