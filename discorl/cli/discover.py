"""The command `discorl discover`."""

import dataclasses
import math
from pathlib import Path

import tyro

from discorl.cli.commands import Command, Result, free_directory, peek, refuse_other_settings
from discorl.discovery import DiscoverConfig, DiscoverResult, configure_discovery, discover
from discorl.runs.metrics import recent_return


@dataclasses.dataclass(frozen=True)
class _Arguments(DiscoverConfig):
    """Settings of a run, and where it is kept."""

    out: Path | None = None
    """Run directory to make; by default a new one in `runs`."""
    resume: Path | None = None
    """Run directory to go on with, with its own settings."""

    @property
    def config(self) -> DiscoverConfig:
        names = [field.name for field in dataclasses.fields(DiscoverConfig)]
        return configure_discovery(**{name: getattr(self, name) for name in names})


def discover_command(arguments: list[str], program: str) -> Result:
    """Discover a rule with a population of agents, from scratch or from another rule."""
    parsed = _parse(arguments, program)
    if parsed.resume is not None:
        result = discover(resume=parsed.resume)
    else:
        result = discover(
            parsed.config, out=parsed.out or free_directory(f"discover-{parsed.preset}")
        )
    return Result(_data(result), _text(result), ok=result.finished)


def _parse(arguments: list[str], program: str) -> _Arguments:
    """Parses twice, for the preset decides the defaults of the others."""
    defaults = configure_discovery(**peek(arguments, program, "preset"))
    parsed = tyro.cli(
        _Arguments,
        prog=program,
        description=discover_command.__doc__,
        default=_Arguments(**defaults.as_dict()),
        args=arguments,
    )
    if parsed.resume is not None:
        refuse_other_settings(parsed.resume, arguments, program)
    return parsed


def _data(result: DiscoverResult) -> dict:
    path = str(result.path)
    return {
        "run": path,
        "finished": result.finished,
        "meta_steps": int(result.metrics["update"][-1]),
        "seconds": result.seconds,
        "recent_return": recent_return(result.metrics),
        "score": float(result.evaluations["score"][-1]),
        "best_score": result.best_score,
        "dropped": int(result.metrics["dropped"][-1]),
        "rule": f"{path}/rule.npz",
        # Without a score it is only the rule that discovery started from.
        "best": f"{path}/best.npz" if math.isfinite(result.best_score) else None,
    }


def _text(result: DiscoverResult) -> str:
    data = _data(result)
    lines = [
        f"{data['meta_steps']} meta-steps in {result.seconds:.1f} s",
        f"mean return of the agents, last tenth: {data['recent_return']:.3f}",
        f"score with fresh agents: {data['score']:.3f}, at best {result.best_score:.3f}"
        if data["best"]
        else "score with fresh agents: none, for in no evaluation did an episode end in every "
        "environment; raise --evaluate-updates",
        f"run directory: {result.path}",
    ]
    if data["dropped"]:
        lines.insert(1, f"{data['dropped']} meta-gradients were left out: too large or not finite")
    if result.finished:
        lines.append(f"next: discorl train --rule {data['best'] or data['rule']}")
    else:
        lines.append(f"stopped; go on with: discorl discover --resume {result.path}")
    return "\n".join(lines)


COMMANDS: dict[str, Command] = {"": discover_command}
