"""Draws what `paired_lives.py` measured.

    python benchmarks/paired_figures.py curves scores.json lean1.png \
        --labels "seed-0=lean1, discovered" "start=Muesli, its start" "ppo=PPO, tuned"
    python benchmarks/paired_figures.py differences scores.json lean2.png --first seed-0 \
        --labels "start=its start" "lean=its start, tuned"
    python benchmarks/paired_figures.py scaling scores.json scaling.png --updates 300

`curves` shows the score over a life, one panel for each budget, for the contenders that are given
a label; `ppo` stands for `ppo@300` and `ppo@1000`. `differences` shows, for every family and for
their mean, how far the end of the first contender's lives is above that of others. `scaling` shows
the score at the end of a life for contenders called `lives=N` against N, and for those called
`families=N` likewise, with the start as a line. Scores are means over families; bands and bars are
95% bootstrap intervals over the tasks of each family.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from trials import difference

from discorl.runs import palette
from discorl.runs.curves import decorate

RESAMPLES = 1000
Estimate = tuple[np.ndarray, np.ndarray, np.ndarray]  # mean, low, high


def by_family(scores: dict, contender: str, updates: int, measure: str) -> list[np.ndarray]:
    """Scores of a contender at a budget, [N, ...] for each family."""
    names = [f"{contender}/{updates}/", f"{contender}@{updates}/{updates}/"]
    return [
        np.asarray(cell[measure], float)
        for name, cell in scores.items()
        if name.startswith(tuple(names))
    ]


def estimate(families: list[np.ndarray], seed: int = 0) -> Estimate:
    """The mean over families of means over tasks, and its 95% interval; NaN is left out."""
    generator = np.random.default_rng(seed)
    drawn = [f[generator.integers(len(f), size=(RESAMPLES, len(f)))] for f in families]
    resampled = np.mean([np.nanmean(d, axis=1) for d in drawn], axis=0)
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
    return np.mean([np.nanmean(f, axis=0) for f in families], axis=0), low, high


def draw_curves(axes: Axes, scores: dict, labels: dict[str, str], updates: int) -> None:
    """The score over a life of each contender, the first in front of the others."""
    for i, (contender, label) in enumerate(labels.items()):
        mean, low, high = estimate(by_family(scores, contender, updates, "curve"))
        x = (np.arange(len(mean)) + 0.5) / len(mean) * updates
        look, order = palette.style(i), len(labels) - i
        axes.plot(x, mean, color=look.colour, linestyle=look.linestyle, label=label, zorder=order)
        axes.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0, zorder=order)
    axes.set_title(f"lives of {updates:,} updates", fontsize=10)
    axes.set_xlabel("updates")
    decorate(axes)


def draw_scaling(axes: Axes, scores: dict, kind: str, updates: int) -> None:
    """The score at the end of a life against a number in the contenders' names."""
    names = {name.split("/")[0] for name in scores if name.startswith(f"{kind}=")}
    numbers = sorted({int(name.partition("=")[2].partition("#")[0]) for name in names})
    for name in sorted(names):
        number = int(name.partition("=")[2].partition("#")[0])
        mean, low, high = estimate(by_family(scores, name, updates, "end"))
        axes.errorbar(
            number,
            mean,
            [[mean - low], [high - mean]],
            fmt="o",
            color=palette.COLOURS[0],
            capsize=2,
        )
    mean, low, high = estimate(by_family(scores, "start", updates, "end"))
    look = palette.style(1)
    axes.axhline(mean, color=look.colour, linestyle=look.linestyle, label="Muesli, the start")
    axes.axhspan(low, high, color=look.colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(
        numbers, [f"{number:,}" for number in numbers], rotation=45 * (max(numbers) > 99)
    )
    axes.minorticks_off()
    decorate(axes)


def curves(scores: dict, arguments: argparse.Namespace) -> Figure:
    """One panel for each budget."""
    labels = dict(label.split("=", 1) for label in arguments.labels)
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    panels = figure.subplots(1, len(arguments.updates), sharey=True, squeeze=False)[0]
    for axes, updates in zip(panels, arguments.updates, strict=True):
        draw_curves(axes, scores, labels, updates)
    panels[0].set_ylabel("score (0 random, 1 optimal)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=9)
    return figure


def draw_differences(
    axes: Axes, scores: dict, first: str, labels: dict[str, str], updates: int
) -> None:
    """The first contender minus others at the end of a life, by family, and the mean at the top."""
    families = families_of(scores, first, updates)
    found = ends(scores, first, updates, families)
    places = np.arange(len(families) + 1)
    for i, (contender, label) in enumerate(labels.items()):
        other = ends(scores, contender, updates, families)
        rows = [difference({f: found[f]}, {f: other[f]}) for f in families]
        rows.append(difference(found, other))
        means = np.array([row.mean for row in rows])
        bars = np.abs([[row.low for row in rows], [row.high for row in rows]] - means)
        shift = (i - (len(labels) - 1) / 2) * -0.28
        colour = palette.style(i).colour
        axes.errorbar(means, places + shift, xerr=bars, fmt="o", ms=4, color=colour, label=label)
    axes.axvline(0, color="0.4", linewidth=1)
    axes.set_yticks(places, [*(name.partition(":")[0] for name in families), "mean of all"])
    axes.set_title(f"lives of {updates:,} updates", fontsize=10)
    axes.set_xlabel("difference of scores")
    decorate(axes)


def families_of(scores: dict, contender: str, updates: int) -> list[str]:
    """Those with a scale, in which a contender has lived at a budget, the first one last."""
    start = f"{contender}/{updates}/"
    names = [name.removeprefix(start) for name in scores if name.startswith(start)]
    return [name for name in reversed(names) if ":" not in name or "=" in name]


def ends(scores: dict, contender: str, updates: int, families: list[str]) -> dict:
    """Scores at the end of a contender's lives, [N] by family."""
    name = (
        contender if f"{contender}/{updates}/{families[0]}" in scores else f"{contender}@{updates}"
    )
    return {family: scores[f"{name}/{updates}/{family}"]["end"] for family in families}


def differences(scores: dict, arguments: argparse.Namespace) -> Figure:
    """One panel for each budget."""
    labels = dict(label.split("=", 1) for label in arguments.labels)
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    panels = figure.subplots(1, len(arguments.updates), sharey=True, sharex=True, squeeze=False)[0]
    for axes, updates in zip(panels, arguments.updates, strict=True):
        draw_differences(axes, scores, arguments.first, labels, updates)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=len(labels), fontsize=9)
    return figure


def scaling(scores: dict, arguments: argparse.Namespace) -> Figure:
    """Score against compute and against the number of families."""
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, kind in zip(panels, ("lives", "families"), strict=True):
        draw_scaling(axes, scores, kind, arguments.updates[0])
    panels[0].set_xlabel("lives in the discovery")
    panels[1].set_xlabel("families in the discovery")
    panels[0].set_ylabel("score on held-out tasks")
    panels[0].legend(loc="lower right", fontsize=9)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", choices=("curves", "differences", "scaling"))
    parser.add_argument("scores", nargs="+", help="files of paired_lives.py, taken together")
    parser.add_argument("out")
    parser.add_argument("--labels", nargs="+", default=["first=first"], help="CONTENDER=LABEL")
    parser.add_argument("--first", default="first", help="contender of `differences`")
    parser.add_argument("--updates", type=int, nargs="+", default=[300, 1000])
    arguments = parser.parse_args()
    scores: dict = {}
    for file in arguments.scores:
        scores |= json.loads(Path(file).read_text())
    draw = {"curves": curves, "differences": differences, "scaling": scaling}[arguments.figure]
    figure = draw(scores, arguments)
    figure.savefig(arguments.out, dpi=160)


if __name__ == "__main__":
    main()
