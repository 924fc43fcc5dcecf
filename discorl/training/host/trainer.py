"""The trainer for environments on the host, which step while the device learns.

A thread collects the next rollout while the device makes an update with the last one. The acting
parameters are therefore always one update behind the learner. Neither the order of the data nor the
parameters that collect them depend on timing.
"""

import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from discorl.agent.learner import Learner
from discorl.envs.host.base import EnvironmentFailure, HostEnvironment
from discorl.runs.metrics import EPISODE, EPISODES, STEP
from discorl.training.config import TrainConfig
from discorl.training.host import play
from discorl.training.host.acting import Rollout
from discorl.training.host.actor_thread import ActorThread
from discorl.training.host.agent import HostAgent, acting_key
from discorl.training.host.rollout import Episode, mean_episode, mean_or_nan
from discorl.training.state import TrainState
from discorl.training.trainer import Episodes, Trainer
from discorl.types import Key, Params


class HostTrainer(Trainer):
    """See `Trainer`; trains one agent."""

    environment: HostEnvironment
    max_steps = 100_000  # games are long: 30 minutes of Atari are 27,000 steps

    def __init__(
        self, config: TrainConfig, environment: HostEnvironment, learner: Learner, eta: Params
    ) -> None:
        super().__init__(config, learner, eta)
        self.environment = environment
        self.agent = HostAgent(config.agent, environment, learner)
        self._root = acting_key(jax.random.key(config.seed))
        # The learner's buffers are not donated: the actor may still read the parameters.
        self._learn = jax.jit(self.agent.learn, donate_argnums=0)
        self._actor: ActorThread | None = None
        self._made = 0  # updates
        self._asked = False  # whether the next rollout is being collected

    def init(self) -> TrainState:
        key = jax.random.key(self.config.seed)
        return jax.jit(self.agent.init)(key, self.config.updates)

    def start(self, state: TrainState) -> None:
        """See `Trainer`.

        Environments are not part of the state. New ones start, with seeds that depend on the
        number of updates made.
        """
        self.close()
        self._made, self._asked = int(state.learner.updates), False
        if self._made:
            message = f"the environments of {self.config.env} restart with other seeds"
            print(f"continuing from update {self._made}: {message}", file=sys.stderr)
        seed = np.random.SeedSequence([self.config.seed, self._made]).generate_state(1)
        self._actor = ActorThread(self.agent.actor(int(seed[0])), state.learner.params)
        like = self.agent.rollout_like()
        arguments = (state.replay, like, state.learner, state.key, self.eta)
        try:
            self._compiled_learn = self._learn.lower(*arguments).compile()
            self._actor.wait_for_start()
        except BaseException:
            self.close()
            raise

    def run(
        self, state: TrainState, count: int
    ) -> tuple[TrainState, Mapping[str, np.ndarray], int]:
        if self._actor is None:
            self.start(state)
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            try:
                rollout = self._rollout(state.learner.params)
            except EnvironmentFailure:
                if not rows:
                    raise
                break  # the next call raises it
            buffer, learner, key, metrics = self._compiled_learn(
                state.replay, rollout.trajectory, state.learner, state.key, self.eta
            )
            state = TrainState(learner, None, buffer, key, state.steps + rollout.steps)
            rows.append(metrics | {STEP: state.steps} | self._summary(rollout.episodes))
        fetched = jax.device_get(rows)
        table = {name: np.array([row[name] for row in fetched]) for name in fetched[0]}
        return state, table, len(rows)

    def _play(
        self, params: Params, key: Key, episodes: int, greedy: bool, max_steps: int
    ) -> Episodes:
        return play.play(self.agent, params, key, episodes, greedy, max_steps)

    def _film(self, params: Params, key: Key, greedy: bool, max_frames: int) -> list[np.ndarray]:
        return play.film(self.agent, params, key, greedy, max_frames)

    def close(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            actor.close()

    def _rollout(self, params: Params) -> Rollout:
        """Returns the next rollout and requests the one after it, with the given parameters."""
        if not self._asked:
            self._ask(params)
        assert self._actor is not None
        rollout = self._actor.wait()
        self._made += 1
        self._asked = False
        if self._made < self.config.updates:
            self._ask(params)
        return rollout

    def _ask(self, params: Params) -> None:
        assert self._actor is not None
        self._actor.ask(params, jax.random.fold_in(self._root, self._made))
        self._asked = True

    def _summary(self, episodes: list[Episode]) -> dict[str, float]:
        """Metrics of the finished episodes; NaN if there are none."""
        means = {
            EPISODE + name: mean_or_nan([e.metrics[name] for e in episodes if name in e.metrics])
            for name in self.environment.episode_metrics
        }
        return means | {EPISODES: len(episodes)} | mean_episode(episodes)
