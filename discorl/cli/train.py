"""The command `discorl train`."""

import argparse
import dataclasses
import itertools
import re
from pathlib import Path

import tyro

from discorl.cli.commands import Command, Result
from discorl.config import DEFAULT_ENVIRONMENT, DEFAULT_RULE, Config, configure
from discorl.training import TrainResult, train
from discorl.types import UserError

RUNS = Path("runs")


@dataclasses.dataclass(frozen=True)
class _Arguments(Config):
    """Settings of a run, and where it is kept."""

    out: Path | None = None
    """Run directory to make; by default a new one in `runs`."""
    resume: Path | None = None
    """Run directory to go on with, with its own settings."""

    @property
    def config(self) -> Config:
        fields = dataclasses.fields(Config)
        return Config(**{field.name: getattr(self, field.name) for field in fields})


def train_command(arguments: list[str], program: str) -> Result:
    """Train agents on an environment with a rule."""
    parsed = _parse(arguments, program)
    if parsed.resume is not None:
        result = train(resume=parsed.resume)
    else:
        result = train(parsed.config, out=parsed.out or _free_directory(parsed.config))
    return Result(_data(result), _text(result), ok=result.finished)


def _parse(arguments: list[str], program: str) -> _Arguments:
    """Parses twice, for rule, environment and preset decide the defaults of the others."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--rule", default=DEFAULT_RULE)
    first.add_argument("--env", default=DEFAULT_ENVIRONMENT)
    first.add_argument("--preset", default=None)
    chosen, _ = first.parse_known_args(arguments)
    defaults = configure(chosen.rule, chosen.env, chosen.preset)
    parsed = tyro.cli(
        _Arguments,
        prog=program,
        description=train_command.__doc__,
        default=_Arguments(**defaults.as_dict()),
        args=arguments,
    )
    if parsed.resume is not None and len(arguments) > 2:
        raise UserError(
            "--resume goes on with the run's own settings and takes no others: run "
            f"`discorl train --resume {parsed.resume}`"
        )
    return parsed


def _free_directory(config: Config) -> Path:
    """`runs/RULE-ENV-N`, N being the first that is free."""
    rule = Path(config.rule).stem if config.rule.endswith(".npz") else config.rule
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{rule}-{config.env}").strip("-")
    return next(p for i in itertools.count() if not (p := RUNS / f"{name}-{i}").exists())


def _data(result: TrainResult) -> dict:
    metrics = result.metrics
    return {
        "run": str(result.path),
        "finished": result.finished,
        "updates": int(metrics["update"][-1]),
        "steps": int(metrics["steps"][-1]),
        "seconds": result.seconds,
        "seeds": list(range(result.config.seed, result.config.seed + result.config.seeds)),
        "recent_return": result.recent_return().tolist(),
    }


def _text(result: TrainResult) -> str:
    data = _data(result)
    returns = ", ".join(f"{value:.3f}" for value in data["recent_return"])
    done = f"{data['updates']} updates, {data['steps']:,} environment steps"
    lines = [
        f"{result.config.rule} on {result.config.env}: {done} in {result.seconds:.1f} s",
        f"mean return of the last tenth: {returns}",
        f"run directory: {result.path}",
    ]
    if result.finished:
        lines.append(f"next: discorl evaluate {result.path}")
    else:
        lines.append(f"stopped; go on with: discorl train --resume {result.path}")
    return "\n".join(lines)


COMMANDS: dict[str, Command] = {"": train_command}
