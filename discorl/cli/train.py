"""The command `discorl train`."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated

import tyro

from discorl.cli.commands import Command, Result, RunOptions, parse, peek, tell, values_of
from discorl.envs import references
from discorl.runs import config_files, processes
from discorl.runs.metrics import STEP
from discorl.training import TrainConfig, TrainResult, configure, train
from discorl.training.config import DEFAULT_RULE
from discorl.training.presets import small_preset


@dataclasses.dataclass(frozen=True)
class _Arguments(RunOptions, TrainConfig):
    """Settings of a run, and where it is kept."""

    start: Annotated[Path | None, tyro.conf.arg(name="from", help_behavior_hint="")] = None
    """Run directory whose network parameters the new run starts from; optimiser and replay start
    fresh."""
    steps: Annotated[
        int | None, tyro.conf.arg(aliases=["--total-timesteps"], help_behavior_hint="")
    ] = None
    """Budget in environment steps, instead of --updates."""

    updates: int = 1000
    """Number of updates; by default as many as the preset's environment steps allow."""


def train_command(arguments: list[str], program: str) -> Result:
    """Train agents on an environment with a rule."""
    parsed, config = _parse(arguments, program)
    small = None if parsed.resume else small_preset(config.preset)
    if small is not None and "preset" not in peek(arguments, program, "preset"):
        paper = f"preset {config.preset} is the paper's, for accelerators"
        tell(f"{paper}; for a few CPU cores: --preset {small}")
    rule = _rule_given(arguments, program)
    rule = Path(rule).stem if rule.endswith(".npz") else rule
    result = parsed.run(train, config, f"{rule}-{config.env}", start=parsed.start)
    ok = result.finished and not result.lost.all()
    return Result(_data(result), _text(result), ok=ok, silent=not processes.prints_results())


def _parse(arguments: list[str], program: str) -> tuple[_Arguments, TrainConfig]:
    """Parses twice: rule, environment, preset and file decide the defaults of the others."""
    defaults = configure(**peek(arguments, program, "rule", "env", "preset", "config"))
    start = _Arguments(**values_of(defaults, TrainConfig))
    parsed = parse(_Arguments, start, arguments, program, train_command.__doc__)
    given = values_of(parsed, TrainConfig)
    if "updates" not in peek(arguments, program, "updates"):
        del given["updates"]
    if parsed.steps is not None:
        given["steps"] = parsed.steps
    return parsed, configure(config=parsed.config, **given)


def _rule_given(arguments: list[str], program: str) -> str:
    """The rule as the user wrote it; that of the configuration has its recipe added."""
    given = peek(arguments, program, "rule", "config")
    if "rule" not in given and "config" in given:
        given = config_files.read_settings(given["config"], "train")
    return given.get("rule", DEFAULT_RULE)


def _data(result: TrainResult) -> dict:
    metrics, returns = result.metrics, result.recent_return().tolist()
    return {
        "run": str(result.path),
        "finished": result.finished,
        "updates": int(metrics["update"][-1]),
        "steps": int(metrics[STEP][-1]),
        "seconds": result.seconds,
        "seeds": list(range(result.config.seed, result.config.seed + result.config.seeds)),
        "lost": [result.config.seed + int(i) for i in result.lost.nonzero()[0]],
        "recent_return": returns,
        "best_return": None if result.best is None else result.best.mean_return.tolist(),
        "best_update": None if result.best is None else result.best.update.tolist(),
        "recent_score": result.reference and [result.reference.score(x) for x in returns],
    }


def _text(result: TrainResult) -> str:
    data = _data(result)
    returns = ", ".join(map(_known, data["recent_return"]))
    done = f"{data['updates']} updates, {data['steps']:,} environment steps"
    lines = [
        f"{result.config.rule} on {result.config.env}: {done} in {result.seconds:.1f} s",
        f"mean return of the last tenth: {returns}",
    ]
    if data["recent_score"] is not None:
        low, high = references.ends_of(result.config.env)
        scores = ", ".join(map(_known, data["recent_score"]))
        lines.append(f"as a score: {scores} (0: {low}, 1: {high})")
    if result.evaluations:
        found = zip(data["best_return"], data["best_update"], strict=True)
        best = ", ".join(f"{value:.3f} after update {update}" for value, update in found)
        lines.append(f"best evaluation: {best}")
    if data["lost"]:
        lost = ", ".join(map(str, data["lost"]))
        last = result.finite_checkpoint
        where = "" if last is None else f"; the last checkpoint before that: {last}"
        lines.append(f"the parameters of seed {lost} are no longer finite{where}")
    lines.append(f"run directory: {result.path}")
    if result.finished:
        best = " --best" if result.evaluations else ""
        lines.append(f"next: discorl evaluate {result.path}{best}")
    else:
        lines.append(f"stopped; continue with: discorl train --resume {result.path}")
    return "\n".join(lines)


def _known(mean: float) -> str:
    return "no episode ended" if math.isnan(mean) else f"{mean:.3f}"


COMMANDS: dict[str, Command] = {"": train_command}
