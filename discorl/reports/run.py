"""The page of training and discovery runs: their curves side by side, their films and settings."""

import base64
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from discorl import envs
from discorl.envs import Reference, references
from discorl.reports import page
from discorl.reports.charts import Line, LineChart, band, thinned
from discorl.reports.page import NOTHING, Cell, Table
from discorl.runs import Run, panels
from discorl.runs.files import read_bytes
from discorl.runs.metrics import (
    BEST_SCORE,
    EPISODES,
    PLACES,
    RETURN,
    STEP,
    TABLES,
    recent_return,
    recent_score,
)
from discorl.runs.npz import MAX_BYTES
from discorl.runs.versions import read_versions
from discorl.types import UserError

Columns = Mapping[str, np.ndarray]

DISCOVERY = "discover"  # the kind of such runs
POINTS = 150  # of a line; more cannot be seen
SEEDS = 10  # that are drawn one by one; more would hide each other
_NOT_DRAWN = (*PLACES, EPISODES, "life/steps", "life/budget")


@dataclasses.dataclass(frozen=True)
class _Shown:
    """A run, and what the page says of it."""

    run: Run
    label: str
    tables: Mapping[str, Columns]
    versions: Mapping[str, Any]

    @property
    def discovery(self) -> bool:
        return self.run.kind == DISCOVERY

    @property
    def metrics(self) -> Columns:
        return self.tables.get("metrics", {})

    def axis(self, columns: Columns) -> tuple[str, str]:
        """The column that the lines of a table go along, and what it is called."""
        if self.discovery:  # whose steps begin anew with every life of an agent
            return "update", "meta-steps"
        return (STEP, "environment steps") if STEP in columns else ("update", "updates")


def write(paths: Sequence[Path], file: Path) -> Path:
    """Writes one page about several run directories to a file, and returns it."""
    shown = [_read(path, label) for path, label in zip(paths, _labels(paths), strict=True)]
    if not any(each.tables for each in shown):
        raise UserError(f"{', '.join(map(str, paths))}: nothing is logged yet in metrics.csv")
    first = list(_panels(shown))
    charts = list(_charts(shown))
    trained = {series for series, each in enumerate(shown) if not each.discovery}
    main = [c for c in charts if c.title == RETURN and trained >= {x.series for x in c.lines}]
    other = [chart for chart in charts if chart not in main]
    labels = [each.label for each in shown]
    return page.write(
        file,
        "run.html",
        title=labels[0] if len(shown) == 1 else f"{len(shown)} runs",
        series=labels,
        charts=[*main, *first, *other],
        runs=_summary(shown),
        commands={each.label: each.versions.get("command") or "" for each in shown},
        main=main,
        panels=first,
        other=other,
        other_title=f"Losses, entropies and the rest: {len(other)} charts",
        films=list(_films(shown)),
        settings=[
            {
                "label": each.label,
                "settings": json.dumps(each.run.config, indent=1),
                "versions": page.pairs("versions", dict(each.versions)),
            }
            for each in shown
        ],
    )


def _read(path: Path, label: str) -> _Shown:
    with Run.open(path, read_only=True) as run:
        found = {name: run.metrics(name) for name in TABLES}
    tables = {name: table for name, table in found.items() if len(table.get("update", ()))}
    return _Shown(run, label, tables, page.shareable(read_versions(path)))


def _labels(paths: Sequence[Path]) -> list[str]:
    """The names of the directories, with as much of their paths as tells them apart."""
    full = [path.resolve() for path in paths]
    if len(set(full)) < len(full):
        raise UserError(f"{', '.join(map(str, paths))}: a run appears twice")
    if len(full) == 1:
        return [full[0].name]
    common = os.path.commonpath(full)
    return [str(path.relative_to(common)) if str(path) != common else path.name for path in full]


# --- charts ---------------------------------------------------------------------------------------


def _panels(shown: Sequence[_Shown]) -> Iterator[LineChart]:
    """What is looked at first in discoveries; see `discorl.runs.panels`."""
    discoveries = [(series, each) for series, each in enumerate(shown) if each.discovery]
    names = dict.fromkeys(name for _, each in discoveries for name in each.metrics)
    for number, panel in enumerate(panels.of_discovery(names) if discoveries else ()):
        lines: list[Line] = []
        for series, each in discoveries:
            columns = each.tables.get(panel.table, {})
            for name, label in panel.columns.items():
                if name in columns and np.isfinite(columns[name]).any():
                    whole = label if len(discoveries) == 1 else f"{each.label}: {label}"
                    line = _line(series, columns, "update", name)
                    lines.append(dataclasses.replace(line, label=whole, style=len(lines)))
        if lines:
            seen = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
            yield LineChart(
                f"panel-{number}",
                panel.title,
                "meta-steps",
                "",
                tuple(lines),
                scale=panel.fitting_scale(seen.min(), seen.max()),
                caption=panel.about,
            )


