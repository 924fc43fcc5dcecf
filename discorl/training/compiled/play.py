"""Playing and filming agents in environments in JAX."""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from discorl.networks.recurrence import blank_state
from discorl.training.compiled.agent import CompiledAgent
from discorl.training.trainer import Episodes
from discorl.types import Array, Key, Params, PyTree


def make_play(agent: CompiledAgent, episodes: int, greedy: bool, max_steps: int) -> Callable:
    """The program that `play` runs: parameters and a key to returns, lengths and endings."""
    return jax.jit(lambda params, key: _play(agent, params, key, episodes, greedy, max_steps))


def play(one: Callable, params_by_seed: list[Params], key: Key) -> Episodes:
    """Plays one episode per environment, which avoids a bias toward short episodes."""
    keys = jax.random.split(key, len(params_by_seed))
    played = [one(params, key) for params, key in zip(params_by_seed, keys, strict=True)]
    returns, lengths, ended = (np.stack([np.asarray(p[i]) for p in played]) for i in range(3))
    return Episodes(returns, lengths, ended)


def _choose(
    agent: CompiledAgent,
    params: Params,
    state: PyTree,
    observation: PyTree,
    recurrent_state: PyTree,
    key: Key,
    greedy: bool,
) -> tuple[Array, PyTree]:
    """Actions for a batch of states and their observations, and the next recurrent state."""
    action_mask = jax.vmap(agent.stacked_environment.action_mask)(state)
    logits, recurrent_state = agent.policy(params, observation, recurrent_state, action_mask)
    action = jnp.argmax(logits, axis=-1) if greedy else jax.random.categorical(key, logits)
    return action, recurrent_state


def _play(
    agent: CompiledAgent, params: Params, key: Key, episodes: int, greedy: bool, max_steps: int
) -> tuple[Array, Array, Array]:
    """Returns, lengths, and whether the episodes ended by themselves: [episodes] each."""
    environment = agent.stacked_environment
    reset_key, key = jax.random.split(key)
    state, observation = jax.vmap(environment.reset)(jax.random.split(reset_key, episodes))

    def goes_on(carry: tuple) -> Array:
        *_, ended, step = carry
        return ~jnp.all(ended) & (step < max_steps)

    def advance(carry: tuple) -> tuple:
        state, observation, recurrent_state, total, length, ended, step = carry
        act_key, step_key = jax.random.split(jax.random.fold_in(key, step))
        action, recurrent_state = _choose(
            agent, params, state, observation, recurrent_state, act_key, greedy
        )
        keys = jax.random.split(step_key, episodes)
        state, result = jax.vmap(environment.step)(state, action, keys)
        # Ended episodes keep stepping, without effect on the results.
        total = total + jnp.where(ended, 0, result.reward)
        length = length + ~ended
        ended = ended | result.terminated | result.truncated
        return state, result.observation, recurrent_state, total, length, ended, step + 1

    zeros = jnp.zeros(episodes)
    recurrent_state = blank_state(agent.learner.network.state, episodes)
    start = (
        state,
        observation,
        recurrent_state,
        zeros,
        zeros.astype(jnp.int32),
        zeros.astype(bool),
        0,
    )
    *_, total, length, ended, _ = jax.lax.while_loop(goes_on, advance, start)
    return total, length, ended


@dataclasses.dataclass(frozen=True)
class Moment:
    """A moment of an episode, and the action taken at it."""

    environment: PyTree  # the environment's state
    observation: PyTree  # of `CompiledAgent.stacked_environment`
    recurrent_state: PyTree  # before the observation, [1, ...]
    action: int | None = None  # None: the episode is over
    reward: float = 0.0  # that follows the action


def episode(
    agent: CompiledAgent, params: Params, key: Key, greedy: bool, max_steps: int
) -> Iterator[Moment]:
    """Plays one episode, moment by moment; the last moment is the one after the last action."""
    environment = agent.stacked_environment
    reset_key, key = jax.random.split(key)
    state, observation = environment.reset(reset_key)
    recurrent_state = blank_state(agent.learner.network.state, 1)
    step = jax.jit(environment.step)
    choose = jax.jit(lambda p, s, x, m, k: _choose(agent, p, s, x, m, k, greedy))
    for i in range(max_steps):
        act_key, step_key = jax.random.split(jax.random.fold_in(key, i))
        batch = jax.tree.map(lambda x: x[None], (state, observation))
        action, following = choose(params, *batch, recurrent_state, act_key)
        next_state, result = step(state, action[0], step_key)
        yield Moment(state, observation, recurrent_state, int(action[0]), float(result.reward))
        state, observation, recurrent_state = next_state, result.observation, following
        if result.terminated or result.truncated:
            break
    yield Moment(state, observation, recurrent_state)


def film(
    agent: CompiledAgent, params: Params, key: Key, greedy: bool, max_frames: int
) -> list[np.ndarray]:
    """Frames of one episode; [] if the environment cannot be rendered."""
    frames: list[np.ndarray] = []
    for moment in episode(agent, params, key, greedy, max_frames):
        frame = agent.stacked_environment.render(moment.environment)
        if frame is None:
            return frames if moment.action is None else []
        frames.append(frame)
    return frames
