"""The report of a comparison: tables, figures for a paper, and a page for a colleague."""

from pathlib import Path
from typing import Any

from discorl.comparison.results import Results
from discorl.reports import charts, figures, marl_eval, page, sections
from discorl.reports.charts import LineChart
from discorl.reports.page import PAGE, as_csv
from discorl.runs.files import remove_leftovers, write_bytes, write_errors_reported


def write(results: Results, folder: Path | None = None) -> Path:
    """Writes `index.html`, tables as CSV, `marl_eval.json` and figures; returns the page.

    By default they go to `report` in the comparison's directory.
    """
    folder = folder or results.path / "report"
    with write_errors_reported(folder):
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        for part in (folder, folder / "figures"):
            remove_leftovers(part)
        tables = {
            "scores.csv": as_csv(results.rows()),
            "summary.csv": as_csv(summary_rows(results)),
            "curves.csv": as_csv(_curve_rows(results)),
            "marl_eval.json": marl_eval.as_json(results),
        }
        for name, content in tables.items():
            write_bytes(folder / name, content)
        labels = [rule.label for rule in results.config.rules]
        drawn = [
            chart for chart in _charts(results) if not isinstance(chart, LineChart) or chart.lines
        ]
        for chart in drawn:
            figures.write(folder / "figures", chart, labels)
    return page.write(
        folder / PAGE,
        "comparison.html",
        title=f"{results.config.name}: {', '.join(labels)}",
        series=labels,
        charts=drawn,
        **sections.context(results, tables["scores.csv"], drawn),
    )


def summary_rows(results: Results) -> list[dict[str, Any]]:
    """The aggregates and chances of improvement as rows of a table, with what the rule cost."""
    costs = {rule: cost.numbers() for rule, cost in results.costs.items()}
    rows = [
        {"statistic": name, "rule": rule, "over": "", **vars(found), **costs[rule]}
        for rule, row in results.aggregates.items()
        for name, found in row.items()
    ]
    return rows + [
        {"statistic": "probability_of_improvement", "rule": x, "over": y}
        | {**vars(found), **costs[x]}
        for (x, y), found in results.improvements.items()
    ]


def _curve_rows(results: Results) -> list[dict[str, Any]]:
    return [
        {
            "rule": rule,
            "environment": task,
            "seed": seed,
            "global_step": steps,
            "episodic_return": "" if value is None else value,
        }
        for (rule, task), group in results.complete.items()
        for _, record in group
        for seed, values in zip(record["seeds"], record["curve"]["returns"], strict=True)
        for steps, value in zip(record["curve"]["steps"], values, strict=True)
    ]


def _charts(results: Results) -> list[charts.Chart]:
    found: list[charts.Chart] = []
    if results.aggregates:
        found += [charts.aggregates(results), charts.profiles(results), charts.efficiency(results)]
    if results.improvements:
        found.append(charts.improvements(results))
    return found + charts.curves(results)