def _charts(shown: Sequence[_Shown]) -> Iterator[LineChart]:
    """A chart for each column that any of the runs has, and each axis that it goes along."""
    lines: dict[tuple[str, str, str], list[Line]] = {}
    for series, each in enumerate(shown):
        for table, columns in each.tables.items():
            along, label = each.axis(columns)
            for column in (name for name in columns if name not in _NOT_DRAWN):
                line = _line(series, columns, along, column)
                if np.isfinite(line.y).any():
                    lines.setdefault((column, table, label), []).append(line)
    # What is looked at first comes first.
    kinds = ("return", "score", "length", "loss", "entropy", "kl")

    def rank(name: tuple[str, str, str]) -> tuple[int, tuple[str, str, str]]:
        return next((i for i, part in enumerate(kinds) if part in name[0]), len(kinds)), name

    for number, name in enumerate(sorted(lines, key=rank)):
        column, table, label = name
        title = column if table == "metrics" else f"{column} ({table})"
        yield LineChart(f"metric-{number}", title, label, "", tuple(lines[name]))


def _line(series: int, columns: Columns, along: str, name: str) -> Line:
    """One column over time, thinned out: means over seeds, with the band around them."""
    x, means = thinned(columns, along, name, POINTS)
    mean, low, high = band(means)
    if len(means) == 1:
        return Line(series, x, mean)
    singly = name == RETURN and "seed" in columns and len(means) <= SEEDS
    return Line(series, x, mean, low, high, seeds=means if singly else None)


# --- tables ---------------------------------------------------------------------------------------


def _summary(shown: Sequence[_Shown]) -> Table:
    """What each run is, how far it is and what came of it: all that there is to say."""
    rows = [_facts(each) for each in shown]
    if len(rows) == 1:  # one below the other, as a phone shows best
        facts = {name: value for name, value in rows[0].items() if value and name != "run"}
        return page.pairs("runs", facts)
    head = list(dict.fromkeys(name for row in rows for name in row if row[name]))
    return Table("runs", head, [[row.get(name) or NOTHING for name in head] for row in rows])


def _facts(each: _Shown) -> dict[str, str | Cell]:
    config, metrics = each.run.config, each.metrics
    environments = dict.fromkeys(entry["env"] for entry in config.get("population", ()))
    where = config.get("env") or ", ".join(environments)
    facts: dict[str, str | Cell] = {
        "run": each.label,
        "kind": each.run.kind,
        "rule": config.get("rule") or "",
        "preset": config.get("preset") or "",
        "environment": Cell(where, kind="text") if where else "",
    }
    done = {name: f"{int(metrics[name].max()):,}" for name in ("update", STEP) if name in metrics}
    if each.discovery:
        best = each.tables.get("evaluation", {}).get(BEST_SCORE, np.zeros(0))
        recent = {"recent return": recent_return(metrics), "recent score": recent_score(metrics)}
        return facts | {
            "meta-steps": done.get("update", "0"),
            **{name: _number(value) for name, value in recent.items() if math.isfinite(value)},
            "best score": _number(best[-1]) if len(best) else "",
        }
    seeds = [int(seed) for seed in np.unique(metrics.get("seed", ()))]
    returns = [recent_return(metrics, seed) for seed in seeds]
    reference = _reference(each.run)
    scores = [reference.score(value) for value in returns] if reference is not None else []
    return facts | {
        "updates": done.get("update", "0"),
        "steps": done.get(STEP, "0"),
        "seeds": ", ".join(map(str, seeds)),
        "recent return": _over_seeds(returns),
        "score": _over_seeds(scores),
    }


def _over_seeds(values: Sequence[float]) -> str | Cell:
    """The mean, and every seed's value."""
    known = [value for value in values if math.isfinite(value)]
    if len(values) < 2 or not known:
        return _number(known[0]) if known else ""
    return Cell(
        _number(sum(known) / len(known)), small=f"by seed {', '.join(map(_number, values))}"
    )


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else NOTHING


def _reference(run: Run) -> Reference | None:
    """The scale of the run's environment, if it has one and can be made here."""
    if run.config.get("own", {}).get("environment"):
        return None
    try:
        return references.of(envs.make(run.config["env"]))
    except (UserError, KeyError):
        return None


def _films(shown: Sequence[_Shown]) -> Iterator[dict[str, str]]:
    for each in shown:
        for film in sorted(each.run.path.glob("*.gif")):
            content = base64.b64encode(read_bytes(film, MAX_BYTES)).decode()
            yield {"label": each.label, "name": film.name, "content": content}
