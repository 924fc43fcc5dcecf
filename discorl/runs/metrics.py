"""The metrics of a run: names and summaries."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

Row = Mapping[str, float | int]

EPISODE = "episode/"  # prefix of metrics that are means over episodes
# Names that the tools of CleanRL and Open RL Benchmark read.
STEP = "global_step"  # the environment steps that an agent has taken
RETURN = "charts/episodic_return"
LENGTH = "charts/episodic_length"
EPISODES = "charts/episodes"  # that ended; return and length are means over them
SCORE = "charts/score"  # 0 for random and 1 for optimal play
BEST_SCORE = "charts/best_score"
BEST_RETURN = "charts/best_return"  # of an agent's evaluations so far
SPEED = "charts/SPS"  # environment steps per second
TOTAL_LOSS = "losses/total"
# Seconds of updates and evaluations over the whole run, resumes included; without compilation and
# checkpoints.
WALL_TIME = "wall_time"
# Columns that identify a row.
PLACES = ("update", "seed", "agent", "group", STEP, WALL_TIME)
TABLES = ("metrics", "agents", "evaluation")  # of a run, each as NAME.csv
RECENT = 0.1  # share of the updates, the last ones, over which the recent return is averaged


def as_rows(columns: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Converts columns to rows."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def merge(columns: Mapping[str, np.ndarray], whole: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Merges the rows of several updates, [..., rows] by name, into one along the last axis.

    Step counters take their last value. Episodes are summed, and means over episodes are weighted
    by them. A loss that is not finite stays so. `whole` names columns of counts, which also take
    their last value.
    """
    merged = {}
    for name, values in columns.items():
        if name == EPISODES:
            merged[name] = values.sum(axis=-1)
        elif values.shape[-1] == 1:
            merged[name] = values[..., 0]
        elif EPISODES in columns and (name in (RETURN, LENGTH) or name.startswith(EPISODE)):
            merged[name] = _weighted_mean(values, columns[EPISODES])
        elif name in PLACES or name == SPEED or name in whole:
            merged[name] = values[..., -1]
        elif name.startswith("losses/"):
            merged[name] = values.mean(axis=-1)
        else:
            merged[name] = _weighted_mean(values, np.ones(values.shape))
    return merged


def _weighted_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted means over the last axis, ignoring NaN; NaN where nothing is left."""
    weights = np.where(np.isnan(values), 0.0, weights)
    total = (np.where(weights > 0, values, 0.0) * weights).sum(axis=-1)
    count = weights.sum(axis=-1)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


def known_mean(values: np.ndarray) -> np.ndarray:
    """Means of the finite values over the last axis; NaN where there are none."""
    return _weighted_mean(np.where(np.isfinite(values), values, np.nan), np.ones(values.shape))


def by_seed(columns: Mapping[str, np.ndarray], x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """One column over another: x of each update, [U], and values by seed, [S, U].

    A missing value is NaN. Agents count as seeds.
    """
    if y not in columns or not len(columns["update"]):
        return np.zeros(0), np.zeros((0, 0))
    updates, at = np.unique(columns["update"], return_inverse=True)
    who = columns.get("seed", columns.get("agent", np.zeros(len(at))))
    everyone, of = np.unique(who, return_inverse=True)
    values = np.full((len(everyone), len(updates)), np.nan)
    values[of, at] = np.where(np.isfinite(columns[y]), columns[y], np.nan)
    return np.bincount(at, weights=columns[x]) / np.bincount(at), values


def recent_return(columns: Mapping[str, np.ndarray], seed: int | None = None) -> float:
    """Mean return per episode over the last tenth of the updates; NaN if no episode ended.

    By default it is over all seeds.
    """
    if RETURN not in columns or not len(columns["update"]):
        return math.nan
    latest = _latest(columns)
    rows = latest if seed is None else latest & (columns["seed"] == seed)
    values, episodes = columns[RETURN][rows], columns[EPISODES][rows]
    seen = (episodes > 0) & np.isfinite(values)
    return float(np.average(values[seen], weights=episodes[seen])) if seen.any() else math.nan


def recent_score(columns: Mapping[str, np.ndarray]) -> float:
    """Mean score over the last tenth of the updates; NaN if none is logged."""
    if SCORE not in columns or not len(columns["update"]):
        return math.nan
    return float(known_mean(columns[SCORE][_latest(columns)]))


def _latest(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    return columns["update"] > (1 - RECENT) * columns["update"].max()
