"""Pictures of a run."""

import os
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from discorl.files import write_atomically
from discorl.types import UserError

_COLOUR = "#0072B2"  # blue of the Okabe-Ito palette, told apart with any colour vision
_TEXT_COLOUR = "#333333"
_MOST_POINTS = 3000  # of the raw values; more turn into a blot


def learning_curve(
    path: str | os.PathLike[str],
    metrics: Mapping[str, np.ndarray],
    *,
    title: str,
    x: str = "steps",
    y: str = "return",
    window: int | None = None,
) -> None:
    """Draws one metric against another as a PNG.

    One seed is drawn as its running mean over the raw values, several as the mean of their running
    means in the band from the lowest to the highest.

    Args:
        path: the file to write, atomically.
        metrics: columns as `Run.metrics` gives them, with "update" and possibly "seed". NaN in `y`
            says that there is no value at that update.
        title: written above.
        x: column along the horizontal axis.
        y: column along the vertical axis.
        window: updates to take the running mean over; by default a twentieth of them all.

    Raises:
        UserError: the metrics lack a column that is to be drawn.
    """
    for name in ("update", x, y):
        if metrics and name not in metrics:
            raise UserError(f"the metrics have no column {name!r}; they have {sorted(metrics)}")
    figure = Figure(figsize=(7, 4), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _decorate(axes, title, x, y)
    along, values = _by_seed(metrics, x, y)
    if np.isfinite(values).any():
        _draw(axes, along, values, window or max(1, values.shape[1] // 20))
        axes.legend(edgecolor="none", labelcolor=_TEXT_COLOUR, fontsize=9)
    else:
        axes.text(0.5, 0.5, f"no {y} yet", transform=axes.transAxes, ha="center", va="center")
    write_atomically(path, lambda file: figure.savefig(file, format="png"))


def discovery_curve(
    path: str | os.PathLike[str],
    metrics: Mapping[str, np.ndarray],
    evaluations: Mapping[str, np.ndarray],
    *,
    title: str,
) -> None:
    """Draws how the discovery of a rule goes as a PNG, over meta-steps.

    The panels, from top to bottom: the return of the population's agents, the score of the rule
    with fresh agents, and the norm of the meta-gradient.

    Args:
        path: the file to write, atomically.
        metrics: columns of the population's metrics, with "update", "return" and
            "meta/gradient_norm".
        evaluations: columns of the evaluations, with "update", "score" and "best".
        title: written above.
    """
    figure = Figure(figsize=(7, 8), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    returns, scores, norms = figure.subplots(3, sharex=True)
    _decorate(returns, title, "", "return, mean over agents")
    _decorate(scores, "", "", "score with fresh agents")
    _decorate(norms, "", "meta-steps", "norm of the meta-gradient")
    for axes, name in ((returns, "return"), (norms, "meta/gradient_norm")):
        along, values = _by_seed(metrics, "update", name)
        if np.isfinite(values).any():
            _draw(axes, along, values, max(1, values.shape[1] // 20), unit="meta-step")
    if (norms.dataLim.intervaly > 0).all() and np.isfinite(norms.dataLim.intervaly).all():
        norms.set_yscale("log")
    if evaluations:
        scores.plot(evaluations["update"], evaluations["score"], "o-", color=_COLOUR, label="score")
        best = evaluations["best"]
        best = np.where(np.isfinite(best), best, np.nan)
        scores.step(
            evaluations["update"], best, ":", where="post", color="#999999", label="best so far"
        )
    for axes in (returns, scores, norms):
        if axes.has_data():
            axes.legend(edgecolor="none", labelcolor=_TEXT_COLOUR, fontsize=9)
    write_atomically(path, lambda file: figure.savefig(file, format="png"))


def _by_seed(metrics: Mapping[str, np.ndarray], x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Position of each update, [U], and the values of each seed there, [S, U], NaN for none."""
    if not metrics or not len(metrics["update"]):
        return np.zeros(0), np.zeros((0, 0))
    updates, at = np.unique(metrics["update"], return_inverse=True)
    seeds, of = np.unique(metrics.get("seed", np.zeros(len(at))), return_inverse=True)
    values = np.full((len(seeds), len(updates)), np.nan)
    values[of, at] = np.where(np.isfinite(metrics[y]), metrics[y], np.nan)
    along = np.bincount(at, weights=metrics[x]) / np.bincount(at)
    return along, values


def _draw(
    axes: Axes, along: np.ndarray, values: np.ndarray, window: int, unit: str = "update"
) -> None:
    smooth = _running_mean(values, window)
    # Means over next to nothing would start the line with a spike.
    smooth[:, : min(window, values.shape[1]) // 4] = np.nan
    over = f"running mean over {window} {unit}s" if window > 1 else f"every {unit}"
    num_seeds = len(values)
    if num_seeds == 1:
        _draw_line(axes, along, smooth[0], over)
        if window > 1:
            _draw_points(axes, along, values[0], f"each {unit}")
        return
    seen = np.isfinite(smooth).any(axis=0)  # elsewhere a mean over seeds would be over nothing
    along, smooth = along[seen], smooth[:, seen]
    _draw_line(axes, along, np.nanmean(smooth, axis=0), f"mean of {num_seeds} seeds, {over}")
    low, high = np.nanmin(smooth, axis=0), np.nanmax(smooth, axis=0)
    label = "lowest to highest seed"
    axes.fill_between(along, low, high, color=_COLOUR, alpha=0.2, linewidth=0, label=label)


def _draw_line(axes: Axes, along: np.ndarray, values: np.ndarray, label: str) -> None:
    known = np.isfinite(values)
    marker = "o" if known.sum() == 1 else None  # a line through one point is invisible
    axes.plot(along[known], values[known], marker=marker, color=_COLOUR, label=label)


def _draw_points(axes: Axes, along: np.ndarray, values: np.ndarray, label: str) -> None:
    known = np.flatnonzero(np.isfinite(values))
    known = known[:: -(-len(known) // _MOST_POINTS)]
    size, faint = 8, 0.25
    axes.scatter(
        along[known],
        values[known],
        size,
        color=_COLOUR,
        alpha=faint,
        linewidth=0,
        zorder=1,
        label=label,
    )


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over each update and those before it in the window, of the values there are: [S, U]."""
    known = np.isfinite(values)
    total = _sums(np.where(known, values, 0.0), window)
    count = _sums(known.astype(float), window)
    return np.divide(total, count, out=np.full(values.shape, np.nan), where=count > 0)


def _sums(values: np.ndarray, window: int) -> np.ndarray:
    """Sum of the last `window` values up to each, fewer at the start: [S, U]."""
    sums = np.cumsum(values, axis=1)
    earlier = np.zeros_like(sums)
    earlier[:, window:] = sums[:, :-window]
    return sums - earlier


def _decorate(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", color=_TEXT_COLOUR, fontsize=12)
    axes.set_xlabel(x.replace("_", " "), color=_TEXT_COLOUR)
    axes.set_ylabel(y.replace("_", " "), color=_TEXT_COLOUR)
    # There are no parts of a step, so rather a single tick than fractions.
    locator = MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.tick_params(color=_TEXT_COLOUR, labelcolor=_TEXT_COLOUR)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.margins(x=0.02)
