"""The results of a comparison: records, scores and statistics."""

import functools
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from discorl import envs
from discorl.comparison.cells import Cell, read_record
from discorl.comparison.config import ComparisonConfig
from discorl.comparison.costs import Cost, cost
from discorl.comparison.entries import EnvironmentEntry
from discorl.comparison.scales import Scale
from discorl.comparison.tuning import Chosen, choose
from discorl.runs import statistics
from discorl.runs.statistics import Estimate
from discorl.types import UserError

PROFILE_POINTS = 101


def sweep_cells(config: ComparisonConfig) -> Iterator[Cell]:
    """The cells of the learning-rate sweep, environment by environment."""
    for environment in config.environments:
        for rule in config.rules:
            rates = config.rates(rule)
            for rate in rates if len(rates) > 1 else ():
                for seed, seeds in _blocks(
                    config, environment, config.sweep_seed, config.sweep_seeds
                ):
                    yield Cell("sweep", rule, environment, rate, seed, seeds)


def final_cells(config: ComparisonConfig, chosen: Chosen) -> Iterator[Cell]:
    """The cells that count, ordered so that all rules and environments appear early."""
    found = [
        Cell("final", rule, environment, chosen.get((rule.label, environment.label)), seed, seeds)
        for environment in config.environments
        for rule in config.rules
        for seed, seeds in _blocks(config, environment, config.seed, config.seeds_of(rule))
    ]
    yield from sorted(found, key=lambda cell: cell.seed)


def _blocks(
    config: ComparisonConfig, environment: EnvironmentEntry, seed: int, seeds: int
) -> Iterator[tuple[int, int]]:
    """First seeds and sizes of the blocks of seeds that train in one program."""
    at_once = 1 if _on_host(environment.env) else config.seeds_at_once or seeds
    for first in range(seed, seed + seeds, at_once):
        yield first, min(at_once, seed + seeds - first)


@functools.cache
def _on_host(env: str) -> bool:
    """Whether an environment is on the host, where a run trains one agent."""
    try:
        return envs.kind_of(env) == "host"
    except UserError:
        return False  # its cells will fail with this error


