"""The page of a sweep: the best settings, what mattered, and all trials."""

import math
import shlex
from pathlib import Path

from discorl.comparison import sweeps
from discorl.comparison.results import Results
from discorl.comparison.sweeps import Effect, text_of
from discorl.reports import page, sections
from discorl.reports.charts import IntervalChart, Row
from discorl.reports.page import NOTHING, PAGE, Rows, Table, as_csv, number
from discorl.runs.files import write_bytes, write_errors_reported


def write(results: Results, folder: Path | None = None) -> Path:
    """Writes `index.html` and `scores.csv`; returns the page.

    By default they go to `report` in the sweep's directory.
    """
    folder = folder or results.path / "report"
    scores = as_csv(results.rows())
    found = sweeps.effects(results)
    chart = _chart(found, results.measure)
    best = next(iter(sweeps.ranking(results)), None)
    with write_errors_reported(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "scores.csv", scores)
    return page.write(
        folder / PAGE,
        "sweep.html",
        title=f"{results.config.name}: {', '.join(results.config.over)}",
        series=[effect.setting for effect in found],
        charts=[chart],
        best=best and {"label": best[0], "score": number(best[1])},
        command=train_command(results),
        runs=results.config.seeds,
        environments=results.tasks,
        measure=results.measure,
        adaptive=results.config.search is not None,
        effects=_effects(found),
        chart=chart,
        trials=_trials(results),
        **sections.shared(results, scores),
    )


def train_command(results: Results) -> str:
    """The command that trains with the best settings; empty if there are no scores yet."""
    ranked = sweeps.ranking(results)
    if not ranked:
        return ""
    config, label = results.config, ranked[0][0]
    (entry,) = (entry for entry in config.rules if entry.label == label)
    env = next(x.env for x in config.environments if x.label == results.tasks[0])
    words = ["discorl", "train", "--rule", entry.rule, "--env", env, "--steps", str(config.steps)]
    for name, value in (dict(config.settings) | dict(entry.settings)).items():
        several = value if isinstance(value, list | tuple) else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, several)]
    return shlex.join(words)


def _chart(found: list[Effect], measure: str) -> IntervalChart:
    """All effects on one axis, so that their sizes can be compared."""
    rows = tuple(
        Row.of(series, f"{effect.setting} = {text}", mean)
        for series, effect in enumerate(found)
        for text, mean in effect.groups
    )
    return IntervalChart("effects", "What mattered", ((f"mean {measure}", rows),))


def _effects(found: list[Effect]) -> Table:
    rows: Rows = []
    for effect in found:
        best = max(effect.groups, key=lambda group: group[1].value)
        share = NOTHING if math.isnan(effect.share) else f"{effect.share:.0%}"
        rows.append([effect.setting, share, best[0], number(best[1])])
    return Table("effects", ["setting", "variance explained", "best value", "mean there"], rows)


def _trials(results: Results) -> Table:
    tried, names = sweeps.trials(results), results.config.over
    rows: Rows = [
        [*(text_of(tried[label][name]) for name in names), number(score)]
        for label, score in sweeps.ranking(results)
    ]
    return Table("trials", [*names, f"mean {results.measure}"], rows)
