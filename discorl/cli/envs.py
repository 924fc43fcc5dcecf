"""The command `discorl envs`: lists environments, shows one, or checks one."""

import inspect
import shlex
from typing import Any

import tyro

from discorl import envs
from discorl.cli.commands import Command, Result, command, contract_result
from discorl.cli.tables import table
from discorl.envs import references, suites
from discorl.envs.families import REGISTRY as FAMILIES
from discorl.training.presets import preset_for, small_preset
from discorl.types import UserError, specs, validation
from discorl.types.findings import describe, raised

MOST_STEPS = 1_000_000  # of a check, which keeps them all


def show(name: tyro.conf.Positional[str | None] = None) -> Result:
    """List all environments, the items of a suite, or what one environment is like.

    `discorl envs check NAME` tests an environment instead.

    Args:
        name: a suite such as `gymnax`, for its items; or an environment such as
            `gymnax:Breakout-MinAtar`, for its observations, actions and reference scores, and a
            command to start from. Without it, all environments are listed.
    """
    if name is None:
        return _all()
    known = suites.plugins() | envs.SUITES
    if name not in known or name in envs.REGISTRY:
        return _one(name)
    suite = known[name]
    items = suite.names()
    data = {"name": name, "items": items, "default": suite.default, "licence": suite.licence}
    notes = {suite.default: f" (the default: {name})"}
    return Result(data, "\n".join(f"{name}:{item}{notes.get(item, '')}" for item in items))


def check(name: tyro.conf.Positional[str], steps: int = 300, seed: int = 0) -> Result:
    """Check that an environment keeps its contract.

    Args:
        name: the environment, such as `gymnax:Breakout-MinAtar` or `package.module:factory`.
        steps: how many steps to play.
        seed: seed of the environment and of the random actions.
    """
    from discorl.envs import conformance

    validation.integer("steps", steps, least=1, most=MOST_STEPS)
    validation.integer("seed", seed, least=0, most=validation.MOST_SEED)
    return contract_result(name, conformance.check(envs.make(name), steps=steps, seed=seed))


COMMANDS: dict[str, Command] = {"": command(show), "check": command(check)}


def _all() -> Result:
    built_in = []
    for name, constructor in envs.REGISTRY.items():
        about = inspect.getdoc(FAMILIES.get(name, constructor)) or ""
        built_in.append({"name": name, "kind": "built-in", "summary": about.splitlines()[0]})
    told = ("name", "kind", "install", "licence", "requirement", "default", "summary")
    built_suites: list[dict[str, Any]] = [
        {name: getattr(suite, name) for name in told} | {"installed": not suite.missing()}
        for suite in envs.SUITES.values()
    ]
    plugins = [_plugin(suite) for suite in suites.plugins().values()]
    unavailable = [{"name": name, "reason": reason} for name, reason in envs.UNAVAILABLE.items()]
    cells = [(row["name"], row["kind"], "built in", row["summary"]) for row in built_in]
    for row in built_suites:
        item = ":ITEM" if row["default"] is None else "[:ITEM]"
        state = "installed" if row["installed"] else "missing"
        needs = f"; needs {row['requirement']}" if row["requirement"] else ""
        advice = "" if row["installed"] else f" - {row['install']}"
        cells.append((row["name"] + item, row["kind"], state, row["summary"] + needs + advice))
    for row in plugins:
        remark = " - ".join(filter(None, (row["summary"], row["problem"])))
        cells.append((f"{row['name']}:ITEM", "plugin", row["state"], remark))
    cells += [(row["name"], "", "unavailable", row["reason"]) for row in unavailable]
    listed = table(cells, ("NAME", "KIND", "STATE", "SUMMARY"))
    text = f"{listed}\n\nItems of a suite: discorl envs SUITE"
    data = {"environments": built_in, "suites": built_suites}
    return Result(data | {"plugins": plugins, "unavailable": unavailable}, text)


def _plugin(suite: suites.Suite) -> dict[str, Any]:
    """A suite of another package; a broken one is listed and does not affect the others."""
    problem, taken = "", suite.name in envs.REGISTRY or suite.name in envs.SUITES
    try:
        suite.adapter()
    except UserError as error:
        problem = str(error)
    return {
        "name": suite.name,
        "state": "broken" if problem else "name taken" if taken else "installed",
        "summary": suite.summary,
        "licence": suite.licence,
        "problem": problem,
    }


def _one(name: str) -> Result:
    environment = envs.make(name)
    kind = envs.kind_of(environment)
    reference = references.of(environment)
    scores = None if reference is None else [float(end) for end in reference]
    try:
        observation, actions = describe(environment.observation), int(environment.num_actions)
    except Exception as error:  # in a property of the user's own
        advice = f"see discorl envs check {name}"
        raise UserError(f"{name}: {raised('it', error)}; {advice}") from error
    data = {"name": name, "kind": kind, "observation": observation, "actions": actions}
    texts = {name: str(value) for name, value in data.items()} | {
        "kind": f"{kind}: {_KINDS[kind]}",
        "reference": "none" if scores is None else f"{scores[0]:g} to {scores[1]:g}{_ends(name)}",
    }
    full = envs.canonical(name)
    preset = preset_for(full)  # or the one for a few CPU cores
    start = f"discorl train --env {shlex.quote(full)} --preset {small_preset(preset) or preset}"
    text = f"{table(list(texts.items()))}\nnext: {start}"
    return Result(data | {"reference": scores, "train": start}, text)


_KINDS = {
    "native": "written in JAX, one program with training",
    "host": "stepped on the CPU",
}


def _ends(name: str) -> str:
    """What the two ends of the reference are, where it is not random and optimal play."""
    scores = references.table_of(specs.parse(name).name)
    if scores is None:
        return " (random to optimal play)"
    low, high, source = references.describe(scores)
    return f" ({low} to {high}; {source})"
