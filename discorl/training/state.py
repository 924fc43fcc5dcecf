"""The training state of an agent, and the step from a rollout to a batch."""

import dataclasses

import jax

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
    actor: ActorState | None  # None: the environments are on the host and are not part of it
    replay: ReplayState | None  # None: on-policy
    key: Key
    steps: Array  # [] int32, environment steps taken


def add_and_sample(
    agent: AgentConfig, buffer: ReplayState | None, fresh: Trajectory, key: Key
) -> tuple[ReplayState | None, Trajectory]:
    """Adds a rollout, [T, E], to replay and draws a batch, [T, B]; returns both.

    Without replay the batch is the rollout. Both have single frames if frames are stacked.
    """
    batch = fresh
    if buffer is not None:
        buffer = replay.add(buffer, fresh)
        batch = replay.mix(buffer, fresh, key, agent.batch, agent.replayed)
    return buffer, scale_rewards(agent, batch)


def scale_rewards(agent: AgentConfig, batch: Trajectory) -> Trajectory:
    """The batch with the rewards that the agent learns from."""
    if agent.reward_scale in (None, 1):
        return batch
    return dataclasses.replace(batch, reward=agent.reward_scale * batch.reward)
