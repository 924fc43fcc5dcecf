"""One agent's training as pure functions: acting, replay, targets and updates in one program."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from discorl.agent import acting, frames, replay
from discorl.agent.acting import ActorState, EpisodeStatistics
from discorl.agent.config import AgentConfig
from discorl.agent.learner import Learner, LearnerState
from discorl.agent.replay import ReplayState
from discorl.envs import Environment
from discorl.training.config import LONGEST_CALL, TrainConfig
from discorl.types import Array, Key, Metrics, Params, PyTree, Trajectory, settings


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a run depends on from one update to the next."""

    learner: LearnerState
    actor: ActorState | None  # None: the environments are on the host, and are not kept
    replay: ReplayState | None  # None: on-policy
    key: Key
    steps: Array  # [] int32, environment steps taken


def absorb(
    agent: AgentConfig, buffer: ReplayState | None, fresh: Trajectory, key: Key
) -> tuple[ReplayState | None, Trajectory]:
    """Puts a rollout into replay and makes a batch to learn from.

    Args:
        agent: sizes of the batch, and the scale of its rewards.
        buffer: replay; None: the batch is the rollout.
        fresh: the rollout, [T, E]; with single frames if frames are stacked.
        key: randomness of the sample.

    Returns:
        replay; the batch, [T, B], with single frames like the rollout.
    """
    batch = fresh
    if buffer is not None:
        buffer = replay.add(buffer, fresh)
        batch = replay.mix(buffer, fresh, key, agent.batch, agent.replayed)
    return buffer, scaled(agent, batch)


