"""Suites: tables that a comparison starts from, and the settings that override them."""

import dataclasses
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from discorl.comparison.entries import EnvironmentEntry, RuleEntry, read_entries
from discorl.runs import config_files
from discorl.types import UserError, specs

_FOLDER = resources.files("discorl.comparison") / "suites"


def suites() -> list[str]:
    """Names of the suites in this package."""
    names = (Path(file.name) for file in _FOLDER.iterdir())
    return sorted(name.stem for name in names if name.suffix == ".toml")


def load(suite: str | os.PathLike[str], extending: tuple[str, ...] = ()) -> dict[str, Any]:
    """The table of a suite, by name or file, which may extend another suite.

    `extending` holds the files that extend this one.
    """
    text = os.fspath(suite)
    file = Path(text)
    if not text.endswith(".toml"):
        specs.require_known("suite", [text], [*suites(), "a file ending in .toml"])
        file = Path(str(_FOLDER / f"{text}.toml"))
    table = config_files.read_toml(file)
    if "extends" not in table:
        return on_top({}, {"name": file.stem} | table)
    extends = table.pop("extends")
    if not isinstance(extends, str):
        raise UserError(f"{text}: extends is {extends!r}; expected a suite's name or a TOML file")
    base = str(Path(text).parent / extends) if extends.endswith(".toml") else extends
    chain = (*extending, os.path.realpath(text))
    if os.path.realpath(base) in chain:
        raise UserError(f"{text}: extends {extends!r}, which in turn extends this file")
    return on_top(load(base, chain), {"name": file.stem} | table)


def on_top(suite: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a suite, overridden by others.

    A rule or environment given by name is the suite's entry of that name. `more_rules` come after
    the other rules. Learning rates replace those of the suite's rules, too.
    """
    table = {**suite, **given}
    rules = read_entries(suite.get("rules", ()), RuleEntry)
    if "learning_rates" in given:
        rules = tuple(dataclasses.replace(rule, learning_rates=()) for rule in rules)
    if "rules" in given:  # a rule that is given by name is not optional
        rules = tuple(dataclasses.replace(rule, optional=False) for rule in rules)
        rules = read_entries(given["rules"], RuleEntry, rules)
    table["rules"] = rules + read_entries(table.pop("more_rules", ()), RuleEntry)
    environments = read_entries(suite.get("environments", ()), EnvironmentEntry)
    table["environments"] = read_entries(
        table.get("environments", ()), EnvironmentEntry, environments
    )
    return table