class Results:
    """Everything that the cells of a comparison have recorded so far."""

    def __init__(
        self,
        path: Path,
        config: ComparisonConfig,
        scales: Mapping[str, Scale],
        sha256: Mapping[str, str],
    ) -> None:
        # Unavailable environments have no scale.
        self.path = path
        self.config = config
        self.scales = scales
        self.sha256 = sha256
        self.sweep = self._read(sweep_cells(config))
        # Learning rates, and why a whole sweep failed, by rule and environment.
        self.chosen, self.untuned = choose(config, self.sweep, scales)
        self.final = self._read(final_cells(config, self.chosen))

    def _read(self, cells: Iterator[Cell]) -> dict[Cell, dict[str, Any] | None]:
        return {cell: read_record(self.path / cell.folder) for cell in cells}

    @property
    def finished(self) -> bool:
        """Whether every cell has ended, even if it failed, and no trial remains to be proposed."""
        search = self.config.search
        if search is not None and len(self.config.rules) < search.trials:
            return False
        return all(record is not None for record in [*self.sweep.values(), *self.final.values()])

    @property
    def failures(self) -> dict[Cell, dict[str, Any]]:
        """The cells that failed or diverged."""
        both = itertools.chain(self.sweep.items(), self.final.items())
        return {cell: r for cell, r in both if r is not None and r["status"] != "finished"}

    @property
    def normalised(self) -> bool:
        """Whether scores are normalised; otherwise they are returns."""
        return all(scale.known for scale in self.scales.values())

    @property
    def measure(self) -> str:
        """The name of the scores."""
        return "normalised score" if self.normalised else "return per episode"

    # --- scores -----------------------------------------------------------------------------------

    @functools.cached_property
    def complete(self) -> dict[tuple[str, str], list[tuple[Cell, dict[str, Any]]]]:
        """Cells and records by rule and environment, where every seed has ended."""
        grouped: dict[tuple[str, str], list] = {}
        for cell, record in self.final.items():
            grouped.setdefault((cell.rule.label, cell.environment.label), []).append((cell, record))
        return {
            key: group
            for key, group in grouped.items()
            if key[1] in self.scales and all(r and r["status"] != "failed" for _, r in group)
        }

    @property
    def rules(self) -> list[str]:
        """The rules that have completed some environment."""
        done = {rule for rule, _ in self.complete}
        return [rule.label for rule in self.config.rules if rule.label in done]

    @property
    def tasks(self) -> list[str]:
        """The environments that count: those that all of these rules have completed."""
        return [
            environment.label
            for environment in self.config.environments
            if self.rules and all((rule, environment.label) in self.complete for rule in self.rules)
        ]

    @property
    def _scored(self) -> list[str]:
        """The rules with statistics: all of them, once some environment counts."""
        return self.rules if self.tasks else []

    def scores(self, rule: str) -> np.ndarray:
        """Scores of a rule: [runs, tasks]."""
        return np.stack([self.scores_in(task, rule) for task in self.tasks], axis=1)

    def scores_in(self, task: str, rule: str) -> np.ndarray:
        """Scores of a rule in an environment that it has completed: [runs]."""
        returns = np.concatenate([record["returns"] for _, record in self.complete[rule, task]])
        return self.scales[task].score(returns)

    def curves(self, rule: str, task: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps, [points], and returns, [points, runs], NaN where no episode has ended yet."""
        group = [record["curve"] for _, record in self.complete[rule, task]]
        returns = np.concatenate([np.array(c["returns"], float) for c in group])
        return np.array(group[0]["steps"]), returns.T

    def rows(self) -> list[dict[str, Any]]:
        """Every agent as a row of a table, including those of the sweep."""
        return [
            {
                "kind": cell.kind,
                "rule": cell.rule.label,
                "environment": cell.environment.label,
                "seed": seed,
                "learning_rate": record["learning_rate"],
                "episodic_return": value,
                "score": self.scales[cell.environment.label].score(value),
                "status": record["status"],
                "updates": record["updates"],
                "global_step": record["steps"],
            }
            for cell, record in [*self.sweep.items(), *self.final.items()]
            if record is not None
            and record["status"] != "failed"
            and cell.environment.label in self.scales
            for seed, value in zip(record["seeds"], record["returns"], strict=True)
        ]

    # --- statistics -------------------------------------------------------------------------------

    @functools.cached_property
    def aggregates(self) -> dict[str, dict[str, Estimate]]:
        """Every aggregate of every rule, with its interval.

        The optimality gap needs a scale.
        """
        return {
            rule: {
                name: statistics.estimate(aggregate.function, self.scores(rule))
                for name, aggregate in statistics.AGGREGATES.items()
                if self.normalised or not aggregate.needs_scale
            }
            for rule in self._scored
        }

    @functools.cached_property
    def improvements(self) -> dict[tuple[str, str], Estimate]:
        """Probability that the first rule beats the second, for each pair."""
        beats = statistics.probability_of_improvement
        pairs = itertools.combinations(self._scored, 2)
        return {
            (x, y): statistics.estimate(beats, self.scores(x), self.scores(y)) for x, y in pairs
        }

    def improvement(self, x: str, y: str) -> Estimate:
        """Probability that rule X beats rule Y, in either order of the pair."""
        if (x, y) in self.improvements:
            return self.improvements[x, y]
        found = self.improvements[y, x]
        return Estimate(1 - found.value, 1 - found.high, 1 - found.low)

    @functools.cached_property
    def profiles(self) -> tuple[np.ndarray, dict[str, Estimate]]:
        """Thresholds, and the share of each rule's runs above them."""
        scores = {rule: self.scores(rule) for rule in self._scored}
        if not scores:
            return np.zeros(0), {}
        low = min(0.0, *(s.min() for s in scores.values()))
        high = max(1.0, *(s.max() for s in scores.values()))
        thresholds = np.linspace(low, high, PROFILE_POINTS)
        return thresholds, {
            rule: statistics.estimate(lambda s: statistics.profile(s, thresholds), values)
            for rule, values in scores.items()
        }

    @functools.cached_property
    def efficiency(self) -> dict[str, tuple[np.ndarray, Estimate]]:
        """Steps, and the interquartile mean of scores there, once every agent has a return."""
        found = {}
        for rule in self._scored:
            steps = self.curves(rule, self.tasks[0])[0]
            stacked = np.stack(
                [self.scales[task].score(self.curves(rule, task)[1]) for task in self.tasks], axis=2
            )
            known = np.isfinite(stacked).all(axis=(1, 2))
            if known.any():
                found[rule] = steps[known], statistics.efficiency_curve(stacked[known])
        return found

    @functools.cached_property
    def costs(self) -> dict[str, Cost]:
        """The cost of each rule in the environments that count."""
        tasks = self.tasks
        found = {}
        for rule in self._scored:
            final = [pair for task in tasks for pair in self.complete[rule, task]]
            sweep = [
                (cell, record)
                for cell, record in self.sweep.items()
                if record is not None
                and cell.rule.label == rule
                and cell.environment.label in tasks
            ]
            found[rule] = cost(final, sweep)
        return found
