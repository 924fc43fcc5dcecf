"""One agent's training as pure functions: acting, replay, targets and updates in one program."""

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from discorl.agent import acting, frames, replay
from discorl.agent.acting import ActorState, EpisodeStatistics
from discorl.agent.learner import Learner, LearnerState
from discorl.agent.replay import ReplayState
from discorl.envs import Environment
from discorl.training.config import LONGEST_CALL, Config
from discorl.types import Array, Key, Metrics, Params, PyTree, Trajectory


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
    config: Config, buffer: ReplayState | None, fresh: Trajectory, key: Key
) -> tuple[ReplayState | None, Trajectory]:
    """Puts a rollout into replay and makes a batch to learn from.

    Args:
        config: sizes of the batch, and the scale of its rewards.
        buffer: replay; None: the batch is the rollout.
        fresh: the rollout, [T, E]; with single frames if frames are stacked.
        key: randomness of the sample.

    Returns:
        replay; the batch, [T, B], with single frames like the rollout.
    """
    batch = fresh
    if buffer is not None:
        buffer = replay.add(buffer, fresh)
        batch = replay.mix(buffer, fresh, key, config.batch, config.replayed)
    if config.reward_scale != 1:
        batch = dataclasses.replace(batch, reward=config.reward_scale * batch.reward)
    return buffer, batch


@dataclasses.dataclass(frozen=True)
class Trainer:
    """One agent's training as pure functions of its state."""

    config: Config
    environment: Environment
    learner: Learner

    @property
    def acted(self) -> Environment:
        """The environment as it is acted in, where stacks of frames are remembered."""
        size = self.config.frame_stack
        return self.environment if size == 1 else frames.Remembering(self.environment, size)

    def policy(
        self, params: Params, observation: PyTree, core: PyTree = ()
    ) -> tuple[Array, PyTree]:
        """See `Learner.policy`, for observations [N, ...] of `acted`."""
        size = self.config.frame_stack
        seen = observation if size == 1 else frames.of_remembering(observation, size)
        return self.learner.policy(params, seen, core)

    def init(self, key: Key, lifetime: Array | None = None) -> TrainState:
        """A fresh agent in fresh environments.

        Args:
            key: random key.
            lifetime: updates that the agent will make, [] int32; by default those of the settings.
        """
        lifetime = jnp.int32(self.config.updates) if lifetime is None else lifetime
        learner_key, actor_key, key = jax.random.split(key, 3)
        seen = frames.stacked(self.environment.observation, self.config.frame_stack)
        learner = self.learner.init(learner_key, seen, lifetime)
        actor = acting.init(
            self.acted, actor_key, self.config.environments, self.learner.network.state
        )
        buffer = None
        if self.config.replayed:
            rollout = jax.eval_shape(self.act, learner.params, actor, key)[1]
            buffer = replay.init(rollout, self.config.replay)
        return TrainState(learner, actor, buffer, key, jnp.zeros((), jnp.int32))

    def act(
        self, params: Params, actor: ActorState, key: Key
    ) -> tuple[ActorState, Trajectory, EpisodeStatistics]:
        """Acts for one rollout, [T, E]."""

        def policy(observation: PyTree, core: PyTree) -> tuple[Array, PyTree]:
            return self.policy(params, observation, core)

        actor, trajectory, episodes = acting.rollout(
            self.acted, policy, actor, key, self.config.unroll
        )
        if self.config.frame_stack > 1:
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
        buffer, batch = absorb(self.config, state.replay, fresh, replay_key)
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
        batch = frames.with_stacks(batch, self.config.frame_stack)
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

    def init(self, trainer: Trainer) -> Callable[[Key], TrainState]:
        """Makes fresh agents from keys, [seeds], or from one key if there is one seed.

        Their learning rate is that of whichever run came first.
        """
        key = self._key(trainer)
        if key not in self._inits:
            several = trainer.config.seeds > 1
            self._inits[key] = jax.jit(jax.vmap(trainer.init) if several else trainer.init)
        return self._inits[key]

    def run(self, trainer: Trainer, eta: Params, state: TrainState) -> Callable:
        """`Trainer.run`, which uses its state up; with several seeds, for all of them at once."""
        key = self._key(trainer)
        if key not in self._runs:
            function = trainer.run
            if trainer.config.seeds > 1:
                function = jax.vmap(function, in_axes=(0, None, None))
            count = jax.ShapeDtypeStruct((), jnp.int32)
            lowered = jax.jit(function, donate_argnums=0).lower(state, eta, count)
            self._runs[key] = lowered.compile()
        return self._runs[key]

    def _key(self, trainer: Trainer) -> Hashable:
        """All that a program depends on."""
        config = dataclasses.replace(trainer.config, learning_rate=1.0, seed=0)
        return config, trainer.learner.rule


class CompiledProgram:
    """Training in one compiled program, with environments written in JAX."""

    def __init__(
        self, trainer: Trainer, eta: Params, state: TrainState, programs: Programs | None = None
    ) -> None:
        """Compiles.

        Args:
            trainer: the agents' training.
            eta: the rule's parameters.
            state: like the one to go on from; with several seeds, every leaf has a leading axis.
            programs: those compiled so far.
        """
        self._program = (programs or Programs()).run(trainer, eta, state)
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
