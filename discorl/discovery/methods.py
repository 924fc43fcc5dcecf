"""The methods by which discovery improves a rule, behind one interface."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

from discorl.discovery.config import DiscoverConfig
from discorl.discovery.evolution import Evolution, EvolutionState, LifeGroup
from discorl.discovery.lives import Lives, family_or_task
from discorl.discovery.population import Population, PopulationState
from discorl.discovery.strategy import named_scales
from discorl.rules import Rule
from discorl.runs.metrics import EPISODES, RETURN, SCORE, known_mean
from discorl.types import Key, Params

Row = dict[str, float]


class Method(Protocol):
    """One way to improve a rule, a step at a time."""

    host_environments: Sequence[str] = ()  # may fail, and are not part of checkpoints
    headline: str  # the metric of the progress line

    def init(self, eta: Params, key: Key) -> Any:
        """The state before the first step: a pytree of arrays."""

    def place(self, state: Any) -> Any:
        """Moves a restored state to this method's devices; by default it stays."""
        return state

    def step(self, state: Any) -> tuple[Any, Row, list[Row]]:
        """Makes one step; returns the new state, metrics, and those of each agent, if any.

        If an environment on the host fails, the state is still valid.
        """

    def eta(self, state: Any) -> Params:
        """The rule's parameters to evaluate and to keep."""

    def costs(self) -> list[float]:
        """Costs of the method's blocks, by which a resumed run assigns them to devices."""
        return []

    def close(self) -> None:
        """Ends environments on the host; another step would start new ones."""
        return


def make_method(config: DiscoverConfig, rule: Rule, costs: Sequence[float] = ()) -> Method:
    """Makes the method of the settings; `costs` are from an earlier `Method.costs`."""
    if config.method == "es":
        return Evolving(config, rule)
    return MetaGradients(config, rule, costs)


class MetaGradients(Method):
    """Meta-gradients of a population of agents; if they live in pairs, some parts evolve."""

    headline = RETURN

    def __init__(self, config: DiscoverConfig, rule: Rule, costs: Sequence[float] = ()) -> None:
        self.population = Population(config, rule, costs=costs)
        self.host_environments = self.population.host_environments
        self._groups = self.population.group_of.tolist()  # of each agent
        self._names = [group.name for group in config.groups()]

    def init(self, eta: Params, key: Key) -> PopulationState:
        return self.population.init(eta, key)

    def place(self, state: PopulationState) -> PopulationState:
        return self.population.place(state)

    def step(self, state: PopulationState) -> tuple[PopulationState, Row, list[Row]]:
        state, whole, by_agent = self.population.meta_step(state)
        # Means over the agents with a value, and totals.
        row = {name: float(known_mean(values)) for name, values in sorted(by_agent.items())}
        for name in ("meta/dropped", EPISODES, "life/number"):
            row[name] = int(by_agent[name].sum())
        row |= {name: float(x) for name, x in sorted(whole.items())}
        row |= self._returns(by_agent[RETURN])
        agents = [
            {"agent": i, "group": group}
            | {name: values[i].item() for name, values in sorted(by_agent.items())}
            for i, group in enumerate(self._groups)
        ]
        return state, row, agents

    def eta(self, state: PopulationState) -> Params:
        """The moving average of the parameters."""
        return state.eta_ema

    def costs(self) -> list[float]:
        return list(self.population.seconds)

    def close(self) -> None:
        self.population.close()

    def _returns(self, by_agent: np.ndarray) -> Row:
        """Mean return by environment; scales differ between environments."""
        names = np.array([self._names[group] for group in self._groups])
        return {
            f"{RETURN}/{name}": float(known_mean(by_agent[names == name]))
            for name in dict.fromkeys(self._names)
        }


class Evolving(Method):
    """Evolution over whole lives."""

    headline = SCORE

    def __init__(self, config: DiscoverConfig, rule: Rule) -> None:
        programs: dict[Any, Lives] = {}  # shared by groups of the same kind
        groups = []
        for group in config.groups():
            kind = group.env, group.agent, group.count
            if kind not in programs:
                count = group.count + config.evolution.new_rules(group.count)
                size = min(config.block_size or count, count)
                programs[kind] = Lives(family_or_task(group.env), group.agent, rule, size=size)
            rate = group.agent.optimiser.learning_rate
            groups.append(LifeGroup(group.name, programs[kind], group.count, rate))
        self.evolution = Evolution(
            groups,
            config.evolution,
            generations=config.meta_steps,
            scales=named_scales(config.evolution.parts, rule),
            new=rule.init_params(jax.random.key(config.seed)),
        )

    def init(self, eta: Params, key: Key) -> EvolutionState:
        return self.evolution.init(eta, key)

    def step(self, state: EvolutionState) -> tuple[EvolutionState, Row, list[Row]]:
        state, metrics = self.evolution.step(state)
        return state, metrics, []

    def eta(self, state: EvolutionState) -> Params:
        """The average of the iterates."""
        return state.average
