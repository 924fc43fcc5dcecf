"""Pictures of a run."""

import os
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from discorl.runs.files import write_atomically
from discorl.types import UserError

# The Okabe-Ito palette, told apart with any colour vision.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_COLOUR = _COLOURS[0]
_DASHES = ("-", "--", ":", "-.")
_TEXT_COLOUR = "#333333"
_MOST_NAMES = 14  # of environments in a legend
_LINEAR_RETURN = 1.0  # up to which an axis with larger returns, too, is linear
_MOST_POINTS = 3000  # of the raw values; more turn into a blot
# Of the meta-loss: their metrics, and what they are called.
_PARTS = {
    "meta/policy_gradient": "policy gradient",
    "meta/entropy_penalty": "entropies, rewarded",
    "meta/target_penalty": "targets, kept in bounds",
}


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

    The panels: returns of the population's agents by environment, and the score of the rule with
    fresh agents; the meta-gradient's norm, and how far the agents' meta-gradients agree; entropies
    of the agents' policies and of the rule's targets for them, and the parts of the meta-loss.

    Args:
        path: the file to write, atomically.
        metrics: columns of the population's metrics, one "return/ENVIRONMENT" for each among them.
        evaluations: columns of the evaluations, with "update", "score" and "best".
        title: written above.
    """
    figure = Figure(figsize=(12, 10), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", color=_TEXT_COLOUR, fontsize=13)
    panels = figure.subplots(3, 2, sharex=True)
    (returns, scores), (norms, cosines), (entropies, losses) = panels
    _decorate(returns, "", "", "return, mean over agents")
    _draw_returns(returns, metrics)
    _decorate(scores, "", "", "score with fresh agents")
    _draw_scores(scores, evaluations)
    for axes, name, label in (
        (norms, "meta/gradient_norm", "norm of the meta-gradient"),
        (cosines, "gradient_cosine", "cosine of two agents' meta-gradients"),
    ):
        _decorate(axes, "", "", label)
        along, values = _by_seed(metrics, "update", name)
        if np.isfinite(values).any():
            _draw(axes, along, values, max(1, values.shape[1] // 20), unit="meta-step")
    if (norms.dataLim.intervaly > 0).all() and np.isfinite(norms.dataLim.intervaly).all():
        norms.set_yscale("log")
    _decorate(entropies, "", "meta-steps", "entropy, mean over agents")
    _draw_lines(entropies, metrics, {"entropy": "policy", "pi_hat_entropy": "its target, pi_hat"})
    _decorate(losses, "", "meta-steps", "parts of the meta-loss")
    _draw_lines(losses, metrics, _PARTS)
    for axes in panels.flat:
        if not axes.has_data():
            axes.text(0.5, 0.5, "nothing yet", transform=axes.transAxes, ha="center", va="center")
        elif axes.get_legend_handles_labels()[1]:
            legend = axes.legend(
                edgecolor="none", labelcolor=_TEXT_COLOUR, fontsize=8, framealpha=0.6
            )
            legend.set_in_layout(False)  # long names must not squeeze the panels
    write_atomically(path, lambda file: figure.savefig(file, format="png"))


def _draw_returns(axes: Axes, metrics: Mapping[str, np.ndarray]) -> None:
    """A line for each environment, on an axis on which large and small returns both show."""
    texts = [name.removeprefix("return/") for name in metrics if name.startswith("return/")]
    bare = [text.partition(";")[0] for text in texts]  # without settings of its agents
    labels = [
        short if bare.count(short) == 1 else text for short, text in zip(bare, texts, strict=True)
    ]
    if len(texts) > _MOST_NAMES:
        labels = ["_" + label for label in labels]  # which no legend shows
        note = f"{len(texts)} environments"
        axes.text(0.02, 0.97, note, transform=axes.transAxes, va="top", color=_TEXT_COLOUR)
    _draw_lines(axes, metrics, {f"return/{text}": x for text, x in zip(texts, labels, strict=True)})
    if axes.has_data() and np.abs(axes.dataLim.intervaly).max() > _LINEAR_RETURN * 5:
        axes.set_yscale("symlog", linthresh=_LINEAR_RETURN)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_lines(axes: Axes, metrics: Mapping[str, np.ndarray], labels: Mapping[str, str]) -> None:
    """Running means of several metrics, told apart by colour and then by dashes."""
    for i, (name, label) in enumerate(labels.items()):
        along, values = _by_seed(metrics, "update", name)
        if np.isfinite(values).any():
            smooth = _running_mean(values, max(1, values.shape[1] // 20))[0]
            colour = _COLOURS[i % len(_COLOURS)]
            dashes = _DASHES[i // len(_COLOURS) % len(_DASHES)]
            _draw_line(axes, along, smooth, label, colour, dashes)


def _draw_scores(axes: Axes, evaluations: Mapping[str, np.ndarray]) -> None:
    if not evaluations or not np.isfinite(evaluations["score"]).any():
        return
    axes.plot(evaluations["update"], evaluations["score"], "o-", color=_COLOUR, label="score")
    best = np.where(np.isfinite(evaluations["best"]), evaluations["best"], np.nan)
    axes.step(evaluations["update"], best, ":", where="post", color="#999999", label="best so far")


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


def _draw_line(
    axes: Axes,
    along: np.ndarray,
    values: np.ndarray,
    label: str,
    colour: str = _COLOUR,
    dashes: str = "-",
) -> None:
    known = np.isfinite(values)
    marker = "o" if known.sum() == 1 else None  # a line through one point is invisible
    axes.plot(along[known], values[known], dashes, marker=marker, color=colour, label=label)


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
