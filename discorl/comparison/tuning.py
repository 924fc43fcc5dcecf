"""The choice of learning rates, from the cells of the sweep."""

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from discorl.comparison.cells import Cell
from discorl.comparison.config import ComparisonConfig
from discorl.comparison.scales import Scale

Chosen = dict[tuple[str, str], float | None]  # learning rate by labels of rule and environment
Sweep = Mapping[Cell, Mapping[str, Any] | None]  # cells and their records, so far


def choose(
    config: ComparisonConfig, sweep: Sweep, scales: Mapping[str, Scale]
) -> tuple[Chosen, dict[tuple[str, str], str]]:
    """The learning rate of each rule in each environment, and why a rule has none there.

    It has the best mean score over all environments or, if tuned per environment, in that one.
    Rates that failed or diverged anywhere rank below all others. None means the recipe's rate, or
    that every rate failed.
    """
    chosen: Chosen = {}
    untuned = {}
    for rule, environment in itertools.product(config.rules, config.environments):
        where = config.environments if config.tune == "suite" else (environment,)
        tried = {c: r for c, r in sweep.items() if c.rule == rule and c.environment in where}
        failures = [r["message"] for r in tried.values() if r and r["status"] == "failed"]
        key = rule.label, environment.label
        if tried and len(failures) == len(tried):
            untuned[key] = f"not run: every learning rate failed in the sweep: {failures[0]}"
            chosen[key] = None
        else:
            merit = functools.partial(_merit, tried, scales)
            chosen[key] = max(config.rates(rule), key=merit, default=None)
    return chosen, untuned


def _merit(tried: Sweep, scales: Mapping[str, Scale], rate: float) -> tuple[int, float]:
    """The number of cells that finished with a rate, and the mean score over environments."""
    finished, returns = 0, dict[str, list[float]]()
    for cell, record in tried.items():
        label = cell.environment.label
        counts = cell.learning_rate == rate and label in scales
        if counts and record and record["status"] == "finished":
            finished += 1
            returns.setdefault(label, []).extend(record["returns"])
    scores = [float(np.mean(scales[label].score(np.array(of)))) for label, of in returns.items()]
    return finished, math.fsum(scores) / len(scores) if scores else -math.inf
