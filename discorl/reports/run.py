"""The page of training and discovery runs: their curves side by side, their films and settings."""

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from discorl.reports import page
from discorl.reports.charts import Line, LineChart
from discorl.reports.page import NOTHING, escape
from discorl.runs import Run
from discorl.runs.files import write_atomically, write_errors_reported
from discorl.runs.metrics import MetricsFile
from discorl.types import UserError

Columns = Mapping[str, np.ndarray]

DISCOVERY = "discover"  # the kind of such runs
POINTS = 150  # of a line; more cannot be seen
_FIRST = ("return", "score", "best", "episode_length")
_NOT_DRAWN = ("update", "seed", "agent", "group", "steps", "episodes")


def write(paths: Sequence[Path], file: Path) -> Path:
    """Writes one page about several runs.

    Args:
        paths: their directories.
        file: the page to write.

    Returns:
        the page.
    """
    runs = []
    for path in paths:
        with Run.open(path, read_only=True) as run:
            runs.append(run)
    labels = _labels(paths)
    tables = [_tables(run) for run in runs]
    if not any(tables):
        raise UserError(f"{', '.join(map(str, paths))}: nothing is logged yet")
    charts = list(_charts([run.kind for run in runs], tables))
    title = labels[0] if len(runs) == 1 else f"{len(runs)} runs"
    body = [f"<h1>{escape(title)}</h1>", *_lead(runs, labels, tables), page.legend()]
    main = [chart for chart in charts if _rank(chart.title)[0] < len(_FIRST)]
    other = [chart for chart in charts if chart not in main]
    note = (
        "Means over what was logged between two points and over seeds or agents; bands from lowest "
        "to highest."
    )
    body += [page.heading("Curves", note), _grid(main)]
    if other:
        body += [page.heading("Losses, entropies and the rest"), _grid(other)]
    body += [*_films(runs, labels), *_settings(runs, labels)]
    with write_errors_reported(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        content = page.render(title, body, labels, charts)
        write_atomically(file, lambda stream: stream.write(content))
    return file


def _labels(paths: Sequence[Path]) -> list[str]:
    """The names of the directories, with as much of their paths as tells them apart."""
    full = [path.resolve() for path in paths]
    if len(set(full)) < len(full):
        raise UserError(f"{', '.join(map(str, paths))}: a run is there twice")
    if len(full) == 1:
        return [full[0].name]
    common = os.path.commonpath(full)
    return [str(path.relative_to(common)) if str(path) != common else path.name for path in full]


def _tables(run: Run) -> dict[str, Columns]:
    found = {file.stem: MetricsFile(file).columns() for file in sorted(run.path.glob("*.csv"))}
    return {
        name: table for name, table in found.items() if "update" in table and len(table["update"])
    }


def _charts(kinds: Sequence[str], runs: Sequence[Mapping[str, Columns]]) -> Iterator[LineChart]:
    """A chart for each column that any of the runs has, and each axis that it goes along."""
    lines: dict[tuple[str, str, str], list[Line]] = {}
    for series, (kind, tables) in enumerate(zip(kinds, runs, strict=True)):
        for table, columns in tables.items():
            along, label = _axis(kind, columns)
            for column in (name for name in columns if name not in _NOT_DRAWN):
                line = _line(series, columns, along, column)
                if np.isfinite(line.y).any():
                    lines.setdefault((column, table, label), []).append(line)
    for number, name in enumerate(sorted(lines, key=lambda name: (_rank(name[0]), name))):
        column, table, label = name
        title = column if table == "metrics" else f"{column} ({table})"
        yield LineChart(f"metric-{number}", title, label, "", tuple(lines[name]))


def _axis(kind: str, columns: Columns) -> tuple[str, str]:
    """The column that the lines of a table go along, and what it is called."""
    if kind == DISCOVERY:  # whose steps begin anew with every life of an agent
        return "update", "meta-steps"
    return ("steps", "environment steps") if "steps" in columns else ("update", "updates")


def _rank(name: str) -> tuple[int, int]:
    """What is looked at first comes first."""
    name = name.partition(" (")[0].partition("/")[0]
    kinds = ("loss", "entropy", "kl")
    kind = next((i for i, part in enumerate(kinds) if part in name), len(kinds))
    return _FIRST.index(name) if name in _FIRST else len(_FIRST), kind


def _line(series: int, columns: Columns, along: str, name: str) -> Line:
    """One column over time, thinned out: means over seeds, with the band around them."""
    updates, at = np.unique(columns["update"], return_inverse=True)
    who = columns.get("seed", columns.get("agent", np.zeros(len(at))))
    everyone, of = np.unique(who, return_inverse=True)
    values = np.full((len(everyone), len(updates)), np.nan)
    values[of, at] = np.where(np.isfinite(columns[name]), columns[name], np.nan)
    place = np.bincount(at, weights=columns[along]) / np.bincount(at)
    pieces = np.array_split(np.arange(len(updates)), min(POINTS, len(updates)))
    x = np.array([place[piece[-1]] for piece in pieces])
    means = np.stack([_mean(values[:, piece]) for piece in pieces], axis=1)
    y = _mean(means.T)
    if len(everyone) == 1:
        return Line(series, x, y)
    none = np.isnan(y)
    low = np.where(none, np.nan, np.where(np.isnan(means), np.inf, means).min(axis=0))
    high = np.where(none, np.nan, np.where(np.isnan(means), -np.inf, means).max(axis=0))
    return Line(series, x, y, low, high)


def _mean(values: np.ndarray) -> np.ndarray:
    """Means over the last axis of what is a number; NaN where nothing is."""
    known = np.isfinite(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)


# --- the page -------------------------------------------------------------------------------------


def _lead(
    runs: Sequence[Run], labels: Sequence[str], tables: Sequence[Mapping[str, Columns]]
) -> list[str]:
    rows = []
    for run, label, found in zip(runs, labels, tables, strict=True):
        metrics = found.get("metrics", {})
        done = [f"{int(metrics[n].max()):,}" if n in metrics else "0" for n in ("update", "steps")]
        discovery = run.kind == DISCOVERY
        progress = [NOTHING, NOTHING, done[0]] if discovery else [*done, NOTHING]
        what = run.config.get("rule") or run.config.get("preset") or ""
        where = run.config.get("env") or ", ".join(run.config.get("envs", ()))
        cells = [escape(run.kind), escape(what), f'<td class="text">{escape(where)}</td>']
        rows.append([escape(label), *cells, *progress, _latest(metrics)])
    head = ["run", "command", "rule or preset", "environment"]
    head += ["updates", "steps", "meta-steps", "recent return"]
    return [page.table("runs", head, rows)]


def _latest(metrics: Columns) -> str:
    """Mean return over the last tenth of the updates, of all seeds."""
    if "return" not in metrics:
        return NOTHING
    late = metrics["update"] > 0.9 * metrics["update"].max()
    weights = metrics["episodes"][late] if "episodes" in metrics else np.ones(late.sum())
    values = metrics["return"][late]
    seen = (weights > 0) & np.isfinite(values)
    return f"{np.average(values[seen], weights=weights[seen]):.3f}" if seen.any() else NOTHING


def _grid(charts: Sequence[LineChart]) -> str:
    return (
        f'<div class="grid">{"".join(page.figure(chart, heading=True) for chart in charts)}</div>'
    )


def _films(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    films = []
    for run, label in zip(runs, labels, strict=True):
        for film in sorted(run.path.glob("*.gif")):
            encoded = base64.b64encode(film.read_bytes()).decode()
            films.append(
                f'<figure><img class="film" alt="An episode of {escape(label)}" '
                f'src="data:image/gif;base64,{encoded}"><figcaption>{escape(label)}: '
                f"{escape(film.name)}</figcaption></figure>"
            )
    return [page.heading("Episodes"), f'<div class="grid">{"".join(films)}</div>'] if films else []


def _settings(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    body = [page.heading("Settings")]
    for run, label in zip(runs, labels, strict=True):
        versions = json.loads((run.path / "versions.json").read_text(encoding="utf-8"))
        settings = json.dumps(run.config, indent=1)
        body.append(page.details(f"Settings of {label}", f"<pre>{escape(settings)}</pre>"))
        body.append(page.details(f"Versions of {label}", page.pairs("versions", versions)))
    return body
