"""The command `discorl compare`."""

from pathlib import Path
from typing import Any

from discorl.cli.commands import Command, Result, command, free_directory, result_of, tell
from discorl.cli.tables import interval, paragraph, table, width
from discorl.comparison import Results, compare, configure_comparison, costs
from discorl.comparison.config import Tuning
from discorl.reports import comparison
from discorl.reports.sections import few_runs
from discorl.runs.progress import doing
from discorl.runs.statistics import AGGREGATES

_WIDE = 110  # columns from which on intervals stand beside what they are of, not below


def compare_command(
    rules: tuple[str, ...] | None = None,
    more_rules: tuple[str, ...] | None = None,
    envs: tuple[str, ...] | None = None,
    suite: str | None = None,
    steps: int | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    seeds_at_once: int | None = None,
    learning_rates: tuple[float, ...] | None = None,
    tune: Tuning | None = None,
    sweep_seeds: int | None = None,
    keep_checkpoints: bool = False,
    out: Path | None = None,
    resume: Path | None = None,
    accept_changes: bool = False,
    executor: str | None = None,
) -> Result:
    """Train several rules on several environments and compare them.

    Args:
        rules: rules to compare: names, optionally with settings, or npz files. A rule that is also
            in the suite keeps the suite's settings. By default the suite's rules.
        more_rules: rules to compare in addition to those of the suite.
        envs: environments to compare on; by default the suite's.
        suite: name of a suite, or a TOML file; the other options override it.
        steps: environment steps of every agent; by default the suite's.
        seeds: agents that each rule trains on each environment; by default the suite's.
        seed: seed of the first of them; by default the suite's.
        seeds_at_once: how many of them train in one program; 0: all.
        learning_rates: candidate learning rates, tuned on separate seeds. A single
            one is used as it is; without any, each rule uses the suite's or its recipe's.
        tune: choose one learning rate for the whole suite, or one for each environment.
        sweep_seeds: agents that each learning rate is tried with.
        keep_checkpoints: keep the trained agents.
        out: directory to create; by default a new one in `runs`.
        resume: directory of a comparison to continue, with its own settings.
        accept_changes: with --resume: continue even though files were changed since it stopped.
        executor: where cells run: `processes:4`, `dask:tcp://HOST:PORT` or
            `slurm:partition=NAME`; by default one after the other in this process.
    """
    config = None
    if resume is None:
        config = configure_comparison(
            suite,
            rules=rules,
            more_rules=more_rules,
            environments=envs,
            steps=steps,
            seeds=seeds,
            seed=seed,
            seeds_at_once=seeds_at_once,
            learning_rates=learning_rates,
            tune=tune,
            sweep_seeds=sweep_seeds,
            keep_checkpoints=keep_checkpoints or None,
        )
        if config.about:
            tell(config.about)
        out = out or free_directory(f"compare-{config.name}")
    options = {"accept_changes": accept_changes, "tell": tell, "executor": executor}
    results = result_of(compare, config, out=out, resume=resume, **options)
    doing("statistics and figures")
    written = comparison.write(results)
    failed = any(record["status"] == "failed" for record in results.failures.values())
    ok = results.finished and bool(results.aggregates) and not failed
    return Result(_data(results, written), _text(results, written), ok=ok)


def _data(results: Results, written: Path) -> dict[str, Any]:
    return {
        "comparison": str(results.path),
        "report": str(written),
        "finished": results.finished,
        "environments": results.tasks,
        "aggregates": {
            rule: {name: vars(found) for name, found in row.items()}
            for rule, row in results.aggregates.items()
        },
        "costs": {rule: cost.numbers() for rule, cost in results.costs.items()},
        "improvement": [
            {"rule": x, "over": y, **vars(found)} for (x, y), found in results.improvements.items()
        ],
        "failures": failures(results),
    }


def failures(results: Results) -> list[dict[str, str]]:
    """The cells that failed or diverged, for programs."""
    return [
        {"cell": str(cell), "status": record["status"], "message": record["message"]}
        for cell, record in results.failures.items()
    ]


def _text(results: Results, written: Path) -> str:
    lines = []
    if results.aggregates:
        lines += [f"{each}\n" for each in _tables(results)]
        count = len(results.tasks)
        scores = "normalised scores" if results.normalised else "returns as they are"
        lines.append(
            f"{scores}, 95% intervals, {results.config.runs_text} runs in each of {count} "
            f"environment{'s' if count > 1 else ''}"
        )
        lines.append(paragraph(costs.NOTE))
        lines += map(paragraph, filter(None, [few_runs(results)]))
        left_out = len(results.config.environments) - count
        if left_out:
            lines.append(f"{left_out} environments are not finished by all rules and do not count")
    else:
        lines.append("no environment is finished by all rules")
    if results.failures:
        lines.append(f"{len(results.failures)} cells failed or diverged; the report lists them")
    untuned = {rule: why for (rule, _), why in results.untuned.items()}
    lines += [f"{rule}: {why}" for rule, why in untuned.items()]
    lines.append(f"report: {written}")
    if not results.finished:
        lines.append(f"stopped; continue with: discorl compare --resume {results.path}")
    return "\n".join(lines)


def _tables(results: Results) -> list[str]:
    """Scores and costs, a line for each rule."""
    names = list(next(iter(results.aggregates.values())))
    between = " " if width() >= _WIDE else "\n"
    rows = results.aggregates.items()
    scores = [[rule, *(interval(row[name], between) for name in names)] for rule, row in rows]
    spent = [[rule, *results.costs[rule].texts()] for rule, _ in rows]
    heads = [AGGREGATES[name].heading for name in names], list(costs.TITLES.values())
    return [
        table(cells, ["", *head], wrap=(0,), numeric=range(1, len(head) + 1))
        for cells, head in zip((scores, spent), heads, strict=True)
    ]


COMMANDS: dict[str, Command] = {"": command(compare_command)}
