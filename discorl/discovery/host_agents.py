"""Agents of the population whose environments are on the host.

Each agent acts in environments of its own, in threads, while others learn. It acts with its newest
parameters, always: what it goes through does not depend on how fast anything is.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from discorl.config import Config
from discorl.discovery.agents import draw_lifetime, is_finite, learner_of, meta_gradient_of
from discorl.discovery.config import DiscoverConfig, Group
from discorl.discovery.meta_gradient import Update
from discorl.discovery.meta_value import MetaValueState
from discorl.envs.host import HostEnvironment
from discorl.host_acting import Episode, Rollout
from discorl.host_training import Background, HostTrainer, acting_key
from discorl.learning import Learner
from discorl.networks.prepared import prepared
from discorl.replay import ReplayState
from discorl.rules import Disco
from discorl.trainers import TrainState, absorb
from discorl.types import Array, Key, Metrics, Params, PyTree, Trajectory


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HostAgentState:
    """All that an agent's life depends on but its environments, which cannot be kept."""

    training: TrainState
    meta_value: MetaValueState
    key: Key
    budget: Array  # [] int32, environment steps of this life
    lives: Array  # [] int32, lives ended so far


HostAgentStates = tuple[HostAgentState, ...]


def host_learner_of(
    agent: Config, environment: HostEnvironment, rule: Disco, *, mixed_mode: bool = False
) -> Learner:
    """The learner of an agent on the host, whose network sees prepared observations."""
    shown = environment.shown(environment.observation)
    learner = learner_of(agent, environment.num_actions, shown, rule, mixed_mode=mixed_mode)
    return dataclasses.replace(learner, network=prepared(learner.network, environment.prepare))


@dataclasses.dataclass(frozen=True)
class _Places:
    """Where an agent acts in one of its lives."""

    training: Background
    validation: Background

    def close(self) -> None:
        """Ends the environments."""
        self.training.close()
        self.validation.close()


@dataclasses.dataclass
class _Window:
    """An agent while it lives on, and what is recorded of it."""

    places: _Places
    agent: HostAgentState  # without its replay
    replay: ReplayState | None
    updates: list[tuple[Update, Metrics]] = dataclasses.field(default_factory=list)
    episodes: list[Episode] = dataclasses.field(default_factory=list)

    def act(self) -> None:
        """Has the next rollout begun, with the newest parameters."""
        training = self.agent.training
        self.places.training.ask(training.learner.params, acting_key(training.key))

    def act_for_validation(self) -> None:
        """Has the rollout begun on which the agent is judged."""
        _, key = jax.random.split(self.agent.key)
        self.places.validation.ask(self.agent.training.learner.params, key)

    def returns(self) -> dict[str, float]:
        """Metrics of the finished episodes: NaN where there are none."""
        totals = [episode.total for episode in self.episodes]
        lengths = [episode.length for episode in self.episodes]
        return {
            "episodes": float(len(totals)),
            "return": float(np.mean(totals)) if totals else float("nan"),
            "episode_length": float(np.mean(lengths)) if lengths else float("nan"),
        }


