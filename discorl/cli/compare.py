"""The command `discorl compare`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from discorl.cli.commands import Command, Result, free_directory, refuse_other_settings, result_of
from discorl.cli.tables import table, width
from discorl.comparison import Results, compare, configure_comparison, costs
from discorl.comparison.config import Tuning
from discorl.reports import comparison
from discorl.reports.sections import few_runs
from discorl.runs.statistics import AGGREGATES, Estimate

_WIDE = 110  # columns from which on intervals stand beside what they are of, not below


def compare_command(arguments: list[str], program: str) -> Result:
    """Train several rules in several environments and compare them."""

    def run(
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
        accept_changes: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    ) -> Result:
        """Train several rules in several environments and compare them.

        Args:
            rules: rules to compare: names, optionally with settings, or npz files; one that the
                suite has too is compared as the suite has it.
            more_rules: rules to compare beside those of the suite.
            envs: environments to compare in; likewise.
            suite: name of a suite, or a TOML file; the other options override what it says.
            steps: environment steps that every agent may take.
            seeds: agents that each rule trains in each environment.
            seed: seed of the first of them.
            seeds_at_once: how many of them train in one program; 0 for all.
            learning_rates: learning rates that each rule chooses from, on seeds of its own; one is
                taken as it is, none is that of the rule's recipe. The suite's rules have these
                then, whatever they had.
            tune: choose a learning rate for the whole suite, or for each environment.
            sweep_seeds: agents that each learning rate is tried with.
            keep_checkpoints: keep the trained agents.
            out: directory to make; by default a new one in `runs`.
            resume: directory of a comparison to continue, with its own settings.
            accept_changes: with --resume: continue even though files were changed since it stopped.
        """
        if resume is not None:
            refuse_other_settings(resume, arguments, program)
            options: dict[str, Any] = {"accept_changes": accept_changes, "tell": _tell}
            return _result(result_of(compare, resume=resume, **options))
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
            _tell(config.about)
        folder = out or free_directory(f"compare-{config.name}")
        return _result(result_of(compare, config, out=folder, tell=_tell))

    return tyro.cli(run, prog=program, args=arguments)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _result(results: Results) -> Result:
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
        "failures": [
            {"cell": str(cell), "status": record["status"], "message": record["message"]}
            for cell, record in results.failures.items()
        ],
    }


def _text(results: Results, written: Path) -> str:
    lines = []
    if results.aggregates:
        lines += [_scores(results), "", _costs(results), ""]
        count = len(results.tasks)
        scores = "normalised scores" if results.normalised else "returns as they are"
        lines.append(
            f"{scores}, 95% intervals, {results.config.seeds} runs in each of {count} "
            f"environment{'s' if count > 1 else ''}"
        )
        lines.append(costs.NOTE)
        lines += filter(None, [few_runs(results)])
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
        lines.append(f"stopped; go on with: discorl compare --resume {results.path}")
    return "\n".join(lines)


def _scores(results: Results) -> str:
    names = list(next(iter(results.aggregates.values())))
    rows = [
        [rule, *(_interval(row[name]) for name in names)]
        for rule, row in results.aggregates.items()
    ]
    head = ["", *(AGGREGATES[name].heading for name in names)]
    return table(rows, head, wrap=(0,), numeric=range(1, len(head)))


def _costs(results: Results) -> str:
    rows = [[rule, *results.costs[rule].texts()] for rule in results.aggregates]
    head = ["", *costs.TITLES.values()]
    return table(rows, head, wrap=(0,), numeric=range(1, len(head)))


def _interval(found: Estimate) -> str:
    between = " " if width() >= _WIDE else "\n"
    return f"{found.value:.3f}{between}[{found.low:.3f}, {found.high:.3f}]"


COMMANDS: dict[str, Command] = {"": compare_command}
