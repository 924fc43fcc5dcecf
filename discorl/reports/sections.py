"""The sections of a comparison's page."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from discorl.comparison import costs
from discorl.comparison.cells import Cell
from discorl.comparison.costs import as_text
from discorl.comparison.results import Results
from discorl.comparison.statistics import SAMPLES, Estimate
from discorl.reports import charts, page
from discorl.reports.page import NOTHING, escape

FEW_RUNS = 5


def title(results: Results) -> str:
    """What is compared."""
    return f"{results.config.name}: {', '.join(rule.label for rule in results.config.rules)}"


def body(results: Results, scores: bytes) -> list[str]:
    """The page's HTML, the most important first.

    Args:
        results: what to tell.
        scores: the table of all runs as CSV, to be kept in the page.
    """
    parts = [f"<h1>{escape(title(results))}</h1>", *_lead(results), page.legend()]
    if results.aggregates:
        parts += [*_summary(results), *_improvement(results), *_distributions(results)]
    parts += [*_environments(results), *_compute(results), *_failures(results)]
    return [*parts, *_settings(results, scores)]


def _lead(results: Results) -> list[str]:
    config, tasks = results.config, results.tasks
    lines = [f"<p>{escape(config.about)}</p>"] if config.about else []
    if results.aggregates:
        best = max(results.aggregates, key=lambda rule: results.aggregates[rule]["iqm"].value)
        found = results.aggregates[best]["iqm"]
        lines.append(
            f'<p class="lead">Highest interquartile mean: <strong>{escape(best)}</strong>, '
            f"{_number(found)}.{_verdict(results, best)}</p>"
        )
    count = (
        f"{len(tasks)} of {len(config.environments)}" if not _whole(results) else f"{len(tasks)}"
    )
    lines.append(
        f'<p class="note">{config.seeds} runs of each rule in each of {count} environments, '
        f"{config.steps:,} environment steps a run. A score is the mean return per episode over "
        f"the last tenth of the updates, {_scaling(results)}. Brackets are 95% intervals of a "
        f"stratified bootstrap with {SAMPLES:,} samples (Agarwal et al. 2021).</p>"
    )
    if config.seeds < FEW_RUNS:
        lines.append(
            f'<p class="bad">With fewer than {FEW_RUNS} runs the bootstrap makes intervals too '
            "narrow: take them as hints.</p>"
        )
    if not _whole(results):
        lines.append(
            '<p class="bad">Not all is finished: only environments that every rule has finished '
            "count in the aggregates.</p>"
        )
    return lines


def _scaling(results: Results) -> str:
    if not results.normalised:
        return "as it is: no scale is known to normalise it by"
    return "normalised so that the lower end of the environment's scale is 0 and the upper end 1"


def _verdict(results: Results, best: str) -> str:
    """Which other rules it clearly beats, by the intervals of the chance of improvement."""
    others = [rule for rule in results.rules if rule != best]
    beaten = [rule for rule in others if results.improvements[best, rule].low > 0.5]
    if not others:
        return ""
    if not beaten:
        return " The chance that it does better is not clearly above one half for any other rule."
    names = ", ".join(escape(rule) for rule in beaten)
    return f" It more likely than not does better than {names}, at 95% confidence."


def _whole(results: Results) -> bool:
    everything = len(results.config.rules) * len(results.config.environments)
    return len(results.complete) == everything


def _summary(results: Results) -> list[str]:
    titles = charts.aggregate_titles(results)
    best = {
        name: (min if name == "optimality_gap" else max)(
            row[name].value for row in results.aggregates.values()
        )
        for name in titles
    }
    rows = []
    for rule, row in results.aggregates.items():
        cells = []
        for name in titles:
            mark = ' class="best"' if row[name].value == best[name] else ""
            cells.append(f"<td{mark}>{_number(row[name])}</td>")
        rows.append([escape(rule), *cells, *results.costs[rule].texts()])
    return [
        page.heading("Summary", costs.NOTE),
        page.table("summary", ["rule", *titles.values(), *costs.TITLES.values()], rows),
        page.figure(charts.aggregates(results)),
    ]


def _improvement(results: Results) -> list[str]:
    if not results.improvements:
        return []
    chart = charts.improvements(results)
    rows = [
        [escape(x), f'<td class="text">{escape(y)}</td>', _number(found)]
        for (x, y), found in results.improvements.items()
    ]
    note = (
        "The chance that a run of X scores more than a run of Y in an environment picked at "
        "random. An interval above one half says that X is better more often than not."
    )
    return [
        page.heading(chart.title, note),
        page.figure(chart),
        page.details("As a table", page.table("improvement", ["X", "over Y", "P(X > Y)"], rows)),
    ]


def _distributions(results: Results) -> list[str]:
    profiles, efficiency = charts.profiles(results), charts.efficiency(results)
    note = "The share of runs that score more than a threshold; higher is better."
    parts = [page.heading(profiles.title, note), page.figure(profiles)]
    if efficiency.lines:
        note = "Interquartile mean of scores over environment steps."
        parts += [page.heading(efficiency.title, note), page.figure(efficiency)]
    return parts


def _environments(results: Results) -> list[str]:
    curves = charts.curves(results)
    if not curves:
        return []
    rows = []
    for environment in results.config.environments:
        cells = [_mean_score(results, rule, environment.label) for rule in results.rules]
        rows.append([escape(environment.label), *cells, *_ends(results, environment.label)])
    head = [f"mean {results.measure}", *results.rules, "return for 0", "return for 1"]
    note = (
        "Mean return per episode over seeds; the band reaches from the lowest to the highest seed."
    )
    grid = "".join(page.figure(chart, heading=True) for chart in curves)
    return [
        page.heading("Environments", note),
        f'<div class="grid">{grid}</div>',
        page.table("environments", head, rows),
    ]


def _ends(results: Results, task: str) -> list[str]:
    """The ends of an environment's scale."""
    scale = results.scales.get(task)
    if scale is None:
        return ["", ""]
    if not scale.known:
        return ['<td class="text" colspan="2">returns as they are</td>']
    return [f"{scale.random:.4g}", f"{scale.optimal:.4g}"]


