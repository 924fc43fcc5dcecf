"""The command `discorl discover`."""

import dataclasses
import math

import tyro

from discorl.cli.commands import Command, Result, RunOptions, parse, peek, values_of
from discorl.discovery import (
    DiscoverConfig,
    DiscoverResult,
    GroupConfig,
    configure_discovery,
    discover,
)
from discorl.runs import processes
from discorl.runs.metrics import SCORE, recent_return, recent_score


@dataclasses.dataclass(frozen=True)
class _Arguments(RunOptions, DiscoverConfig):
    """Settings of a run, and where it is kept."""

    envs: tuple[str, ...] = ()
    """Environments of the population: families of tasks (`grid:size=5`), of which every life draws
    a member, or single environments. Ranges make a distribution: `grid:size=4..6,respawn=0.0..0.5`
    spreads agents over sizes and lets every life draw the rest."""
    evaluate_on: tuple[str, ...] = ()  # type: ignore[assignment]
    """Environments of the evaluation, such as members held out of a family
    (`grid:seed=1,split=held_out`)."""

    population: tyro.conf.Fixed[tuple[GroupConfig, ...]] = ()


def discover_command(arguments: list[str], program: str) -> Result:
    """Discover a rule with a population of agents, from scratch or from another rule."""
    parsed, config = _parse(arguments, program)
    result = parsed.run(discover, config, f"discover-{config.preset}")
    silent = not processes.prints_results()
    return Result(_data(result), _text(result), ok=result.finished, silent=silent)


def _parse(arguments: list[str], program: str) -> tuple[_Arguments, DiscoverConfig]:
    """Parses twice: preset and file decide the defaults of the others."""
    defaults = configure_discovery(**peek(arguments, program, "preset", "config"))
    tasks = {"envs": defaults.population, "evaluate_on": defaults.evaluate_on}
    names = {option: tuple(task.env for task in of) for option, of in tasks.items()}
    start = _Arguments(**values_of(defaults, DiscoverConfig) | names)
    parsed = parse(_Arguments, start, arguments, program, discover_command.__doc__)
    given = values_of(parsed, DiscoverConfig)
    del given["population"]
    for option, default in tasks.items():  # names alone would lose the settings of their agents
        named = getattr(parsed, option)
        given[option] = default if named == names[option] else named
    return parsed, configure_discovery(**given)


def _data(result: DiscoverResult) -> dict:
    path = str(result.path)
    return {
        "run": path,
        "finished": result.finished,
        "meta_steps": int(result.metrics["update"][-1]),
        "seconds": result.seconds,
        **_recent(result),
        "score": float(result.evaluations[SCORE][-1]),
        "best_score": result.best_score,
        "dropped": int(result.metrics.get("meta/dropped", [0])[-1]),
        "rule": f"{path}/rule.npz",
        # Without a score it is only the rule that discovery started from.
        "best": f"{path}/best.npz" if math.isfinite(result.best_score) else None,
    }


def _recent(result: DiscoverResult) -> dict[str, float]:
    """What the agents of the last tenth of the steps earned."""
    if result.config.method == "meta_gradient":
        return {"recent_return": recent_return(result.metrics)}
    return {"recent_score": recent_score(result.metrics)}


def _text(result: DiscoverResult) -> str:
    data = _data(result)
    lines = [
        f"{data['meta_steps']} meta-steps in {result.seconds:.1f} s",
        *(
            f"mean {name.removeprefix('recent_')} of the agents, last tenth: {value:.3f}"
            for name, value in _recent(result).items()
        ),
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
        lines.append(f"stopped; continue with: discorl discover --resume {result.path}")
    return "\n".join(lines)


COMMANDS: dict[str, Command] = {"": discover_command}
