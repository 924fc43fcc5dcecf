"""Agents of the population whose environments are on the host.

Each agent acts in its own environments, in threads, while others learn. It always acts with its
newest parameters, so results do not depend on timing.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from discorl.agent.replay import ReplayState
from discorl.discovery.agents import AgentState, BaseAgents, critic_of
from discorl.discovery.config import DiscoverConfig, Group
from discorl.discovery.meta_gradient import Update
from discorl.envs.host import HostEnvironment
from discorl.rules import Rule
from discorl.runs.metrics import EPISODES
from discorl.training.host.actor_thread import ActorThread
from discorl.training.host.agent import HostAgent, acting_key
from discorl.training.host.rollout import Episode, mean_episode
from discorl.training.state import TrainState, add_and_sample, scale_rewards
from discorl.types import Array, Key, Metrics, Params, PyTree, Trajectory, UserError

HostStates = tuple[AgentState, ...]


@dataclasses.dataclass(frozen=True)
class Actors:
    """The actors of an agent in one of its lives."""

    training: ActorThread
    validation: ActorThread

    def close(self) -> None:
        self.training.close()
        self.validation.close()


@dataclasses.dataclass
class Window:
    """An agent during a meta-step, and its records."""

    actors: Actors
    agent: AgentState  # without its replay
    replay: ReplayState | None
    updates: list[Update] = dataclasses.field(default_factory=list)
    metrics: list[Metrics] = dataclasses.field(default_factory=list)  # also of updates after it
    episodes: list[Episode] = dataclasses.field(default_factory=list)

    def act(self) -> None:
        """Requests the next rollout, with the newest parameters."""
        training = self.agent.training
        self.actors.training.ask(training.learner.params, acting_key(training.key))

    def act_for_validation(self) -> None:
        _, key = jax.random.split(self.agent.key)
        self.actors.validation.ask(self.agent.training.learner.params, key)

    def returns(self) -> dict[str, float]:
        """Metrics of the finished episodes; NaN if there are none."""
        return {EPISODES: float(len(self.episodes)), **mean_episode(self.episodes)}


class HostAgents(BaseAgents):
    """One group of agents; the state of a block is a tuple of its agents' states.

    Environments start with the first meta-step after `init`, `restart`, `close` or a resume.
    """

    on_host = True

    def __init__(
        self,
        group: Group,
        config: DiscoverConfig,
        rule: Rule,
        environment: HostEnvironment,
        number: int,
    ) -> None:
        if config.updates_per_meta_step < config.window:
            raise UserError(
                f"stride is {config.stride}, and {environment.name} is on the host, where "
                "environments cannot go back into a window: expected at least the window's "
                f"length, {config.window}, or 0 for the same"
            )
        super().__init__(group, config, rule, environment, environment.prepare)
        self._number = number  # of the group, for seeds
        self._host_agent, validator = (
            HostAgent(agent, environment, self.learner)
            for agent in (self._agent, self._validation_agent)
        )
        # All actors are copies of these and share their compiled programs.
        self._prototypes = self._host_agent.actor(0), validator.actor(0)
        self._begin = jax.jit(self.begin)
        self._update = jax.jit(self.update, donate_argnums=0)
        self._differentiate = jax.jit(self.differentiate)
        self._report = jax.jit(self.report)
        self._stack = jax.jit(_stack)
        self._actors: dict[int, Actors] = {}

    # --- pure functions of one agent --------------------------------------------------------------

    def begin(self, key: Key, lives: Array) -> AgentState:
        key, training_key, value_key, budget_key = jax.random.split(key, 4)
        return self._new_life(
            lambda lifetime: self._host_agent.init(training_key, lifetime),
            value_key,
            budget_key,
            key=key,
            lives=lives,
        )

    def update(
        self,
        replay: ReplayState | None,
        agent: AgentState,
        eta: Params,
        fresh: Trajectory,
        steps: Array,
    ) -> tuple[ReplayState | None, AgentState, tuple[Update, Metrics]]:
        """Adds a rollout, [T, E], of `steps` steps to replay and makes an update.

        Replay is separate from the agent. Returns both, a record of the update, and its metrics.
        """
        before = agent.training
        key, replay_key = jax.random.split(before.key)
        replay, batch = add_and_sample(self._agent, replay, fresh, replay_key)
        learner, meta_value, metrics = self.meta_gradient.update(
            before.learner, agent.meta_value, eta, batch
        )
        training = TrainState(learner, None, None, key, before.steps + steps)
        agent = dataclasses.replace(agent, training=training, meta_value=meta_value)
        return replay, agent, (Update(before.learner, batch), metrics)

    def differentiate(
        self,
        eta: Params,
        agent: AgentState,
        updates: Sequence[Update],
        validation: Trajectory,
    ) -> tuple[Params, AgentState, Metrics]:
        # Like the meta-value function's batches.
        validation = scale_rewards(self._agent, validation)
        gradient, meta_value, metrics = self.meta_gradient.differentiate(
            eta,
            _stack(updates),
            agent.training.learner,
            agent.meta_value,
            validation,
            critic=critic_of(agent, agent.training.steps),
        )
        key, _ = jax.random.split(agent.key)
        return gradient, dataclasses.replace(agent, meta_value=meta_value, key=key), metrics

    def report(self, agent: AgentState, metrics: Sequence[Metrics]) -> Metrics:
        """The progress of an agent's life, and means of its updates' metrics."""
        life = {"life/steps": agent.training.steps, **agent.status()}
        return jax.tree.map(jnp.mean, _stack(metrics)) | life

    # --- the group --------------------------------------------------------------------------------

    def init(self, keys: Key) -> HostStates:
        return tuple(self._begin(key, jnp.int32(0)) for key in keys)

    def restart(self, state: HostStates, i: int, first: int = 0) -> HostStates:
        if first + i in self._actors:
            self._actors.pop(first + i).close()
        fresh = self._begin(state[i].key, state[i].lives + 1)
        return (*state[:i], fresh, *state[i + 1 :])

    def with_critic(self, state: HostStates, coefficients: Array) -> HostStates:
        return tuple(dataclasses.replace(agent, critic=coefficients) for agent in state)

    def close(self) -> None:
        while self._actors:
            self._actors.popitem()[1].close()

    def meta_step(
        self, eta: Params, state: HostStates, first: int = 0
    ) -> tuple[Params, HostStates, Metrics]:
        """See `AgentGroup`; updates beyond the window follow it."""
        try:
            return self._meta_step(eta, self._open(state, first))
        except BaseException:
            # The actors of this block are in the middle of rollouts that nobody will wait for.
            for i in range(first, first + len(state)):
                if i in self._actors:
                    self._actors.pop(i).close()
            raise

    def _meta_step(self, eta: Params, windows: list[Window]) -> tuple[Params, HostStates, Metrics]:
        for window in windows:
            window.act()
        for left in reversed(range(self._config.window)):
            for window in windows:
                window.updates.append(self._learn(window, eta))
                if left:
                    window.act()
                else:
                    window.act_for_validation()
        between = self._config.updates_per_meta_step - self._config.window
        validated: list[tuple[Params, Metrics]] = []
        for window in windows:
            gradient, window.agent, metrics = self._differentiate(
                eta, window.agent, window.updates, window.actors.validation.wait().trajectory
            )
            window.updates.clear()
            validated.append((gradient, metrics))
            if between:
                window.act()
        for left in reversed(range(between)):
            for window in windows:
                self._learn(window, eta)
                if left:
                    window.act()
        reports = [
            self._report(window.agent, window.metrics) | window.returns() for window in windows
        ]
        gradients, of_validation, of_updates = self._stack(
            [(*answer, report) for answer, report in zip(validated, reports, strict=True)]
        )
        agents = tuple(_with_replay(window.agent, window.replay) for window in windows)
        return gradients, agents, of_validation | of_updates

    def _learn(self, window: Window, eta: Params) -> Update:
        """Makes an update on the requested rollout; returns its record."""
        rollout = window.actors.training.wait()
        window.replay, window.agent, (record, metrics) = self._update(
            window.replay, window.agent, eta, rollout.trajectory, np.int32(rollout.steps)
        )
        window.metrics.append(metrics)
        window.episodes += rollout.episodes
        return record

    def _open(self, state: HostStates, first: int) -> list[Window]:
        """Starts missing environments; returns the windows of all agents."""
        starting: list[Actors] = []
        for i, agent in enumerate(state, first):
            if i not in self._actors:
                self._actors[i] = self._start(i, agent)
                starting.append(self._actors[i])
        for actors in starting:
            actors.training.wait_for_start()
            actors.validation.wait_for_start()
        # Replay is copied, because it is written in place and the state must survive a failure.
        return [
            Window(
                self._actors[i],
                _with_replay(agent, None),
                jax.tree.map(jnp.copy, agent.training.replay),
            )
            for i, agent in enumerate(state, first)
        ]

    def _start(self, i: int, agent: AgentState) -> Actors:
        """Starts environments with seeds that differ between lives and after a resume."""
        lives, updates = int(agent.lives), int(agent.training.learner.updates)
        entropy = [self._config.seed, self._number, i, lives, updates]
        seeds = np.random.SeedSequence(entropy).generate_state(2).tolist()
        params = agent.training.learner.params
        pairs = zip(self._prototypes, seeds, strict=True)
        return Actors(*(ActorThread(actor.with_seed(seed), params) for actor, seed in pairs))


def _with_replay(agent: AgentState, replay: ReplayState | None) -> AgentState:
    return dataclasses.replace(agent, training=dataclasses.replace(agent.training, replay=replay))


def _stack(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
