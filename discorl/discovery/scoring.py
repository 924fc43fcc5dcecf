"""Scores a rule by the returns of fresh agents that it trains in the evaluation's environments."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl import envs
from discorl.agent.assembly import make_learner
from discorl.agent.config import AgentConfig
from discorl.discovery.config import DiscoverConfig
from discorl.envs import Environment, HostEnvironment, references
from discorl.envs.families import Member
from discorl.rules import Rule
from discorl.runs import processes
from discorl.runs.metrics import EPISODES, RETURN
from discorl.training.compiled.agent import CompiledAgent
from discorl.training.config import LONGEST_CALL
from discorl.training.host.actor_thread import ActorThread
from discorl.training.host.agent import HostAgent, acting_key
from discorl.training.host.rollout import mean_episode
from discorl.training.state import TrainState
from discorl.types import Key, Params, PyTree

# Share of the updates, the last ones, that count. It is more than training's tenth, because few
# agents play few episodes.
LAST = 0.25
_ENVIRONMENTS = 0xE2F  # makes the seeds of environments independent of the agent's keys


@dataclasses.dataclass(frozen=True)
class Score:
    """The returns and scores of a rule's agents."""

    returns: dict[str, float]  # by environment; NaN if no agent ended an episode
    scores: dict[str, float]  # 0 for random and 1 for optimal play; returns if those are unknown

    @property
    def mean(self) -> float:
        """Mean score over environments; NaN if one of them has none."""
        return math.fsum(self.scores.values()) / len(self.scores)

    def row(self) -> dict[str, float]:
        """The score as columns of a table."""
        columns = {"charts/score": self.mean}
        for name in self.scores:
            columns |= {
                f"charts/score/{name}": self.scores[name],
                f"{RETURN}/{name}": self.returns[name],
            }
        return columns


class Scoring:
    """Trains fresh agents with a rule, always from the same keys, so scores are comparable."""

    def __init__(self, config: DiscoverConfig, rule: Rule, key: Key) -> None:
        self._updates = config.evaluate_updates
        self._keys = jax.random.split(key, config.evaluate_seeds)
        self._environments: dict[str, Environment | HostEnvironment] = {}
        self._programs: dict[str, CompiledScoring | HostScoring] = {}
        programs: dict[Hashable, CompiledScoring | HostScoring] = {}
        for name, (env, agent) in config.tasks().items():
            environment = envs.make(env)
            # Members of one family differ only in parameters, so one program serves them all.
            shape = environment.family if isinstance(environment, Member) else env
            kind = (shape, agent)
            if kind not in programs:
                on_host = isinstance(environment, HostEnvironment)
                program: Any = HostScoring if on_host else CompiledScoring
                programs[kind] = program(agent, environment, rule)
            self._environments[name] = environment
            self._programs[name] = programs[kind]

    def __call__(self, eta: Params) -> Score:
        """Scores the rule's parameters; processes share the environments."""
        found = processes.together(lambda: self._returns(eta))
        merged = functools.reduce(dict.__or__, found)
        returns, scores = {}, {}
        for name, environment in self._environments.items():
            returns[name] = scores[name] = merged[name]
            reference = references.of(environment)
            if reference is not None:
                scores[name] = float(reference.score(merged[name]))
        return Score(returns, scores)

    def _returns(self, eta: Params) -> dict[str, float]:
        """Returns in the environments of this process."""
        found = {}
        for name in list(self._environments)[processes.index() :: processes.count()]:
            environment = self._environments[name]
            task = environment.parameters if isinstance(environment, Member) else ()
            found[name] = _last_return(
                self._programs[name].run(task, self._keys, eta, self._updates)
            )
        return found


