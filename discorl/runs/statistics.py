"""Statistics of scores over runs and tasks (Agarwal et al. 2021, arXiv:2108.13264).

Scores are arrays [..., runs, tasks]. Statistics reduce the last two axes, so bootstrap samples can
come first. Intervals are percentiles of the stratified bootstrap: runs are resampled with
replacement within each task. The results equal those of the rliable library, but need only numpy.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from discorl.types import UserError

Statistic = Callable[..., np.ndarray]  # of one or more groups of scores

CONFIDENCE = 0.95
SAMPLES = 2000  # of the bootstrap
_PIECE = 4_000_000  # scores in memory at once


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A statistic and its interval; numbers, or arrays of one shape."""

    value: Any
    low: Any
    high: Any


# --- aggregates: [..., runs, tasks] -> [...] ------------------------------------------------------


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half of all runs of all tasks."""
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    count = flat.shape[-1]
    cut = count // 4
    return flat[..., cut : count - cut].mean(axis=-1)


def median(scores: np.ndarray) -> np.ndarray:
    """Median over tasks of the mean over runs."""
    return np.median(scores.mean(axis=-2), axis=-1)


def mean(scores: np.ndarray) -> np.ndarray:
    """Mean over runs and tasks."""
    return scores.mean(axis=(-2, -1))


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> np.ndarray:
    """The mean shortfall below the target; runs above it do not compensate."""
    return target - np.minimum(scores, target).mean(axis=(-2, -1))


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """One number for all runs of a rule, and how tables and charts show it."""

    function: Statistic
    heading: str  # of a column in the terminal
    title: str  # on a page
    lower_is_better: bool = False
    needs_scale: bool = False  # meaningful only for normalised scores


AGGREGATES = {
    "iqm": Aggregate(interquartile_mean, "IQM", "Interquartile mean"),
    "median": Aggregate(median, "median", "Median"),
    "mean": Aggregate(mean, "mean", "Mean"),
    "optimality_gap": Aggregate(
        optimality_gap,
        "optimality gap",
        "Optimality gap (lower is better)",
        lower_is_better=True,
        needs_scale=True,
    ),
}


# --- comparisons and distributions ----------------------------------------------------------------


def probability_of_improvement(scores_x: np.ndarray, scores_y: np.ndarray) -> np.ndarray:
    """Probability that a run of X beats one of Y on a random task; ties count half: [...].

    Scores are [..., runs, tasks], for the same tasks.
    """
    runs = scores_x.shape[-2]
    total = np.zeros(scores_x.shape[:-2])
    for i in range(runs):  # all pairs at once would take too much memory
        one = scores_x[..., i : i + 1, :]
        total += ((one > scores_y) + 0.5 * (one == scores_y)).mean(axis=(-2, -1))
    return total / runs


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Share of runs above each threshold, every task weighing the same: [..., thresholds]."""
    flat = scores.reshape(*scores.shape[:-2], -1)
    return np.stack([(flat > threshold).mean(axis=-1) for threshold in thresholds], axis=-1)


# --- intervals ------------------------------------------------------------------------------------


def estimate(
    statistic: Statistic, *groups: np.ndarray, seed: int = 0, samples: int = SAMPLES
) -> Estimate:
    """A statistic of one or more groups of scores, with its bootstrap interval.

    Groups are [runs, tasks, ...] of the same tasks; their runs are resampled independently.
    """
    for scores in groups:
        if scores.ndim < 2 or 0 in scores.shape or not np.isfinite(scores).all():
            raise UserError(
                f"scores have the shape {scores.shape}; expected finite numbers, [runs, tasks]"
            )
    tasks = [scores.shape[1] for scores in groups]
    if len(set(tasks)) > 1:
        raise UserError(f"scores have {tasks} tasks; expected the same tasks in all groups")
    random = np.random.default_rng(seed)
    piece = max(1, min(samples, _PIECE // sum(scores.size for scores in groups)))
    values = []
    for start in range(0, samples, piece):
        count = min(piece, samples - start)
        values.append(statistic(*(_draw(scores, count, random) for scores in groups)))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(np.concatenate(values), [tail, 100 - tail], axis=0)
    return Estimate(_plain(statistic(*groups)), _plain(low), _plain(high))


def efficiency_curve(scores: np.ndarray, *, samples: int = SAMPLES) -> Estimate:
    """Interquartile mean at several points in time, with its interval: arrays [points].

    Scores are [points, runs, tasks]. A run is resampled with its whole curve.
    """

    def statistic(drawn: np.ndarray) -> np.ndarray:  # of [..., runs, tasks, points]
        return interquartile_mean(np.moveaxis(drawn, -1, -3))

    return estimate(statistic, np.moveaxis(scores, 0, -1), samples=samples)


def _draw(scores: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Bootstrap samples, runs drawn within each task: [count, runs, tasks, ...]."""
    runs, tasks = scores.shape[:2]
    chosen = random.integers(runs, size=(count, runs, tasks))
    return scores[chosen, np.arange(tasks)]


def _plain(value: np.ndarray) -> Any:
    return value if np.ndim(value) else float(value)
