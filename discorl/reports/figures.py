"""Charts as figures for a paper: PNG and SVG, told apart without colours too."""

import functools
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from discorl.reports.charts import Chart, IntervalChart, LineChart
from discorl.runs import palette
from discorl.runs.curves import decorate
from discorl.runs.files import write_atomically

_DPI = 200
_MARKS = 6  # on a line
_INSIDE = 5  # lines whose names find room within the axes


def write(folder: Path, chart: Chart, series: list[str]) -> None:
    """Draws a chart as PNG and SVG."""
    figure = _intervals(chart) if isinstance(chart, IntervalChart) else _lines(chart, series)
    # Fixed, so that the same results make the same file.
    with matplotlib.rc_context({"svg.hashsalt": "discorl", "svg.fonttype": "none"}):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            save = functools.partial(figure.savefig, format=kind, dpi=_DPI, metadata=metadata)
            write_atomically(folder / f"{chart.name}.{kind}", save)


def _lines(chart: LineChart, series: list[str]) -> Figure:
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for line in chart.lines:
        look = palette.style(line.series if line.style is None else line.style)
        axes.plot(
            line.x,
            line.y,
            color=look.colour,
            linestyle=look.linestyle,
            marker=look.marker,
            markersize=4,
            markevery=max(1, len(line.x) // _MARKS),
            linewidth=1.6,
            label=line.label or series[line.series],
        )
        if line.low is not None and line.high is not None:
            axes.fill_between(
                line.x, line.low, line.high, color=look.colour, alpha=0.18, linewidth=0
            )
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_title(chart.title, loc="left", fontsize=10)
    if chart.x_label.endswith("steps"):
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if chart.scale == "log":
        axes.set_yscale("log")
    if len(chart.lines) > _INSIDE:
        figure.set_figwidth(7)
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    elif chart.lines:
        axes.legend(fontsize=8, frameon=False)
    decorate(axes)
    axes.tick_params(labelsize=8)
    return figure


def _intervals(chart: IntervalChart) -> Figure:
    count = len(chart.panels)
    rows = max(len(rows) for _, rows in chart.panels)
    figure = Figure(figsize=(2.2 + 2.2 * count, 1.1 + 0.32 * rows), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    for axes, (title, entries) in zip(panels, chart.panels, strict=True):
        if chart.reference is not None:
            axes.axvline(chart.reference, color="#888888", linewidth=1, linestyle=":")
        for place, row in enumerate(entries):
            colour, _, marker = palette.style(row.series)
            span = [row.low, row.high], [place, place]
            # Caps would make the interval look wider than it is.
            axes.plot(*span, color=colour, linewidth=5, alpha=0.4, solid_capstyle="butt")
            axes.plot(row.value, place, marker=marker, color=colour, markersize=6)
        axes.set_yticks(np.arange(len(entries)), [row.label for row in entries])
        axes.set_ylim(rows - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_title(title, fontsize=9)
        decorate(axes)
        axes.tick_params(labelsize=8)
    return figure
