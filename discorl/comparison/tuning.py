"""The choice of learning rates, from the cells of the sweep."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from discorl.comparison.cells import Cell
from discorl.comparison.config import ComparisonConfig
from discorl.comparison.entries import EnvironmentEntry, RuleEntry
from discorl.comparison.scales import Scale

Chosen = dict[tuple[str, str], float | None]  # learning rate by labels of rule and environment
Sweep = Mapping[Cell, Mapping[str, Any] | None]  # cells and their records, so far


def choose(config: ComparisonConfig, sweep: Sweep, scales: Mapping[str, Scale]) -> Chosen:
    """The learning rate of each rule in each environment.

    It has the best mean score over all environments or, if tuned per environment, in that one.
    Rates that failed or diverged anywhere rank below all others. None means the recipe's rate, or
    that every rate failed; see `why_none`.
    """
    chosen: Chosen = {}
    for rule, environment in itertools.product(config.rules, config.environments):
        rates = config.rates(rule)
        where = _tuned_on(config, environment)
        best = max(rates, key=lambda rate: _merit(rule, where, rate, sweep, scales), default=None)
        none = why_none(config, sweep, rule, environment) is not None
        chosen[rule.label, environment.label] = None if none else best
    return chosen


def why_none(
    config: ComparisonConfig, sweep: Sweep, rule: RuleEntry, environment: EnvironmentEntry
) -> str | None:
    """Why a rule has no learning rate: its whole sweep failed; None otherwise."""
    where = _tuned_on(config, environment)
    records = [r for cell, r in sweep.items() if cell.rule == rule and cell.environment in where]
    failures = [r["message"] for r in records if r is not None and r["status"] == "failed"]
    if not records or len(failures) < len(records):
        return None
    return f"not run: every learning rate failed in the sweep: {failures[0]}"


def _tuned_on(
    config: ComparisonConfig, environment: EnvironmentEntry
) -> tuple[EnvironmentEntry, ...]:
    return config.environments if config.tune == "suite" else (environment,)


def _merit(
    rule: RuleEntry,
    where: tuple[EnvironmentEntry, ...],
    rate: float,
    sweep: Sweep,
    scales: Mapping[str, Scale],
) -> tuple[int, float]:
    """The number of cells that finished with a rate, and the mean score over environments."""
    finished = [
        (cell.environment.label, record["returns"])
        for cell, record in sweep.items()
        if cell.rule == rule and cell.learning_rate == rate and cell.environment in where
        if record is not None and record["status"] == "finished"
        if cell.environment.label in scales
    ]
    by_environment: dict[str, list[float]] = {}
    for label, returns in finished:
        by_environment.setdefault(label, []).extend(returns)
    scores = [
        float(np.mean(scales[label].score(np.array(returns))))
        for label, returns in by_environment.items()
    ]
    return len(finished), math.fsum(scores) / len(scores) if scores else -math.inf
