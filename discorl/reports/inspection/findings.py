"""What an analysis hands back: numbers, charts, pictures, and the sentence that reads them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from discorl.reports.charts import Chart, Line, LineChart, Row, band
from discorl.reports.inspection.subject import Subject
from discorl.runs.metrics import as_rows

Rows = Sequence[Mapping[str, Any]]


class DoesNotApplyError(Exception):
    """An analysis has nothing to say about a rule; the message says why, in one line."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure that no chart can hold, such as frames of an episode, and the numbers behind it."""

    name: str
    caption: str
    figure: Figure
    rows: Rows


@dataclasses.dataclass(frozen=True)
class Findings:
    """The outcome of one analysis."""

    facts: Mapping[str, str]  # the numbers to remember, by what they are
    charts: tuple[Chart, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclasses.dataclass(frozen=True)
class Analysis:
    """One question about a rule."""

    title: str
    about: str  # how to read its figures, for the page
    run: Callable[[Subject], Findings]


def line(label: str, style: int, x: np.ndarray, by_life: np.ndarray) -> Line:
    """The mean over agents, [agents, N], in the band from the lowest to the highest.

    There is NaN where an agent has no value. A line ends where no agent has any more.
    """
    mean, low, high = band(by_life)
    known = slice(0, max(np.flatnonzero(np.isfinite(mean)), default=-1) + 1)
    found = Line(0, x[known], mean[known], low[known], high[known], label=label, style=style)
    return found if len(by_life) > 1 else dataclasses.replace(found, low=None, high=None)


def row(label: str, by_life: np.ndarray) -> Row:
    """A value, the mean over agents, [agents], and its range."""
    return Row(0, label, *(float(x) for x in band(by_life)))


def text_of(by_life: np.ndarray) -> str:
    """A number as facts have it: the mean over the agents that have one, and its range."""
    mean, low, high = band(np.asarray(by_life))
    known = int(np.isfinite(by_life).sum())
    if not np.isfinite(mean):
        return "unknown"
    shown, least, most = (f"{np.round(x, 2) + 0.0:.2f}" for x in (mean, low, high))  # no -0.00
    count = "" if known == len(by_life) else f", {known} of {len(by_life)} agents"
    return shown if len(by_life) == 1 else f"{shown} [{least}, {most}]{count}"


def rows_of(chart: Chart) -> Rows:
    """The numbers of a chart, as rows of a table."""
    if isinstance(chart, LineChart):
        found = []
        for each in chart.lines:
            columns = {chart.x_label: each.x, chart.y_label or "value": each.y}
            if each.low is not None and each.high is not None:
                columns |= {"low": each.low, "high": each.high}
            found += [{"line": each.label, **values} for values in as_rows(columns)]
        return found
    return [
        {"panel": title, "label": r.label, "value": r.value, "low": r.low, "high": r.high}
        for title, entries in chart.panels
        for r in entries
    ]