def _mean_score(results: Results, rule: str, task: str) -> str:
    group = results.complete.get((rule, task))
    if group is None:
        return NOTHING
    returns = np.concatenate([record["returns"] for _, record in group])
    return f"{results.scales[task].score(returns).mean():.3f}"


def _compute(results: Results) -> list[str]:
    rows = []
    for rule, cost in results.costs.items():
        rates = ", ".join(f"{rate:g}" for rate in cost.learning_rates)
        flops = as_text(cost.flops_per_update, ".3g")
        rows.append([escape(rule), escape(rates), as_text(cost.steps, ",.0f"), flops])
    head = ["rule", "learning rate", "steps of a run", "FLOP an update"]
    note = (
        "Means over the runs that count. FLOP are those of matrix products and convolutions, "
        "acting included; a dash where they could not be counted."
    )
    content = [page.heading("Compute", note), page.table("compute", head, rows)] if rows else []
    return content + _sweep(results)


def _sweep(results: Results) -> list[str]:
    """How the learning rates were chosen."""
    rows = []
    for cell, record in results.sweep.items():
        scale = results.scales.get(cell.environment.label)
        outcome = "not yet" if record is None else record["status"]
        if record is not None and "returns" in record and scale is not None:
            outcome = f"{float(np.mean(scale.score(np.array(record['returns'])))):.3f}"
            outcome += ", diverged" if record["status"] == "diverged" else ""
        taken = results.chosen[cell.rule.label, cell.environment.label] == cell.learning_rate
        mark = ' class="best"' if taken else ""
        rows.append(
            [
                escape(cell.rule.label),
                f'<td class="text">{escape(cell.environment.label)}</td>',
                f"<td{mark}>{cell.learning_rate:g}</td>",
                _seeds(cell),
                f"<td{mark}>{escape(outcome)}</td>",
            ]
        )
    if not rows:
        return []
    config = results.config
    where = "the whole suite" if config.tune == "suite" else "each environment"
    title = (
        f"Learning rates: for {where}, by the mean {results.measure} of {config.sweep_seeds} runs "
        f"each, on seeds from {config.sweep_seed}"
    )
    head = ["rule", "environment", "learning rate", "seeds", f"mean {results.measure}"]
    return [page.details(title, page.table("sweep", head, rows))]


def _seeds(cell: Cell) -> str:
    last = cell.seed + cell.seeds - 1
    return f"{cell.seed}" if cell.seeds == 1 else f"{cell.seed}&ndash;{last}"


def _failures(results: Results) -> list[str]:
    rows = [_failure(cell, record) for cell, record in results.failures.items()]
    missing = [
        [escape(str(cell)), "not run yet", ""]
        for cell, record in results.final.items()
        if record is None
    ]
    if not rows and not missing:
        return []
    head = ["run", "outcome", "message"]
    return [page.heading("What failed or is missing"), page.table("failures", head, rows + missing)]


def _failure(cell: Cell, record: Mapping[str, Any]) -> list[str]:
    return [
        escape(str(cell)),
        escape(record["status"]),
        f'<td class="text">{escape(record["message"])}</td>',
    ]


def _settings(results: Results, scores: bytes) -> list[str]:
    described = json.loads((results.path / "config.json").read_text(encoding="utf-8"))["config"]
    versions = json.loads((results.path / "versions.json").read_text(encoding="utf-8"))
    encoded = base64.b64encode(scores).decode()
    link = f'<a download="scores.csv" href="data:text/csv;base64,{encoded}">scores.csv</a>'
    parts = [page.heading("Settings")]
    if described["command"]:
        parts.append(f"<pre id='command'>{escape(described['command'])}</pre>")
    if described["sha256"]:
        parts += [
            page.pairs("rules", {f"sha256 of {k}": v for k, v in described["sha256"].items()})
        ]
    settings = json.dumps(described["comparison"], indent=1)
    return [
        *parts,
        page.details("All settings", f"<pre>{escape(settings)}</pre>"),
        page.details("Versions", page.pairs("versions", versions)),
        f'<p class="screen">Every run as a table: {link}</p>',
    ]


def _number(found: Estimate) -> str:
    return f"{found.value:.3f} <small>[{found.low:.3f}, {found.high:.3f}]</small>"
