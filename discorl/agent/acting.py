"""Acting: from an environment and a policy to trajectories, as pure functions.

Environments do not reset themselves; this module does it, and so decides what a trajectory shows
of an episode's end. `discorl.types.Trajectory` states the convention.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from discorl.envs.base import Environment
from discorl.networks.recurrence import blank_state, forget
from discorl.types import Array, Key, PyTree, Trajectory, validation

# Observations [E, ...], recurrent states [E, ...] and legal actions [E, A] -> logits [E, A] and the
# next recurrent states. An agent without memory passes on the () that it is given. The mask is None
# in environments without one.
Policy = Callable[[PyTree, PyTree, Array | None], tuple[Array, PyTree]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ActorState:
    """The state of `E` environments between two rollouts."""

    environment: PyTree  # states of the environments, [E, ...]
    observation: PyTree  # the latest observations, [E, ...]
    awaiting_reset: Array  # [E] bool, the episode was truncated by the latest step
    episode_return: Array  # [E] float, so far, of the episode under way
    episode_length: Array  # [E] int32, so far, of the episode under way
    recurrent_state: PyTree = ()  # of the network, before the latest observations, [E, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EpisodeStatistics:
    """Sums over the episodes that finished in a rollout, by termination or truncation."""

    return_sum: Array  # [] float
    length_sum: Array  # [] int32
    count: Array  # [] int32, episodes
    steps: Array  # [] int32, all steps taken in the environments; a filler is not one


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

    The state is that of `init` or of the previous rollout. Returns the new state, a trajectory,
    [T, E], and statistics of the episodes.
    """
    validation.integer("length", length, least=1)
    num_environments = state.awaiting_reset.shape[0]
    # Keys are split and actions' noise is drawn before the loop, where it costs a few wide
    # operations instead of several small ones a step.
    noise_key, step_key, reset_key = jax.random.split(key, 3)
    noise = jax.random.gumbel(noise_key, (length, num_environments, environment.num_actions))
    step_keys = jax.random.split(step_key, (length, num_environments))
    reset_keys = jax.random.split(reset_key, (length + 1, num_environments))

    def act(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Trajectory]:
        states, observations, is_filler, recurrent_state, seen = carry
        t, noise, step_keys, reset_keys = inputs
        action_mask = jax.vmap(environment.action_mask)(states)
        logits, recurrent_state = policy(observations, recurrent_state, action_mask)
        actions = jnp.argmax(logits + noise, axis=-1)  # a sample: the Gumbel-max trick
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
    # Observations are written into their place among T+1: to stack T and join the last to them
    # would copy all of them once more.
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
        action_mask=jax.tree.map(_append, trajectory.action_mask, last_mask),
    )
    episode_return, episode_length, statistics = _count_episodes(state, trajectory)
    state = ActorState(
        states, observations, awaiting_reset, episode_return, episode_length, new_recurrent_state
    )
    return state, trajectory, statistics


def _append(rows: Array, row: Array) -> Array:
    return jnp.concatenate([rows, row[None]])


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

        # Steps may say in bool what resets say in float32.
        current = jax.tree.map(
            lambda x, like: x if x.dtype == like.dtype else x.astype(like.dtype),
            current,
            jax.eval_shape(begin, current),
        )
        return jax.lax.cond(ended.any(), begin, lambda current: current, current)
    count = ended.shape[0]
    at_once = min(environment.resets_at_once, count)

    # Episodes end rarely: most steps reset nothing here, and none resets more than needed, whereas
    # a fixed number of fresh starts a step is idle work in most steps and short of starts in some.
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
    # A step belongs to a finished episode exactly if some episode ends at it or later.
    finished = jax.lax.cummax(ended.astype(jnp.int8), axis=0, reverse=True).astype(bool)
    # What an episode brings along from before counts like one more step in front.
    finished = jnp.concatenate([finished[:1], finished])

    def split(before: Array, per_step: Array) -> tuple[Array, Array]:
        """Sums over finished episodes, [], and over the current ones, [E]."""
        amounts = jnp.concatenate([before[None], per_step], dtype=before.dtype)
        under_way = jnp.where(finished, 0, amounts).sum(axis=0)
        return jnp.where(finished, amounts, 0).sum(), under_way

    return_sum, episode_return = split(state.episode_return, trajectory.reward)
    length_sum, episode_length = split(state.episode_length, real)
    statistics = EpisodeStatistics(
        return_sum, length_sum, count=ended.sum(dtype=jnp.int32), steps=real.sum(dtype=jnp.int32)
    )
    return episode_return, episode_length, statistics
