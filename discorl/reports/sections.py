"""What the pages of comparisons and sweeps say, as the data that their templates lay out."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from discorl.comparison import costs
from discorl.comparison.cells import Cell as Run
from discorl.comparison.costs import as_text
from discorl.comparison.results import Results
from discorl.reports import charts, page
from discorl.reports.page import NOTHING, Cell, Rows, Table, number
from discorl.runs.statistics import AGGREGATES, SAMPLES
from discorl.runs.versions import read_versions

FEW_RUNS = 5


def few_runs(results: Results) -> str:
    """A warning, where runs are too few for the intervals to be trusted."""
    if min(map(results.config.seeds_of, results.config.rules)) >= FEW_RUNS:
        return ""
    return (
        f"With fewer than {FEW_RUNS} runs, bootstrap intervals are too narrow: treat them as a "
        "rough guide."
    )


def shared(results: Results, scores: bytes) -> dict[str, Any]:
    """What pages of comparisons and sweeps have alike; they keep all runs' `scores`, as CSV."""
    versions = page.shareable(read_versions(results.path))
    settings = results.config.as_dict()
    if results.config.over:  # the table of trials has their settings, in fewer pages
        del settings["rules"]
    return {
        "about": results.config.about,
        "steps": results.config.steps,
        "few_runs": few_runs(results),
        "failures": _failures(results),
        "started_with": versions["command"],
        "settings": json.dumps(settings, indent=1),
        "versions": page.pairs("versions", versions),
        "scores": base64.b64encode(scores).decode(),
    }


def context(results: Results, scores: bytes, drawn: list[charts.Chart]) -> dict[str, Any]:
    """Everything that the template `comparison.html` asks for."""
    config, tasks = results.config, results.tasks
    whole = len(results.complete) == len(config.rules) * len(config.environments)
    named = {chart.name: chart for chart in drawn}
    names = ("aggregates", "improvement", "profiles", "efficiency")
    hashes = {f"sha256 of {name}": value for name, value in results.sha256.items()}
    return shared(results, scores) | {
        "best": _best(results),
        "runs": config.runs_text,
        "environments": f"{len(tasks)}" if whole else f"{len(tasks)} of {len(config.environments)}",
        "samples": SAMPLES,
        "normalised": results.normalised,
        "whole": whole,
        "figures": {name: named.get(name) for name in names},
        "curves": [chart for chart in drawn if chart.name not in names],
        "summary": _summary(results) if results.aggregates else None,
        "cost_note": costs.NOTE,
        "improvement": _improvement(results) if results.improvements else None,
        "by_environment": _environments(results),
        "compute": _compute(results),
        "sweep": _sweep(results),
        "sweep_title": _sweep_title(results),
        "hashes": page.pairs("rules", hashes),
    }


def _best(results: Results) -> dict[str, Any] | None:
    """The rule with the highest interquartile mean, and which others it clearly beats."""
    if not results.aggregates:
        return None
    best = max(results.aggregates, key=lambda rule: results.aggregates[rule]["iqm"].value)
    others = [rule for rule in results.rules if rule != best]
    return {
        "rule": best,
        "iqm": number(results.aggregates[best]["iqm"]),
        "others": others,
        "beaten": [rule for rule in others if results.improvement(best, rule).low > 0.5],
    }


def _summary(results: Results) -> Table:
    titles = charts.aggregate_titles(results)
    best = {
        name: (min if AGGREGATES[name].lower_is_better else max)(
            row[name].value for row in results.aggregates.values()
        )
        for name in titles
    }
    rows: Rows = [
        [
            rule,
            *(number(row[name], "best" * (row[name].value == best[name])) for name in titles),
            *results.costs[rule].texts(),
        ]
        for rule, row in results.aggregates.items()
    ]
    return Table("summary", ["rule", *titles.values(), *costs.TITLES.values()], rows)


def _improvement(results: Results) -> Table:
    rows: Rows = [
        [x, Cell(y, kind="text"), number(found)] for (x, y), found in results.improvements.items()
    ]
    return Table("improvement", ["X", "over Y", "P(X > Y)"], rows)


def _environments(results: Results) -> Table:
    rows: Rows = [
        [
            environment.label,
            *(
                f"{results.scores_in(environment.label, rule).mean():.3f}"
                if (rule, environment.label) in results.complete
                else NOTHING
                for rule in results.rules
            ),
            *_ends(results, environment.label),
        ]
        for environment in results.config.environments
    ]
    head = [f"mean {results.measure}", *results.rules, "return for 0", "return for 1"]
    return Table("environments", head, rows)


def _ends(results: Results, task: str) -> list[str | Cell]:
    """The ends of an environment's scale."""
    scale = results.scales.get(task)
    if scale is None:
        return ["", ""]
    if not scale.known:
        return [Cell("returns as they are", kind="text", span=2)]
    return [f"{scale.random:.4g}", f"{scale.optimal:.4g}"]


def _compute(results: Results) -> Table:
    rows: Rows = [
        [
            rule,
            ", ".join(f"{rate:g}" for rate in cost.learning_rates),
            as_text(cost.steps, ",.0f"),
            as_text(cost.flops_per_update, ".3g"),
        ]
        for rule, cost in results.costs.items()
    ]
    return Table("compute", ["rule", "learning rate", "steps of a run", "FLOP an update"], rows)


def _sweep(results: Results) -> Table:
    """How the learning rates were chosen."""
    rows: Rows = []
    for run, record in results.sweep.items():
        taken = results.chosen[run.rule.label, run.environment.label] == run.learning_rate
        kind = "best" if taken else ""
        rows.append(
            [
                run.rule.label,
                Cell(run.environment.label, kind="text"),
                Cell(f"{run.learning_rate:g}", kind=kind),
                f"{run.seed}" if run.seeds == 1 else f"{run.seed} to {run.seed + run.seeds - 1}",
                Cell(_outcome(results, run, record), kind=kind),
            ]
        )
    head = ["rule", "environment", "learning rate", "seeds", f"mean {results.measure}"]
    return Table("sweep", head, rows)


def _outcome(results: Results, run: Run, record: Mapping[str, Any] | None) -> str:
    scale = results.scales.get(run.environment.label)
    if record is None:
        return "not yet"
    if "returns" not in record or scale is None:
        return record["status"]
    mean = f"{float(np.mean(scale.score(np.array(record['returns'])))):.3f}"
    return f"{mean}, diverged" if record["status"] == "diverged" else mean


def _sweep_title(results: Results) -> str:
    config = results.config
    where = "the whole suite" if config.tune == "suite" else "each environment"
    return (
        f"Learning rates: for {where}, by the mean {results.measure} of {config.sweep_seeds} runs "
        f"each, on seeds from {config.sweep_seed}"
    )


def _failures(results: Results) -> Table:
    """The runs that failed or are missing."""
    rows: Rows = [
        [str(run), record["status"], Cell(record["message"], kind="text")]
        for run, record in results.failures.items()
    ]
    rows += [
        [str(run), "not run yet", ""] for run, record in results.final.items() if record is None
    ]
    return Table("failures", ["run", "outcome", "message"], rows)