class HostAgents:
    """One group of agents; the state of the group is a tuple of its agents' states.

    Environments start with the first meta-step after `init`, `restart`, `close` or a resumed run.
    """

    on_host = True

    def __init__(
        self,
        group: Group,
        config: DiscoverConfig,
        rule: Disco,
        environment: HostEnvironment,
        number: int,
    ) -> None:
        """Binds.

        Args:
            group: the agents.
            config: of the discovery.
            rule: that is discovered.
            environment: in which they all live.
            number: of the group, from which seeds are derived.
        """
        self._config, self._number = config, number
        learner = host_learner_of(group.config, environment, rule, mixed_mode=config.mixed_mode)
        self._trainer = HostTrainer(group.config, environment, learner)
        judging = HostTrainer(_validating(group.config, config), environment, learner)
        # Of which all others are made: they compile once for all.
        self._actors = self._trainer.actor(0), judging.actor(0)
        self.meta_gradient = meta_gradient_of(
            config, group.config, learner, environment.observation, environment.prepare
        )
        self.meta_value = self.meta_gradient.meta_value
        self._begin = jax.jit(self.begin)
        self._update = jax.jit(self.update, donate_argnums=0)
        self._differentiate = jax.jit(self.differentiate)
        self._stack = jax.jit(_stack)
        self._places: dict[int, _Places] = {}

    # --- pure functions of one agent --------------------------------------------------------------

    def begin(self, key: Key, lives: Array) -> HostAgentState:
        """A new life: an agent that knows nothing, and a budget of experience.

        Args:
            key: random key; used up.
            lives: [] int32, lives before this one.
        """
        key, training_key, value_key, budget_key = jax.random.split(key, 4)
        return HostAgentState(
            training=self._trainer.init(training_key),
            meta_value=self.meta_value.init(value_key),
            key=key,
            budget=draw_lifetime(budget_key, self._config.lifetimes),
            lives=lives,
        )

    def update(
        self,
        replay: ReplayState | None,
        agent: HostAgentState,
        eta: Params,
        fresh: Trajectory,
        steps: Array,
    ) -> tuple[ReplayState | None, HostAgentState, tuple[Update, Metrics]]:
        """Takes in a rollout and makes an update.

        Args:
            replay: the agent's.
            agent: the agent, without its replay.
            eta: the rule's parameters.
            fresh: the rollout, [T, E].
            steps: [] int32, taken in its environments.

        Returns:
            replay; the agent; a record of the update, and its metrics.
        """
        before = agent.training
        key, replay_key = jax.random.split(before.key)
        replay, batch = absorb(self._trainer.config, replay, fresh, replay_key)
        learner, meta_value, metrics = self.meta_gradient.update(
            before.learner, agent.meta_value, eta, batch
        )
        training = TrainState(learner, None, None, key, before.steps + steps)
        agent = dataclasses.replace(agent, training=training, meta_value=meta_value)
        return replay, agent, (Update(before.learner, batch), metrics)

    def differentiate(
        self,
        eta: Params,
        agent: HostAgentState,
        updates: Sequence[tuple[Update, Metrics]],
        validation: Trajectory,
    ) -> tuple[Params, HostAgentState, Metrics]:
        """Pulls the meta-gradient back through a window of updates.

        Returns:
            the meta-gradient; the agent; metrics, of the window's updates their means.
        """
        window, metrics = _stack(updates)
        gradient, meta_value, meta_metrics = self.meta_gradient.differentiate(
            eta, window, agent.training.learner, agent.meta_value, validation
        )
        key, _ = jax.random.split(agent.key)
        life = {
            "steps": agent.training.steps,
            "budget": agent.budget,
            "lives": agent.lives,
            "finite": is_finite((agent.training.learner, meta_value)),
        }
        agent = dataclasses.replace(agent, meta_value=meta_value, key=key)
        return gradient, agent, meta_metrics | jax.tree.map(jnp.mean, metrics) | life

    # --- the group --------------------------------------------------------------------------------

    def init(self, keys: Key) -> HostAgentStates:
        """Agents at the beginning of their first lives, one for each key."""
        return tuple(self._begin(key, jnp.int32(0)) for key in keys)

    def restart(self, state: HostAgentStates, i: int) -> HostAgentStates:
        """Lets one agent begin a new life, in new environments."""
        if i in self._places:
            self._places.pop(i).close()
        fresh = self._begin(state[i].key, state[i].lives + 1)
        return (*state[:i], fresh, *state[i + 1 :])

    def close(self) -> None:
        """Ends all environments."""
        while self._places:
            self._places.popitem()[1].close()

    def meta_step(
        self, eta: Params, state: HostAgentStates
    ) -> tuple[Params, HostAgentStates, Metrics]:
        """Every agent lives on for a window of updates, which is then differentiated.

        Args:
            eta: the rule's parameters.
            state: the agents; unlike with compiled groups, its arrays are not used up.

        Returns:
            meta-gradients, every leaf [agents, ...]; the new state; metrics, [agents] each.

        Raises:
            EnvironmentFailure: an environment failed; the state is as it was.
        """
        try:
            return self._live_on(eta, self._open(state))
        except BaseException:
            self.close()  # some are in the middle of what nobody will ask for
            raise

    def _live_on(
        self, eta: Params, windows: list[_Window]
    ) -> tuple[Params, HostAgentStates, Metrics]:
        for window in windows:
            window.act()
        for left in reversed(range(self._config.window)):
            for window in windows:
                rollout = _result(window.places.training)
                window.replay, window.agent, record = self._update(
                    window.replay, window.agent, eta, rollout.trajectory, np.int32(rollout.steps)
                )
                window.updates.append(record)
                window.episodes += rollout.episodes
                if left:
                    window.act()
                else:
                    window.act_for_validation()
        lived = [self._judge(window, eta) for window in windows]
        gradients, metrics = self._stack([(gradient, metrics) for gradient, _, metrics in lived])
        return gradients, tuple(agent for _, agent, _ in lived), metrics

    def _judge(
        self, window: _Window, eta: Params
    ) -> tuple[Params, HostAgentState, dict[str, Array | float]]:
        validation = _result(window.places.validation).trajectory
        gradient, agent, metrics = self._differentiate(
            eta, window.agent, window.updates, validation
        )
        return gradient, _with_replay(agent, window.replay), metrics | window.returns()

    def _open(self, state: HostAgentStates) -> list[_Window]:
        """Windows of all agents, whose environments have started."""
        starting: list[_Places] = []
        for i, agent in enumerate(state):
            if i not in self._places:
                self._places[i] = self._start(i, agent)
                starting.append(self._places[i])
        for places in starting:
            places.training.wait()
            places.validation.wait()
        return [
            # Replay is written in place from here on, and the state must outlive a failure.
            _Window(
                self._places[i],
                _with_replay(agent, None),
                jax.tree.map(jnp.copy, agent.training.replay),
            )
            for i, agent in enumerate(state)
        ]

    def _start(self, i: int, agent: HostAgentState) -> _Places:
        """Environments whose seeds no other life has, nor the same one once it is resumed."""
        lives, updates = int(agent.lives), int(agent.training.learner.updates)
        entropy = [self._config.seed, self._number, i, lives, updates]
        seeds = np.random.SeedSequence(entropy).generate_state(2).tolist()
        params = agent.training.learner.params
        actors = zip(self._actors, seeds, strict=True)
        return _Places(*(Background(actor.again(seed), params) for actor, seed in actors))


def _validating(agent: Config, config: DiscoverConfig) -> Config:
    """Settings of acting for validation."""
    return dataclasses.replace(
        agent,
        environments=config.validation,
        unroll=config.validation_unroll,
        batch=config.validation,
        replay_fraction=0.0,
    )


def _result(background: Background) -> Rollout:
    rollout = background.wait()
    assert rollout is not None
    return rollout


def _with_replay(agent: HostAgentState, replay: ReplayState | None) -> HostAgentState:
    return dataclasses.replace(agent, training=dataclasses.replace(agent.training, replay=replay))


def _stack(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