class CompiledScoring:
    """Training from scratch in one shape of environment, compiled once."""

    def __init__(self, agent: AgentConfig, environment: Environment, rule: Rule) -> None:
        learner = make_learner(agent, rule, environment.num_actions, environment.observation)

        def compiled(task: PyTree) -> CompiledAgent:
            if isinstance(environment, Member):
                return CompiledAgent(agent, environment.family.environment(task), learner)
            return CompiledAgent(agent, environment, learner)

        self._begin = jax.jit(
            jax.vmap(lambda task, *start: compiled(task).init(*start), in_axes=(None, 0, None))
        )
        self._train = jax.jit(
            jax.vmap(lambda task, *now: compiled(task).run(*now), in_axes=(None, 0, None, None)),
            donate_argnums=1,
        )

    def run(self, task: PyTree, keys: Key, eta: Params, updates: int) -> dict[str, np.ndarray]:
        """Trains an agent for each key; returns metrics of every update, [S, updates]."""
        state = self._begin(task, keys, jnp.int32(updates))
        parts = []
        for done in range(0, updates, LONGEST_CALL):
            count = min(LONGEST_CALL, updates - done)
            state, metrics = self._train(task, state, eta, jnp.int32(count))
            chosen = {name: metrics[name] for name in (RETURN, EPISODES)}
            parts.append({name: rows[:, :count] for name, rows in jax.device_get(chosen).items()})
        return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


class HostScoring:
    """Training from scratch in one environment, compiled once.

    An agent acts with its newest parameters, as in discovery. While one learns, the others act in
    threads.
    """

    def __init__(self, agent: AgentConfig, environment: HostEnvironment, rule: Rule) -> None:
        learner = make_learner(
            agent,
            rule,
            environment.num_actions,
            environment.observation,
            prepare=environment.prepare,
        )
        self._agent = HostAgent(agent, environment, learner)
        self._actor = self._agent.actor(0)
        self._begin = jax.jit(self._agent.init)
        self._learn = jax.jit(self._agent.learn, donate_argnums=0)

    def run(self, task: PyTree, keys: Key, eta: Params, updates: int) -> dict[str, np.ndarray]:
        """Trains an agent for each key, [S], which also seeds its environments.

        The task is (). Returns mean returns and numbers of finished episodes, [S, updates].
        """
        agents = [self._begin(key, updates) for key in keys]
        table = {name: np.zeros((len(agents), updates)) for name in (RETURN, EPISODES)}
        actors: list[ActorThread] = []
        with contextlib.ExitStack() as stack:
            for key, agent in zip(keys, agents, strict=True):
                seed = int(jax.random.bits(jax.random.fold_in(key, _ENVIRONMENTS)))
                actors.append(ActorThread(self._actor.with_seed(seed), agent.learner.params))
                stack.callback(actors[-1].close)
            for actor, agent in zip(actors, agents, strict=True):
                actor.wait_for_start()
                _ask(actor, agent)
            for update in range(updates):
                for i, actor in enumerate(actors):
                    rollout, old = actor.wait(), agents[i]
                    replay, learner, key, _ = self._learn(
                        old.replay, rollout.trajectory, old.learner, old.key, eta
                    )
                    agents[i] = TrainState(learner, None, replay, key, old.steps)
                    if update + 1 < updates:
                        _ask(actor, agents[i])
                    table[EPISODES][i, update] = len(rollout.episodes)
                    table[RETURN][i, update] = mean_episode(rollout.episodes)[RETURN]
        return table


def _ask(actor: ActorThread, agent: TrainState) -> None:
    actor.ask(agent.learner.params, acting_key(agent.key))


def _last_return(metrics: dict[str, np.ndarray]) -> float:
    """Mean return per episode in the last updates, averaged over agents.

    Agents that ended no episode there are ignored; NaN if no agent did.
    """
    last = math.ceil(LAST * metrics[RETURN].shape[1])
    returns, episodes = (metrics[name][:, -last:] for name in (RETURN, EPISODES))
    totals = np.sum(np.where(episodes > 0, returns * episodes, 0), axis=1)
    counts = np.sum(episodes, axis=1)
    ended = counts > 0
    return float(np.mean(totals[ended] / counts[ended])) if ended.any() else math.nan
