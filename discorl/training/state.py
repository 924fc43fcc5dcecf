"""The training state of an agent, and the step from a rollout to a batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from discorl.agent import replay
from discorl.agent.acting import ActorState
from discorl.agent.config import AgentConfig
from discorl.agent.learner import LearnerState
from discorl.agent.replay import ReplayState
from discorl.types import Array, Key, Trajectory


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that training carries from one update to the next."""

    learner: LearnerState
    actor: ActorState | None  # None: the environments are on the host
    replay: ReplayState | None  # None: on-policy
    key: Key
    steps: Array  # [] int32, environment steps taken


def add_and_sample(
    agent: AgentConfig, buffer: ReplayState | None, fresh: Trajectory, key: Key
) -> tuple[ReplayState | None, Trajectory]:
    """Adds a rollout, [T, E], to replay and draws a batch, [T, B]; returns both.

    Without replay the batch is the rollout. Both have single frames if frames are stacked.
    """
    batch, parts = fresh, agent.data_parallel
    if buffer is not None and parts == 1:
        buffer = replay.add(buffer, fresh)
        batch = replay.mix(buffer, fresh, key, agent.batch, agent.replayed)
    elif buffer is not None:
        split = _split(fresh, parts)
        buffer = jax.vmap(replay.add)(buffer, split)
        mix = functools.partial(
            replay.mix, batch=agent.batch // parts, replayed=agent.replayed // parts
        )
        batch = _join(jax.vmap(mix)(buffer, split, jax.random.split(key, parts)))
    return buffer, scale_rewards(agent, batch)


def init_replay(agent: AgentConfig, rollout_like: Trajectory) -> ReplayState:
    """Empty replay for rollouts like this one, [T, E].

    With `data_parallel`, every part has its own buffer: leaves [parts, ...].
    """
    parts = agent.data_parallel
    if parts == 1:
        return replay.init(rollout_like, agent.replay)
    one = jax.eval_shape(
        lambda x: jax.tree.map(lambda leaf: leaf[0], _split(x, parts)), rollout_like
    )
    empty = replay.init(one, agent.replay // parts)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (parts, *x.shape)), empty)


def _split(trajectory: Trajectory, parts: int) -> Trajectory:
    """[T, E] to [parts, T, E / parts]."""
    return jax.tree.map(
        lambda x: jnp.moveaxis(x.reshape(x.shape[0], parts, -1, *x.shape[2:]), 1, 0), trajectory
    )


def _join(trajectory: Trajectory) -> Trajectory:
    """[parts, T, B / parts] to [T, B]."""
    return jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), trajectory
    )


def scale_rewards(agent: AgentConfig, batch: Trajectory) -> Trajectory:
    """The batch with the rewards that the agent learns from."""
    if agent.reward_scale in (None, 1):
        return batch
    return dataclasses.replace(batch, reward=agent.reward_scale * batch.reward)
