"""Plots of a run."""

import gc
import os
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from discorl.runs import palette, panels
from discorl.runs.files import write_atomically
from discorl.runs.metrics import BEST_SCORE, RETURN, SCORE, STEP, by_seed
from discorl.runs.palette import Style
from discorl.runs.panels import Panel

_STYLE = palette.style(0)
_COLOUR = _STYLE.colour
_TEXT_COLOUR = "#333333"
_MOST_NAMES = 14  # of environments in a legend
_MOST_POINTS = 3000  # of the raw values


def learning_curve(
    path: str | os.PathLike[str], metrics: Mapping[str, np.ndarray], *, title: str
) -> None:
    """Plots the return per episode over environment steps as a PNG.

    One seed is drawn as a running mean over a twentieth of all updates, with the raw values.
    Several seeds are drawn as the mean of their running means, with a band from the lowest to the
    highest. The columns are those of `Run.metrics`; NaN marks updates in which no episode ended.
    """
    figure = Figure(figsize=(7, 4), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    _label(axes, title, "environment steps", "return per episode")
    along, values = by_seed(metrics, STEP, RETURN)
    if np.isfinite(values).any():
        _draw(axes, along, values)
        # Not "best", which is slow with many points.
        axes.legend(loc="lower right", edgecolor="none", labelcolor=_TEXT_COLOUR, fontsize=9)
    else:
        _note(axes, "no return per episode yet")
    _write(path, figure)


def discovery_curve(
    path: str | os.PathLike[str],
    metrics: Mapping[str, np.ndarray],
    evaluations: Mapping[str, np.ndarray],
    *,
    title: str,
) -> None:
    """Plots the progress of a discovery over meta-steps as a PNG.

    `panels.of_discovery` lists the panels.
    """
    figure = Figure(figsize=(12, 10), dpi=120, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", color=_TEXT_COLOUR, fontsize=13)
    grid = figure.subplots(3, 2, sharex=True)
    for axes, panel in zip(grid.flat, panels.of_discovery(metrics), strict=True):
        _label(axes, "", "meta-steps" if axes in grid[-1] else "", panel.title)
        if panel.table == "evaluation":
            _draw_scores(axes, evaluations)
        elif len(panel.columns) == 1:
            along, values = by_seed(metrics, "update", *panel.columns)
            if np.isfinite(values).any():
                _draw(axes, along, values, unit="meta-step")
        else:
            _draw_lines(axes, metrics, panel)
        _set_scale(axes, panel)
    named: list[list[str]] = []  # labels of the legends so far; equal legends are drawn once
    for axes in grid.flat:
        labels = axes.get_legend_handles_labels()[1]
        if not axes.has_data():
            _note(axes, "nothing yet")
        elif labels and labels not in named:
            named.append(labels)
            legend = axes.legend(
                edgecolor="none", labelcolor=_TEXT_COLOUR, fontsize=8, framealpha=0.6
            )
            legend.set_in_layout(False)  # long names must not squeeze the panels
    _write(path, figure)


def _draw_lines(axes: Axes, metrics: Mapping[str, np.ndarray], panel: Panel) -> None:
    """Draws running means of several metrics, with a legend unless there are too many."""
    many = len(panel.columns) > _MOST_NAMES
    if many:
        note = f"{len(panel.columns)} environments"
        axes.text(0.02, 0.97, note, transform=axes.transAxes, va="top", color=_TEXT_COLOUR)
    for i, (name, label) in enumerate(panel.columns.items()):
        along, values = by_seed(metrics, "update", name)
        if np.isfinite(values).any():
            smooth = _running_mean(values, _window(values))[0]
            _draw_line(axes, along, smooth, "_" if many else label, palette.style(i))


def _set_scale(axes: Axes, panel: Panel) -> None:
    scale = panel.fitting_scale(*axes.dataLim.intervaly) if axes.has_data() else "linear"
    if scale == "log":
        axes.set_yscale("log")
    elif scale == "symlog":
        axes.set_yscale("symlog", linthresh=panels.LINEAR)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_scores(axes: Axes, evaluations: Mapping[str, np.ndarray]) -> None:
    if not evaluations or not np.isfinite(evaluations[SCORE]).any():
        return
    along, best = evaluations["update"], evaluations[BEST_SCORE]
    axes.plot(along, evaluations[SCORE], "o-", color=_COLOUR, label="score")
    best = np.where(np.isfinite(best), best, np.nan)
    axes.step(along, best, ":", where="post", color="#999999", label="best so far")


def _draw(axes: Axes, along: np.ndarray, values: np.ndarray, unit: str = "update") -> None:
    window = _window(values)
    smooth = _running_mean(values, window)
    # The first means are over few values and would start the line with a spike.
    smooth[:, : min(window, values.shape[1]) // 4] = np.nan
    over = f"running mean over {window} {unit}s" if window > 1 else f"every {unit}"
    num_seeds = len(values)
    if num_seeds == 1:
        _draw_line(axes, along, smooth[0], over)
        if window > 1:
            known = np.flatnonzero(np.isfinite(values[0]))
            known = known[:: -(-len(known) // _MOST_POINTS)]
            x, y, label = along[known], values[0, known], f"each {unit}"
            axes.scatter(x, y, 8, color=_COLOUR, alpha=0.25, linewidth=0, zorder=1, label=label)
        return
    seen = np.isfinite(smooth).any(axis=0)  # in some seed
    along, smooth = along[seen], smooth[:, seen]
    _draw_line(axes, along, np.nanmean(smooth, axis=0), f"mean of {num_seeds} seeds, {over}")
    low, high = np.nanmin(smooth, axis=0), np.nanmax(smooth, axis=0)
    label = "lowest to highest seed"
    axes.fill_between(along, low, high, color=_COLOUR, alpha=0.2, linewidth=0, label=label)


def _draw_line(
    axes: Axes, along: np.ndarray, values: np.ndarray, label: str, style: Style = _STYLE
) -> None:
    known = np.isfinite(values)
    marker = "o" if known.sum() == 1 else None  # a line through one point is invisible
    x, y, dashes = along[known], values[known], style.linestyle
    axes.plot(x, y, linestyle=dashes, marker=marker, color=style.colour, label=label)


def _window(values: np.ndarray) -> int:
    """A twentieth of all updates."""
    return max(1, values.shape[1] // 20)


def _note(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over the `window` updates up to each one, ignoring missing values: [S, U]."""
    known = np.isfinite(values)
    sums = np.cumsum([np.where(known, values, 0.0), known], axis=-1)  # [2, S, U]
    sums[..., window:] -= sums[..., :-window].copy()
    total, count = sums
    return np.divide(total, count, out=np.full(values.shape, np.nan), where=count > 0)


def decorate(axes: Axes) -> None:
    """The common look of all axes: a faint grid behind the data, and no frame."""
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", color=_TEXT_COLOUR, fontsize=12)
    axes.set_xlabel(x, color=_TEXT_COLOUR)
    axes.set_ylabel(y, color=_TEXT_COLOUR)
    # Steps are whole, so a single tick is better than fractions.
    locator = MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.tick_params(color=_TEXT_COLOUR, labelcolor=_TEXT_COLOUR)
    decorate(axes)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.margins(x=0.02)


def _write(path: str | os.PathLike[str], figure: Figure) -> None:
    write_atomically(path, lambda file: figure.savefig(file, format="png"))
    # Figures are full of reference cycles and would accumulate over a long run.
    figure.clear()
    gc.collect()
