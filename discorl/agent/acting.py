"""Acting: from an environment and a policy to trajectories, as pure functions.

Environments do not reset themselves. This module resets them, by the convention that
`discorl.types.Trajectory` states.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from discorl.envs.base import Environment
from discorl.networks.recurrence import blank_state, forget
from discorl.types import Array, Key, PyTree, Trajectory, validation

# Observations [E, ...], recurrent states [E, ...] and legal actions [E, A] -> logits [E, A] and the
# next recurrent states, which are () for an agent without memory. The mask is None if the
# environment has none.
Policy = Callable[[PyTree, PyTree, Array | None], tuple[Array, PyTree]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ActorState:
    """The state of `E` environments between two rollouts."""

    environment: PyTree  # states of the environments, [E, ...]
    observation: PyTree  # the latest observations, [E, ...]
    awaiting_reset: Array  # [E] bool, the episode was truncated by the latest step
    episode_return: Array  # [E] float, of the current episode so far
    episode_length: Array  # [E] int32, of the current episode so far
    recurrent_state: PyTree = ()  # of the network, before the latest observations, [E, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EpisodeStatistics:
    """Sums over the episodes that finished in a rollout, by termination or truncation."""

    return_sum: Array  # [] float
    length_sum: Array  # [] int32
    count: Array  # [] int32, episodes
    steps: Array  # [] int32, all environment steps, without fillers


def init(
    environment: Environment, key: Key, num_environments: int, recurrent_state: PyTree = ()
) -> ActorState:
    """Starts an episode in each of E environments.

    `recurrent_state` gives the shapes and dtypes of the recurrent state of one environment.
    """
    validation.integer("num_environments", num_environments, least=1)
    states, observations = jax.vmap(environment.reset)(jax.random.split(key, num_environments))
    return ActorState(
        environment=states,
        observation=observations,
        awaiting_reset=jnp.zeros(num_environments, bool),
        episode_return=jnp.zeros(num_environments),
        episode_length=jnp.zeros(num_environments, jnp.int32),
        recurrent_state=blank_state(recurrent_state, num_environments),
    )


def rollout(
    environment: Environment, policy: Policy, state: ActorState, key: Key, length: int
) -> tuple[ActorState, Trajectory, EpisodeStatistics]:
    """Acts for T steps in all environments and resets those whose episode ends.

    After a termination the next observation is the first of a new episode. After a truncation it
    is the last of the cut episode, and the step there is a filler, with reward 0, during which the
    environment is reset. A truncation by the last step of a rollout costs no filler: the next
    rollout starts with a new episode. So `truncated` implies the fillers, and `filler` is None.

    The state comes from `init` or from the previous rollout. Returns the new state, a trajectory,
    [T, E], and statistics of the episodes.
    """
    validation.integer("length", length, least=1)
    num_environments = state.awaiting_reset.shape[0]
    # Keys and noise are drawn before the loop: a few wide operations are faster than several small
    # ones per step.
    noise_key, step_key, reset_key = jax.random.split(key, 3)
    noise = jax.random.gumbel(noise_key, (length, num_environments, environment.num_actions))
    step_keys = jax.random.split(step_key, (length, num_environments))
    reset_keys = jax.random.split(reset_key, (length + 1, num_environments))

    def act(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Trajectory]:
        states, observations, is_filler, recurrent_state, seen = carry
        t, noise, step_keys, reset_keys = inputs
        action_mask = jax.vmap(environment.action_mask)(states)
        logits, recurrent_state = policy(observations, recurrent_state, action_mask)
        actions = jnp.argmax(logits + noise, axis=-1)  # the Gumbel-max trick
        states, step = jax.vmap(environment.step)(states, actions, step_keys)
        terminated = step.terminated & ~is_filler
        truncated = step.truncated & ~step.terminated & ~is_filler
        over = terminated | is_filler
        following = _reset_where(over, environment, reset_keys, (states, step.observation))
        seen = _put(seen, following[1], t + 1)
        return (*following, truncated, forget(recurrent_state, over), seen), Trajectory(
            observation=(),
            action=actions,
            reward=jnp.where(is_filler, 0, step.reward),
            terminated=terminated,
            behaviour_logits=logits,
            truncated=truncated,
            action_mask=action_mask,
        )

    start = _reset_where(
        state.awaiting_reset, environment, reset_keys[0], (state.environment, state.observation)
    )
    recurrent_state = forget(state.recurrent_state, state.awaiting_reset)
    # Observations are written into a buffer of T+1. Stacking T and appending the last would copy
    # all of them again.
    room = jax.tree.map(lambda x: jnp.zeros((length + 1, *x.shape), x.dtype), start[1])
    (states, observations, awaiting_reset, new_recurrent_state, seen), trajectory = jax.lax.scan(
        act,
        (*start, jnp.zeros_like(state.awaiting_reset), recurrent_state, _put(room, start[1], 0)),
        (jnp.arange(length), noise, step_keys, reset_keys[1:]),
    )
    last_mask = jax.vmap(environment.action_mask)(states)
    trajectory = dataclasses.replace(
        trajectory,
        observation=seen,
        recurrent_state=jax.tree.map(lambda x: x[None], recurrent_state),
        action_mask=jax.tree.map(
            lambda masks, last: jnp.concatenate([masks, last[None]]),
            trajectory.action_mask,
            last_mask,
        ),
    )
    episode_return, episode_length, statistics = _count_episodes(state, trajectory)
    state = ActorState(
        states, observations, awaiting_reset, episode_return, episode_length, new_recurrent_state
    )
    return state, trajectory, statistics


def _put(rows: PyTree, row: PyTree, index: Array | int) -> PyTree:
    """Writes one row, [...], into leaves [T+1, ...]."""
    put = jax.lax.dynamic_update_index_in_dim
    return jax.tree.map(lambda x, y: put(x, y, index, axis=0), rows, row)


def _reset_where(ended: Array, environment: Environment, keys: Key, current: PyTree) -> PyTree:
    """Resets environments where `ended`, [E] bool; states and observations have leaves [E, ...].

    Each environment has its own key, so the order of the resets does not matter.
    """
    reset = jax.vmap(environment.reset)
    if environment.resets_at_once is None:
        pick = jax.vmap(jnp.where)

        def begin(current: PyTree) -> PyTree:
            return jax.tree.map(lambda x, y: pick(ended, x, y), reset(keys), current)

        # `step` and `reset` may return different dtypes, such as bool and float32.
        current = jax.tree.map(
            lambda x, like: x if x.dtype == like.dtype else x.astype(like.dtype),
            current,
            jax.eval_shape(begin, current),
        )
        return jax.lax.cond(ended.any(), begin, lambda current: current, current)
    count = ended.shape[0]
    at_once = min(environment.resets_at_once, count)

    # Episodes end rarely. This loop resets no more than needed, while a fixed number of resets per
    # step would be wasted in most steps and too small in some.
    def reset_some(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        pending, current = carry
        index = jnp.nonzero(pending, size=at_once, fill_value=count)[0]
        fresh = reset(keys[jnp.minimum(index, count - 1)])
        current = jax.tree.map(lambda x, y: x.at[index].set(y, mode="drop"), current, fresh)
        return pending.at[index].set(False, mode="drop"), current

    return jax.lax.while_loop(lambda carry: carry[0].any(), reset_some, (ended, current))[1]


def _count_episodes(
    state: ActorState, trajectory: Trajectory
) -> tuple[Array, Array, EpisodeStatistics]:
    """Return [E] and length [E] of the current episodes, and statistics of the finished ones."""
    ended = trajectory.cut()
    real = ~trajectory.fillers()
    # A step belongs to a finished episode if and only if an episode ends at it or later.
    finished = jax.lax.cummax(ended.astype(jnp.int8), axis=0, reverse=True).astype(bool)
    # The sums carried over from the previous rollout count as one more step in front.
    finished = jnp.concatenate([finished[:1], finished])

    def split(before: Array, per_step: Array) -> tuple[Array, Array]:
        """Sums over finished episodes, [], and over the current ones, [E]."""
        amounts = jnp.concatenate([before[None], per_step], dtype=before.dtype)
        current = jnp.where(finished, 0, amounts).sum(axis=0)
        return jnp.where(finished, amounts, 0).sum(), current

    return_sum, episode_return = split(state.episode_return, trajectory.reward)
    length_sum, episode_length = split(state.episode_length, real)
    statistics = EpisodeStatistics(
        return_sum, length_sum, count=ended.sum(dtype=jnp.int32), steps=real.sum(dtype=jnp.int32)
    )
    return episode_return, episode_length, statistics
