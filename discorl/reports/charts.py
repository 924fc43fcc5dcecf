"""The content of charts, which a script on the page or matplotlib draws."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from discorl.comparison.results import Results
from discorl.runs.metrics import by_seed, known_mean
from discorl.runs.panels import Scale
from discorl.runs.statistics import AGGREGATES, Estimate


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of one series, optionally with a band.

    If a series has several lines in a chart, each has its own label and style.
    """

    series: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    seeds: np.ndarray | None = None  # [S, N]; thin lines, which only the page draws
    label: str | None = None  # by default that of the series
    style: int | None = None  # number of colour, dashes and marker; by default the series


@dataclasses.dataclass(frozen=True)
class LineChart:
    """Lines over a common axis."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    scale: Scale = "linear"  # of the vertical axis
    caption: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        lines = [
            {
                key: _numbers(value) if isinstance(value, np.ndarray) else value
                for key, value in vars(line).items()
                if value is not None
            }
            for line in self.lines
        ]
        return {**vars(self), "kind": "lines", "lines": lines}


@dataclasses.dataclass(frozen=True)
class Row:
    """A value and its interval."""

    series: int
    label: str
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, series: int, label: str, found: Estimate) -> Self:
        """The row of a statistic."""
        return cls(series, label, found.value, found.low, found.high)


@dataclasses.dataclass(frozen=True)
class IntervalChart:
    """Panels of values with intervals, side by side, one row per series."""

    name: str
    title: str
    panels: tuple[tuple[str, tuple[Row, ...]], ...]
    reference: float | None = None  # where to draw a line
    caption: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        panels = [
            {"title": title, "rows": [vars(row) for row in rows]} for title, rows in self.panels
        ]
        return {**vars(self), "kind": "intervals", "panels": panels}


Chart = LineChart | IntervalChart


def thinned(
    columns: Mapping[str, np.ndarray], along: str, name: str, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """A column along another, thinned to at most `points`: [N], and means by seed, [S, N]."""
    place, values = by_seed(columns, along, name)
    pieces = np.array_split(np.arange(len(place)), min(points, len(place)))
    means = [known_mean(values[:, piece]) for piece in pieces]
    return np.array([place[piece[-1]] for piece in pieces]), np.stack(means, axis=1)


def band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, lowest and highest over the first axis; NaN where there is no value."""
    known = np.isfinite(values)
    some = known.any(axis=0)
    low = np.where(some, np.where(known, values, np.inf).min(axis=0), np.nan)
    high = np.where(some, np.where(known, values, -np.inf).max(axis=0), np.nan)
    return known_mean(np.moveaxis(values, 0, -1)), low, high


def aggregate_titles(results: Results) -> dict[str, str]:
    """The aggregates that there are, by name."""
    found = next(iter(results.aggregates.values()), {})
    return {name: each.title for name, each in AGGREGATES.items() if name in found}


def aggregates(results: Results) -> IntervalChart:
    """Every aggregate of every rule."""
    panels = tuple(
        (
            title,
            tuple(
                Row.of(_series(results, rule), rule, found[name])
                for rule, found in results.aggregates.items()
            ),
        )
        for name, title in aggregate_titles(results).items()
    )
    return IntervalChart("aggregates", f"Aggregates of {results.measure}", panels)


def improvements(results: Results) -> IntervalChart:
    """The probability of improvement of each pair of rules."""
    rows = tuple(
        Row.of(_series(results, x), f"{x} over {y}", found)
        for (x, y), found in results.improvements.items()
    )
    title = "Probability of improvement"
    return IntervalChart("improvement", title, (("P(X > Y)", rows),), reference=0.5)


def profiles(results: Results) -> LineChart:
    """The share of runs above each score."""
    thresholds, found = results.profiles
    lines = tuple(
        Line(_series(results, rule), thresholds, e.value, e.low, e.high)
        for rule, e in found.items()
    )
    title = "Performance profiles"
    return LineChart("profiles", title, results.measure, "share of runs above it", lines)


def efficiency(results: Results) -> LineChart:
    """The interquartile mean over environment steps."""
    lines = tuple(
        Line(_series(results, rule), steps, e.value, e.low, e.high)
        for rule, (steps, e) in results.efficiency.items()
    )
    title = "Sample efficiency"
    return LineChart("efficiency", title, "environment steps", f"IQM of {results.measure}", lines)


def curves(results: Results) -> list[LineChart]:
    """The return of each rule in each environment: mean over seeds, lowest to highest."""
    found = []
    axes = "environment steps", "return per episode"
    for number, task in enumerate(entry.label for entry in results.config.environments):
        lines = []
        for rule in results.rules:
            if (rule, task) in results.complete:
                steps, returns = results.curves(rule, task)
                known = np.isfinite(returns).all(axis=1)
                lines.append(Line(_series(results, rule), steps[known], *band(returns[known].T)))
        if lines:
            found.append(LineChart(f"curve-{number}", task, *axes, tuple(lines)))
    return found


def _series(results: Results, rule: str) -> int:
    return [entry.label for entry in results.config.rules].index(rule)


def _numbers(values: np.ndarray) -> list[Any]:
    """Rounds to six digits, more than a picture shows; None for what is not finite."""
    if values.ndim > 1:
        return [_numbers(row) for row in values]
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