def scaled(agent: AgentConfig, batch: Trajectory) -> Trajectory:
    """A batch with the rewards that the agent learns from."""
    if agent.reward_scale == 1:
        return batch
    return dataclasses.replace(batch, reward=agent.reward_scale * batch.reward)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """One agent's training as pure functions of its state."""

    agent: AgentConfig
    environment: Environment
    learner: Learner

    @property
    def acted(self) -> Environment:
        """The environment as it is acted in, where stacks of frames are remembered."""
        size = self.agent.frame_stack
        return self.environment if size == 1 else frames.Remembering(self.environment, size)

    def policy(
        self, params: Params, observation: PyTree, core: PyTree = ()
    ) -> tuple[Array, PyTree]:
        """See `Learner.policy`, for observations [N, ...] of `acted`."""
        size = self.agent.frame_stack
        seen = observation if size == 1 else frames.of_remembering(observation, size)
        return self.learner.policy(params, seen, core)

    def init(self, key: Key, lifetime: Array | int) -> TrainState:
        """A fresh agent in fresh environments.

        Args:
            key: random key.
            lifetime: [] int, updates that the agent will make; schedules are laid over them.
        """
        learner_key, actor_key, key = jax.random.split(key, 3)
        seen = frames.stacked(self.environment.observation, self.agent.frame_stack)
        learner = self.learner.init(learner_key, seen, lifetime)
        actor = acting.init(self.acted, actor_key, self.agent.num_envs, self.learner.network.state)
        buffer = None
        if self.agent.replayed:
            rollout = jax.eval_shape(self.act, learner.params, actor, key)[1]
            buffer = replay.init(rollout, self.agent.replay)
        return TrainState(learner, actor, buffer, key, jnp.zeros((), jnp.int32))

    def act(
        self, params: Params, actor: ActorState, key: Key
    ) -> tuple[ActorState, Trajectory, EpisodeStatistics]:
        """Acts for one rollout, [T, E]."""

        def policy(observation: PyTree, core: PyTree) -> tuple[Array, PyTree]:
            return self.policy(params, observation, core)

        actor, trajectory, episodes = acting.rollout(
            self.acted, policy, actor, key, self.agent.unroll
        )
        if self.agent.frame_stack > 1:
            trajectory = frames.without_repeats(trajectory)
        return actor, trajectory, episodes

    def collect(self, state: TrainState) -> tuple[TrainState, Trajectory, Metrics]:
        """Acts for one rollout and makes a batch to learn from.

        Returns:
            the new state; the batch, [T, B], with single frames if frames are stacked; what became
            of the episodes.
        """
        key, act_key, replay_key = jax.random.split(state.key, 3)
        assert state.actor is not None
        actor, fresh, episodes = self.act(state.learner.params, state.actor, act_key)
        buffer, batch = absorb(self.agent, state.replay, fresh, replay_key)
        steps = state.steps + episodes.steps
        metrics = {
            "steps": steps,
            "episodes": episodes.count,
            # NaN where no episode ended: there is nothing to report.
            "return": episodes.return_sum / episodes.count,
            "episode_length": episodes.length_sum / episodes.count,
        }
        return TrainState(state.learner, actor, buffer, key, steps), batch, metrics

    def update(self, state: TrainState, eta: Params) -> tuple[TrainState, Metrics]:
        """Collects a batch and learns from it."""
        state, batch, episodes = self.collect(state)
        batch = frames.with_stacks(batch, self.agent.frame_stack)
        learner, metrics = self.learner.update(state.learner, eta, batch)
        return dataclasses.replace(state, learner=learner), metrics | episodes

    def run(self, state: TrainState, eta: Params, count: Array) -> tuple[TrainState, Metrics]:
        """Makes `count` updates.

        The count is not part of the program: one program serves calls of any length, so that how
        a run is cut into calls cannot change its results.

        Returns:
            the new state; metrics of each update, [LONGEST_CALL], of which `count` are filled.
        """
        shapes = jax.eval_shape(self.update, state, eta)[1]
        table = jax.tree.map(lambda x: jnp.zeros((LONGEST_CALL, *x.shape), x.dtype), shapes)

        def body(i: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, metrics = self.update(carry[0], eta)
            return state, jax.tree.map(lambda rows, x: rows.at[i].set(x), carry[1], metrics)

        return jax.lax.fori_loop(0, count, body, (state, table))


class Program(Protocol):
    """Makes updates; compiled, and bound to the rule's parameters."""

    def __call__(
        self, state: TrainState, count: int
    ) -> tuple[TrainState, Mapping[str, np.ndarray], int]:
        """Makes `count` updates, fewer if an environment fails meanwhile.

        Args:
            state: used up.
            count: at most `LONGEST_CALL`.

        Returns:
            the new state; metrics of each update, [at least made]; how many updates were made.

        Raises:
            EnvironmentFailure: none could be made; the state is as it was.
        """

    def close(self) -> None:
        """Lets go of environments on the host."""


class Programs:
    """Compiled functions of training, kept for runs that differ in data only.

    Learning rates and seeds are data, for the state holds them: one program serves them all.
    Environments have to be known by their names.
    """

    def __init__(self) -> None:
        self._inits: dict[Hashable, Callable] = {}
        self._runs: dict[Hashable, Callable] = {}

    def init(self, config: TrainConfig, trainer: Trainer) -> Callable[[Key], TrainState]:
        """Makes fresh agents from keys, [seeds], or from one key if there is one seed.

        Their learning rate is that of whichever run came first.
        """
        key = self._key(config, trainer)
        if key not in self._inits:
            init = functools.partial(trainer.init, lifetime=config.updates)
            self._inits[key] = jax.jit(jax.vmap(init) if config.seeds > 1 else init)
        return self._inits[key]

    def run(
        self, config: TrainConfig, trainer: Trainer, eta: Params, state: TrainState
    ) -> Callable:
        """`Trainer.run`, which uses its state up; with several seeds, for all of them at once."""
        key = self._key(config, trainer)
        if key not in self._runs:
            function = trainer.run
            if config.seeds > 1:
                function = jax.vmap(function, in_axes=(0, None, None))
            count = jax.ShapeDtypeStruct((), jnp.int32)
            lowered = jax.jit(function, donate_argnums=0).lower(state, eta, count)
            self._runs[key] = lowered.compile()
        return self._runs[key]

    def _key(self, config: TrainConfig, trainer: Trainer) -> Hashable:
        """All that a program depends on."""
        return settings.replace(config, learning_rate=1.0, seed=0), trainer.learner.rule


class CompiledProgram:
    """Training in one compiled program, with environments written in JAX."""

    def __init__(
        self,
        config: TrainConfig,
        trainer: Trainer,
        eta: Params,
        state: TrainState,
        programs: Programs | None = None,
    ) -> None:
        """Compiles.

        Args:
            config: the run's settings.
            trainer: the agents' training.
            eta: the rule's parameters.
            state: like the one to go on from; with several seeds, every leaf has a leading axis.
            programs: those compiled so far.
        """
        self._program = (programs or Programs()).run(config, trainer, eta, state)
        self._eta = eta

    def __call__(
        self, state: TrainState, count: int
    ) -> tuple[TrainState, Mapping[str, np.ndarray], int]:
        """See `Program`."""
        state, metrics = self._program(state, self._eta, count)
        # Metrics come to the host at once; the state stays where it is.
        return state, jax.device_get(metrics), count

    def close(self) -> None:
        """Holds nothing."""
        return
