"""Where a discovery starts: the rule, its first parameters, and the run's random keys."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from discorl import rules
from discorl.discovery import distributions, teachers
from discorl.discovery.config import DiscoverConfig
from discorl.rules import Disco, Rule
from discorl.runs import Run
from discorl.runs.schemas import read_json
from discorl.types import Key, Params, UserError

SCRATCH = "scratch"
COSTS = "blocks.json"  # what each block of agents cost, by which a resumed run deals them out


class Keys(NamedTuple):
    """Random keys of a run, each for a purpose of its own."""

    rule: Key
    population: Key
    scoring: Key


def keys_of(config: DiscoverConfig) -> Keys:
    """The keys that follow from the seed."""
    return Keys(*jax.random.split(jax.random.key(config.seed), 3))


def is_new(start: str) -> bool:
    """Whether a discovery starts with a new rule, which may imitate another one first."""
    return start == SCRATCH or teachers.name_of(start) is not None


def starting_rule(
    config: DiscoverConfig, file: Path | None = None, rule: rules.Given | None = None
) -> tuple[Rule, Params]:
    """The rule that discovery starts from, and its parameters, before any imitation.

    A rule that the settings name brings its own sizes and bins.
    """
    start = config.start
    if start != SCRATCH and is_new(start) and file is not None:
        start = os.fspath(file)  # a learned rule by now
    if not is_new(start):
        built, eta = rules.load(start, file=file, rules_path=config.rules_path)
    elif rule is None and config.rule == Disco.name:
        built = Disco(
            sizes=config.sizes,
            num_bins=config.bins,
            bin_spacing=config.bin_spacing,
            without=config.without,
        )
        eta = None
    else:
        built, eta = rules.load(rule or config.rule, rules_path=config.rules_path)
        eta = eta if isinstance(rule, tuple) else None
    if not rules.is_learned(built):
        setting, value = ("rule", config.rule) if is_new(start) else ("start", start)
        raise UserError(
            f"{setting} is {value!r}, a rule without parameters to discover; expected a learned "
            "rule by its name or file, or a class with `init_params`"
        )
    if isinstance(built, Disco):
        built = dataclasses.replace(built, regularisers=config.regularisers)
        if config.without != "none":
            built = dataclasses.replace(built, without=config.without)
    if eta is None:  # by a key of the run's own
        return built, jax.jit(built.init_params)(keys_of(config).rule)
    return built, jax.tree.map(jnp.asarray, eta)


def check_start(config: DiscoverConfig, rule: Rule, host_environments: Sequence[str]) -> None:
    """Refuses a start that does not go with the rule or with the environments."""
    imitates = teachers.name_of(config.start) is not None
    if not isinstance(rule, Disco):
        misplaced = {"start": imitates, "without": config.without != "none"}
        for name in (name for name, given in misplaced.items() if given):
            raise UserError(
                f"{name} is {getattr(config, name)!r}, which is for the rule 'disco', and the rule "
                f"is {config.rule!r}: leave it out"
            )
        return
    if imitates and host_environments:
        raise UserError(
            f"start is {config.start!r}, which learns in environments written in JAX only, and "
            f"{host_environments[0]} is on the host: expected a rule or {SCRATCH!r}"
        )
    if "q" in rule.ablated and (imitates or config.regularisers.target_improvement > 0):
        raise UserError(
            "the rule is without q, whose advantages would improve its policy targets: expected "
            "target_improvement 0 and a start that imitates no other rule"
        )


def kept_costs(run: Run | None) -> list[float]:
    """What the blocks of a resumed run cost; [] if that is not known."""
    path = run.path / COSTS if run else None
    if path is None or not path.exists():
        return []
    try:
        return read_json(path, [float])
    except UserError:  # it only balances the load
        return []


def kept_start(run: Run | None) -> Path | None:
    """The rule that a resumed run started from, if it keeps one."""
    path = run.path / "start.npz" if run else None
    return path if path and path.exists() else None


def tell_of_sizes_left_out(config: DiscoverConfig) -> None:
    """Says which sizes of a range have no agent."""
    for group in config.population:
        notice = distributions.notice(group.env, group.agents or config.agents)
        if notice is not None:
            print(notice, file=sys.stderr)
