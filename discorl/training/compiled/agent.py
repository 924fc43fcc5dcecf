"""An agent and its environments in JAX: acting, replay, targets and updates as pure functions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from discorl.agent import acting, frames
from discorl.agent.acting import ActorState, EpisodeStatistics
from discorl.agent.config import AgentConfig
from discorl.agent.learner import Learner
from discorl.envs import Environment
from discorl.runs.metrics import EPISODES, LENGTH, RETURN, STEP
from discorl.training.config import LONGEST_CALL
from discorl.training.state import TrainState, add_and_sample, init_replay
from discorl.types import Array, Key, Metrics, Params, PyTree, Trajectory


@dataclasses.dataclass(frozen=True)
class CompiledAgent:
    """Training of one agent as pure functions of its state."""

    config: AgentConfig
    environment: Environment
    learner: Learner

    @property
    def stacked_environment(self) -> Environment:
        """The environment that the agent acts in, with a frame stack if there is one."""
        size = self.config.frame_stack
        return self.environment if size == 1 else frames.FrameStack(self.environment, size)

    def policy(
        self,
        params: Params,
        observation: PyTree,
        recurrent_state: PyTree = (),
        action_mask: Array | None = None,
    ) -> tuple[Array, PyTree]:
        """See `Learner.policy`, for observations [N, ...] of `stacked_environment`."""
        size = self.config.frame_stack
        seen = observation if size == 1 else frames.stacks_of(observation, size)
        return self.learner.policy(params, seen, recurrent_state, action_mask)

    def init(self, key: Key, lifetime: Array | int) -> TrainState:
        """A fresh agent in fresh environments.

        Schedules span `lifetime`, [] int, the number of updates that the agent will make.
        """
        learner_key, actor_key, key = jax.random.split(key, 3)
        seen = frames.stacked(self.environment.observation, self.config.frame_stack)
        learner = self.learner.init(learner_key, seen, lifetime)
        actor = acting.init(
            self.stacked_environment, actor_key, self.config.num_envs, self.learner.network.state
        )
        buffer = None
        if self.config.replayed:
            rollout = jax.eval_shape(self.act, learner.params, actor, key)[1]
            buffer = init_replay(self.config, rollout)
        return TrainState(learner, actor, buffer, key, jnp.zeros((), jnp.int32))

    def act(
        self, params: Params, actor: ActorState, key: Key
    ) -> tuple[ActorState, Trajectory, EpisodeStatistics]:
        """Acts for one rollout, [T, E]."""
        policy = functools.partial(self.policy, params)
        actor, trajectory, episodes = acting.rollout(
            self.stacked_environment, policy, actor, key, self.config.unroll
        )
        if self.config.frame_stack > 1:
            trajectory = frames.without_repeats(trajectory)
        return actor, trajectory, episodes

    def collect(self, state: TrainState) -> tuple[TrainState, Trajectory, Metrics]:
        """Acts for one rollout and draws a batch, [T, B], of single frames.

        Returns the new state, the batch, and statistics of the episodes.
        """
        key, act_key, replay_key = jax.random.split(state.key, 3)
        assert state.actor is not None
        actor, fresh, episodes = self.act(state.learner.params, state.actor, act_key)
        buffer, batch = add_and_sample(self.config, state.replay, fresh, replay_key)
        steps = state.steps + episodes.steps
        metrics = {
            STEP: steps,
            EPISODES: episodes.count,
            # NaN if no episode ended.
            RETURN: episodes.return_sum / episodes.count,
            LENGTH: episodes.length_sum / episodes.count,
        }
        return TrainState(state.learner, actor, buffer, key, steps), batch, metrics

    def update(self, state: TrainState, eta: Params) -> tuple[TrainState, Metrics]:
        state, batch, episodes = self.collect(state)
        batch = frames.with_stacks(batch, self.config.frame_stack)
        learner, metrics = self.learner.update(state.learner, eta, batch)
        return dataclasses.replace(state, learner=learner), metrics | episodes

    def run(self, state: TrainState, eta: Params, count: Array) -> tuple[TrainState, Metrics]:
        """Makes `count` updates; their metrics fill the first rows of arrays [LONGEST_CALL].

        The count is an argument of the program. One program thus serves calls of any length, and
        the division of a run into calls cannot change its results.
        """
        shapes = jax.eval_shape(self.update, state, eta)[1]
        table = jax.tree.map(lambda x: jnp.zeros((LONGEST_CALL, *x.shape), x.dtype), shapes)

        def body(i: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, metrics = self.update(carry[0], eta)
            return state, jax.tree.map(lambda rows, x: rows.at[i].set(x), carry[1], metrics)

        return jax.lax.fori_loop(0, count, body, (state, table))
