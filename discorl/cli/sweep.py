"""The command `discorl sweep`."""

import math
from pathlib import Path

from discorl.cli.commands import Command, Result, command, free_directory, result_of, tell
from discorl.cli.compare import failures
from discorl.cli.tables import interval, paragraph, table
from discorl.comparison import Results, compare, load, sweeps
from discorl.comparison.sweeps import configure_sweep, read_settings, read_space
from discorl.reports import sweep as page
from discorl.reports.sections import few_runs
from discorl.runs.progress import doing
from discorl.training.config import DEFAULT_ENVIRONMENT, DEFAULT_RULE
from discorl.types import UserError

_SHOWN = 10  # trials


def sweep_command(
    over: tuple[str, ...] = (),
    rule: str = DEFAULT_RULE,
    envs: tuple[str, ...] = (DEFAULT_ENVIRONMENT,),
    method: sweeps.Method | None = None,
    trials: int | None = None,
    batch: int | None = None,
    steps: int = 50_000,
    seeds: int = 3,
    seed: int = 0,
    settings: tuple[str, ...] = (),
    keep_checkpoints: bool = False,
    out: Path | None = None,
    resume: Path | None = None,
    accept_changes: bool = False,
    executor: str | None = None,
) -> Result:
    """Train a rule with different settings and show which of them matter.

    Args:
        over: settings to vary, with their values: `learning-rate=1e-4,1e-3,1e-2`. With --trials
            also ranges, `learning-rate=1e-4..1e-2`. Settings are those of `discorl train`.
        rule: the rule; `--over rule=...` varies it.
        envs: environments that each trial is scored on.
        method: how settings are chosen. `grid` tries every combination, `random` draws --trials
            of them, and `tpe` learns from the scores of earlier trials (needs Optuna). By
            default `random` with --trials and `grid` without.
        trials: number of trials, with `random` and `tpe`.
        batch: with `tpe` only, how many trials are proposed at a time; by default 1. Give at
            least the number of workers of --executor.
        steps: environment steps of every agent.
        seeds: agents of each trial, trained in one program.
        seed: seed of the first of them, and of the draws.
        settings: settings that all trials share: `preset=small hidden="64 64"`.
        keep_checkpoints: keep the trained agents.
        out: directory to create; by default a new one in `runs`.
        resume: directory of a sweep to continue, with its own settings.
        accept_changes: with --resume: continue even though files were changed since it stopped.
        executor: where trials run; see `discorl compare --help`.
    """
    config = None
    if resume is None:
        config = configure_sweep(
            read_space(over),
            rule=rule,
            environments=envs,
            method=method,
            trials=trials,
            batch=batch,
            seed=seed,
            settings=read_settings(settings),
            steps=steps,
            seeds=seeds,
            keep_checkpoints=keep_checkpoints,
        )
        count = len(config.rules) if config.search is None else config.search.trials
        tell(f"{config.about} {count} trials of {seeds} seeds.")
        out = out or free_directory(f"sweep-{rule}")
    elif not load(resume).config.over:
        raise UserError(
            f"{resume} is not a sweep; continue it with `discorl compare --resume {resume}`"
        )
    options = {"accept_changes": accept_changes, "tell": tell, "executor": executor}
    return _result(result_of(compare, config, out=out, resume=resume, **options))


def _result(results: Results) -> Result:
    doing("statistics and figures")
    written = page.write(results)
    ranked, effects = sweeps.ranking(results), sweeps.effects(results)
    data = {
        "sweep": str(results.path),
        "report": str(written),
        "finished": results.finished,
        "trials": [
            {**sweeps.trials(results)[label], "score": vars(score)} for label, score in ranked
        ],
        "effects": [
            {"setting": x.setting, "explained": x.share, "means": {t: vars(e) for t, e in x.groups}}
            for x in effects
        ],
        "best": page.train_command(results) or None,
        "failures": failures(results),
    }
    lines = []
    if ranked:
        shown = [[label, interval(score)] for label, score in ranked[:_SHOWN]]
        lines += [table(shown, ["trial", f"mean {results.measure}"], wrap=(0,)), ""]
        lines += [table(_effects(effects), ["setting", "variance explained", "best value"]), ""]
        lines += map(paragraph, filter(None, [few_runs(results)]))
    if results.failures:
        lines.append(f"{len(results.failures)} trials failed or diverged; the report lists them")
    lines.append(f"report: {written}")
    if not results.finished:
        lines.append(f"stopped; continue with: discorl sweep --resume {results.path}")
    elif ranked:
        lines.append(f"next: {data['best']}")
    return Result(data, "\n".join(lines), ok=results.finished and bool(ranked))


def _effects(effects: list[sweeps.Effect]) -> list[list[str]]:
    rows = []
    for effect in effects:
        best, mean = max(effect.groups, key=lambda group: group[1].value)
        share = "-" if math.isnan(effect.share) else f"{effect.share:.0%}"
        rows.append([effect.setting, share, f"{best} (mean {mean.value:.3f})"])
    return rows


COMMANDS: dict[str, Command] = {"": command(sweep_command)}
