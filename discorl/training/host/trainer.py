"""Training with environments on the host: they are stepped while the device learns.

A thread acts for the next rollout while the device makes an update of the last one. The parameters
that act are therefore one update behind those that learn, always: in which order data come and
what they were acted with does not depend on how fast anything is.
"""

import dataclasses
import queue
import threading
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl.agent import frames, replay
from discorl.agent.config import AgentConfig
from discorl.agent.learner import Learner, LearnerState
from discorl.agent.replay import ReplayState
from discorl.envs.host.base import EnvironmentFailure, HostEnvironment
from discorl.runs.metrics import EPISODE
from discorl.training.config import TrainConfig
from discorl.training.host import acting
from discorl.training.host.acting import HostActor, Rollout
from discorl.training.host.rollout import Episode
from discorl.training.trainer import TrainState, absorb
from discorl.types import Array, Key, Metrics, Params, Trajectory

_POLL_SECONDS = 0.5


def acting_key(key: Key) -> Key:
    """A key for acting, apart from those that learning draws from the same one."""
    return jax.random.fold_in(key, 0xAC7)


@dataclasses.dataclass(frozen=True)
class HostTrainer:
    """One agent's training in environments on the host."""

    agent: AgentConfig
    environment: HostEnvironment
    learner: Learner

    def init(self, key: Key, lifetime: Array | int) -> TrainState:
        """A fresh agent; see `Trainer.init`."""
        learner_key, key = jax.random.split(key)
        seen = frames.stacked(self.environment.observation, self.agent.frame_stack)
        buffer = None
        if self.agent.replayed:
            buffer = replay.init(self.rollout_like(), self.agent.replay)
        learner = self.learner.init(learner_key, seen, lifetime)
        return TrainState(learner, None, buffer, key, jnp.zeros((), jnp.int32))

    def rollout_like(self) -> Trajectory:
        """Shapes and dtypes of a rollout, [T, E]."""
        return acting.example(
            self.environment,
            self.agent.num_envs,
            self.agent.unroll,
            self.agent.frame_stack,
            self.learner.network.state,
        )

    def learn(
        self,
        buffer: ReplayState | None,
        fresh: Trajectory,
        learner: LearnerState,
        key: Key,
        eta: Params,
    ) -> tuple[ReplayState | None, LearnerState, Key, Metrics]:
        """Takes in a rollout, [T, E], and makes an update."""
        key, replay_key = jax.random.split(key)
        buffer, batch = absorb(self.agent, buffer, fresh, replay_key)
        batch = frames.with_stacks(batch, self.agent.frame_stack)
        learner, metrics = self.learner.update(learner, eta, batch)
        return buffer, learner, key, metrics

    def actor(self, seed: int) -> HostActor:
        """Acts for training, in environments of the given seed."""
        return HostActor(
            self.environment,
            self.learner.policy,
            count=self.agent.num_envs,
            length=self.agent.unroll,
            seed=seed,
            frame_stack=self.agent.frame_stack,
            core=self.learner.network.state,
        )


class HostProgram:
    """See `discorl.training.trainer.Program`: acting and learning at the same time."""

    def __init__(
        self,
        config: TrainConfig,
        trainer: HostTrainer,
        eta: Params,
        state: TrainState,
        done: int,
    ) -> None:
        """Compiles, and starts the environments.

        Args:
            config: the run's settings.
            trainer: the agent's training.
            eta: the rule's parameters.
            state: the state to go on from.
            done: updates made so far. Environments are not part of the state: they start anew, with
                seeds that depend on this.
        """
        self._config, self._environment, self._eta = config, trainer.environment, eta
        self._made = done
        self._root = acting_key(jax.random.key(config.seed))
        seed = np.random.SeedSequence([config.seed, done]).generate_state(1)
        self._actor = Background(trainer.actor(int(seed[0])), state.learner.params)
        self._asked = False
        # Not the learner, whose parameters the actor may still be reading.
        learn = jax.jit(trainer.learn, donate_argnums=0)
        arguments = (state.replay, trainer.rollout_like(), state.learner, state.key, eta)
        try:
            self._learn = learn.lower(*arguments).compile()
            self._actor.wait()  # until the environments have started
        except BaseException:
            self.close()
            raise

    def __call__(
        self, state: TrainState, count: int
    ) -> tuple[TrainState, Mapping[str, np.ndarray], int]:
        """See `discorl.training.trainer.Program`."""
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            try:
                rollout = self._rollout(state.learner.params)
            except EnvironmentFailure:
                if not rows:
                    raise
                break  # the next call raises it
            buffer, learner, key, metrics = self._learn(
                state.replay, rollout.trajectory, state.learner, state.key, self._eta
            )
            state = TrainState(learner, None, buffer, key, state.steps + rollout.steps)
            rows.append(metrics | {"steps": state.steps} | self._summary(rollout.episodes))
        fetched = jax.device_get(rows)
        table = {name: np.array([row[name] for row in fetched]) for name in fetched[0]}
        return state, table, len(rows)

    def close(self) -> None:
        """Ends the environments."""
        self._actor.close()

    def _rollout(self, params: Params) -> Rollout:
        """The next rollout; the one after it is begun, with the parameters given."""
        if not self._asked:
            self._ask(self._made, params)
        rollout = self._actor.wait()
        assert rollout is not None
        self._made += 1
        self._asked = self._made < self._config.updates
        if self._asked:
            self._ask(self._made, params)
        return rollout

    def _ask(self, index: int, params: Params) -> None:
        self._actor.ask(params, jax.random.fold_in(self._root, index))

    def _summary(self, episodes: list[Episode]) -> dict[str, float]:
        """Metrics of the finished episodes: NaN where there are none."""
        means = {
            EPISODE + name: _mean([e.metrics[name] for e in episodes if name in e.metrics])
            for name in self._environment.episode_metrics
        }
        return means | {
            "episodes": len(episodes),
            "return": _mean([episode.total for episode in episodes]),
            "episode_length": _mean([episode.length for episode in episodes]),
        }


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


class Background:
    """An actor in a thread of its own."""

    def __init__(self, actor: HostActor, params: Params) -> None:
        """Starts the environments; `wait` returns None when they have started.

        Args:
            actor: not started yet.
            params: like those that it will act with.
        """
        self.actor = actor
        self._failure: BaseException | None = None
        self._requests: queue.SimpleQueue[tuple[Params, Array] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Rollout | BaseException | None] = queue.SimpleQueue()
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        # A daemon, so that an environment that hangs cannot keep the process.
        self._thread = threading.Thread(target=self._serve, args=(like,), daemon=True)
        self._thread.start()

    def ask(self, params: Params, key: Key) -> None:
        """Has a rollout made."""
        self._requests.put((params, key))

    def wait(self) -> Rollout | None:
        """The next result.

        Raises:
            EnvironmentFailure: an environment failed or does not answer; so from then on.
        """
        while self._failure is None:
            try:
                result = self._results.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                self._failure = self.actor.hung()
                continue
            if not isinstance(result, BaseException):
                return result
            self._failure = result
        raise self._failure

    def close(self) -> None:
        """Ends the thread, unless an environment holds it up."""
        self._requests.put(None)
        if not isinstance(self._failure, EnvironmentFailure):
            self._thread.join(timeout=self.actor.timeout)

    def _serve(self, like: Params) -> None:
        try:
            self.actor.start(like)
            self._results.put(None)
            while (request := self._requests.get()) is not None:
                self._results.put(self.actor.rollout(*request))
        except BaseException as error:  # whatever it is, it ends the run and not this thread alone
            self._results.put(error)
        finally:
            self.actor.close()
