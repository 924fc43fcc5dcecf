"""Scores a rule by the returns of fresh agents that it trains in the evaluation's environments."""

import dataclasses
import functools
import math
from collections.abc import Hashable

import jax
import jax.numpy as jnp
import numpy as np

from discorl import envs
from discorl.agent.assembly import make_learner
from discorl.agent.config import AgentConfig
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.host_scoring import HostScoring
from discorl.envs import Environment, HostEnvironment, references
from discorl.envs.families import Member
from discorl.rules import Rule
from discorl.runs import processes
from discorl.runs.metrics import EPISODES, RETURN
from discorl.training.compiled.agent import CompiledAgent
from discorl.training.config import LONGEST_CALL
from discorl.training.state import TrainState
from discorl.types import Array, Key, Metrics, Params, PyTree

# Share of the updates, the last ones, that count. It is more than training's tenth, because few
# agents play few episodes.
LAST = 0.25


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
                programs[kind] = (
                    HostScoring(agent, environment, rule)
                    if isinstance(environment, HostEnvironment)
                    else CompiledScoring(agent, environment, rule)
                )
            self._environments[name] = environment
            self._programs[name] = programs[kind]

    def __call__(self, eta: Params) -> Score:
        """Scores the rule's parameters; processes share the environments."""
        found = processes.together(lambda: self._returns(eta))
        merged = functools.reduce(dict.__or__, found)
        returns = {name: merged[name] for name in self._environments}
        environments = self._environments.items()
        return Score(returns, {name: _normalise(e, returns[name]) for name, e in environments})

    def _returns(self, eta: Params) -> dict[str, float]:
        """Returns in the environments of this process."""
        own = list(self._environments)[processes.index() :: processes.count()]
        return {
            name: _last_return(
                self._programs[name].run(
                    _task(self._environments[name]), self._keys, eta, self._updates
                )
            )
            for name in own
        }


class CompiledScoring:
    """Training from scratch in one shape of environment, compiled once."""

    def __init__(self, agent: AgentConfig, environment: Environment, rule: Rule) -> None:
        learner = make_learner(agent, rule, environment.num_actions, environment.observation)

        def compiled(task: PyTree) -> CompiledAgent:
            if isinstance(environment, Member):
                return CompiledAgent(agent, environment.family.environment(task), learner)
            return CompiledAgent(agent, environment, learner)

        def begin(task: PyTree, key: Key, lifetime: Array) -> TrainState:
            return compiled(task).init(key, lifetime)

        def train(
            task: PyTree, state: TrainState, eta: Params, count: Array
        ) -> tuple[TrainState, Metrics]:
            return compiled(task).run(state, eta, count)

        self._begin = jax.jit(jax.vmap(begin, in_axes=(None, 0, None)))
        self._train = jax.jit(jax.vmap(train, in_axes=(None, 0, None, None)), donate_argnums=1)

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


def _task(environment: Environment | HostEnvironment) -> PyTree:
    """The parameters of a family's member; () for any other environment."""
    return environment.parameters if isinstance(environment, Member) else ()


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


def _normalise(environment: Environment | HostEnvironment, value: float) -> float:
    """The return on the environment's own scale, if it has one."""
    reference = references.of(environment)
    return value if reference is None else float(reference.score(value))
