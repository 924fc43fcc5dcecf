"""An agent with host environments: learning as pure functions, and actors."""

import dataclasses

import jax
import jax.numpy as jnp

from discorl.agent import frames
from discorl.agent.config import AgentConfig
from discorl.agent.learner import Learner, LearnerState
from discorl.agent.replay import ReplayState
from discorl.envs.host.base import HostEnvironment
from discorl.training.host.acting import HostActor
from discorl.training.host.programs import ActingPrograms
from discorl.training.state import TrainState, add_and_sample, init_replay
from discorl.types import Array, Key, Metrics, Params, Trajectory


def acting_key(key: Key) -> Key:
    """A key for acting, independent of those that learning derives from the same key."""
    return jax.random.fold_in(key, 0xAC7)


@dataclasses.dataclass(frozen=True)
class HostAgent:
    """Training of one agent, whose environments an actor steps."""

    config: AgentConfig
    environment: HostEnvironment
    learner: Learner

    def init(self, key: Key, lifetime: Array | int) -> TrainState:
        """A fresh agent; see `CompiledAgent.init`."""
        learner_key, key = jax.random.split(key)
        seen = frames.stacked(self.environment.observation, self.config.frame_stack)
        buffer = None
        if self.config.replayed:
            buffer = init_replay(self.config, self.rollout_like())
        learner = self.learner.init(learner_key, seen, lifetime)
        return TrainState(learner, None, buffer, key, jnp.zeros((), jnp.int32))

    @property
    def programs(self) -> ActingPrograms:
        return ActingPrograms(
            self.environment,
            self.learner.policy,
            count=self.config.num_envs,
            length=self.config.unroll,
            size=self.config.frame_stack,
            state=self.learner.network.state,
        )

    def rollout_like(self) -> Trajectory:
        """Shapes and dtypes of a rollout, [T, E]."""
        return jax.eval_shape(self.programs.example)

    def learn(
        self,
        buffer: ReplayState | None,
        fresh: Trajectory,
        learner: LearnerState,
        key: Key,
        eta: Params,
    ) -> tuple[ReplayState | None, LearnerState, Key, Metrics]:
        """Adds a rollout, [T, E], to replay and makes an update."""
        key, replay_key = jax.random.split(key)
        buffer, batch = add_and_sample(self.config, buffer, fresh, replay_key)
        batch = frames.with_stacks(batch, self.config.frame_stack)
        learner, metrics = self.learner.update(learner, eta, batch)
        return buffer, learner, key, metrics

    def actor(self, seed: int) -> HostActor:
        return HostActor(self.programs, seed)
