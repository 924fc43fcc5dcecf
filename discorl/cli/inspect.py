"""The command `discorl inspect`."""

from pathlib import Path

import tyro

from discorl.cli.commands import Command, Result, command, free_directory
from discorl.cli.tables import paragraph
from discorl.reports import inspection
from discorl.reports.inspection.subject import label_of


def inspect_command(
    rule_or_run: tyro.conf.Positional[str],
    env: str | None = None,
    out: Path | None = None,
    only: tuple[str, ...] = (),
    beside: tuple[str, ...] = inspection.BESIDE,
    seeds: int = 3,
    agents: tuple[int, ...] = (),
    preset: str | None = None,
    updates: int | None = None,
) -> Result:
    """Look inside a rule: figures, the numbers behind them, and a page.

    Args:
        rule_or_run: a rule, by name or npz file, to train agents with first; or the directory of a
            training run.
        env: environment to train on, written in JAX; by default Catch.
        out: folder to write to; by default a new one in `runs`, or `inspection` in the run.
        only: analyses to run: predictions, attention, future, bootstrapping, ablations,
            sensitivity, response, lifetime, gradient, coefficients; by default all.
        beside: rules to draw in the same figures; `start` is the rule before its discovery.
        seeds: agents to train.
        agents: seeds of the agents to look at, such as those that have learned; by default all.
        preset: preset of the training; by default the environment's, or `small`.
        updates: updates of each agent; by default the preset's.
    """
    is_run = Path(rule_or_run).is_dir()
    if not is_run and out is None:
        out = free_directory(f"inspect-{label_of(rule_or_run)}-{env or 'catch'}")
    given = {"preset": preset, "updates": updates}
    found = inspection.inspect(
        Path(rule_or_run) if is_run else rule_or_run,
        env,
        out=out,
        only=only,
        beside=beside,
        seeds=seeds,
        agents=agents,
        **{name: value for name, value in given.items() if value is not None},
    )
    lines = []
    for name, outcome in found.outcomes.items():
        if isinstance(outcome, str):
            lines.append(f"{name}: does not apply: {outcome}")
            continue
        lines.append(f"{name}:")
        lines += [paragraph(f"{what}: {value}", "  ") for what, value in outcome.facts.items()]
    lines.append(f"page: {found.page}")
    data = {
        "page": str(found.page),
        "analyses": {
            name: {"does_not_apply": outcome} if isinstance(outcome, str) else dict(outcome.facts)
            for name, outcome in found.outcomes.items()
        },
    }
    return Result(data, "\n".join(lines))


COMMANDS: dict[str, Command] = {"": command(inspect_command)}
