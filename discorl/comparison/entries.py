"""The rules and environments of a comparison, each with its own settings."""

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from discorl.envs import canonical
from discorl.runs.files import naming
from discorl.training.config import BUDGETS
from discorl.types import UserError, specs
from discorl.types.validation import Fields, number, refuse

Entry = TypeVar("Entry", "RuleEntry", "EnvironmentEntry")

# Settings of training that have their own argument.
OWN_ARGUMENTS = {
    "rule": "rules",
    "env": "environments",
    "seed": "seed",
    "seeds": "seeds",
    **dict.fromkeys(BUDGETS, "steps"),
}


@dataclasses.dataclass(frozen=True)
class RuleEntry:
    """A rule to compare."""

    rule: str
    """Name of the rule, optionally with settings, or its npz file."""
    label: str = ""
    """Its name in results; by default the rule's name, or the folder and name of its file."""
    learning_rates: tuple[float, ...] = ()
    """Learning rates to choose from; by default the comparison's."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Training settings of this rule."""
    seeds: int | None = None
    """Agents per environment; by default, and at most, the comparison's."""
    optional: bool = False
    """Whether to skip a published rule that has not been fetched; `about` then says so."""

    def __post_init__(self) -> None:
        fields = Fields(self).declared()
        if self.seeds is not None:
            fields.integer("seeds", least=1)
        object.__setattr__(self, "label", self.label or _label(self.rule))
        object.__setattr__(self, "learning_rates", read_rates(self.learning_rates))


@dataclasses.dataclass(frozen=True)
class EnvironmentEntry:
    """An environment to compare on, with the two ends of its scale."""

    env: str
    """Name of the environment, optionally with parameters."""
    label: str = ""
    """Its name in results; by default the environment's name."""
    random: float | None = None
    """Return per episode that maps to score 0; by default the environment's own reference."""
    optimal: float | None = None
    """Return per episode that maps to score 1; likewise."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Training settings in this environment."""

    def __post_init__(self) -> None:
        fields = Fields(self).declared()
        object.__setattr__(self, "label", self.label or self.env)
        with contextlib.suppress(UserError):  # its suite may be installed before the next resume
            object.__setattr__(self, "env", canonical(self.env))
        if self.random is None and self.optimal is None:
            return
        Fields(self, self.env).number("random", "optimal")
        fields.require(self.random != self.optimal, "optimal", f"not random, {self.random}, too")


def read_entries(values: Any, kind: type[Entry], own: Sequence[Entry] = ()) -> tuple[Entry, ...]:
    """Entries from texts and tables, or from one of them; a text sets only the first field.

    A text that is the label or the first field of one of the `own` entries selects it.
    """
    key = dataclasses.fields(kind)[0].name
    known: dict[Any, Entry] = {getattr(entry, key): entry for entry in reversed(own)}
    known |= {entry.label: entry for entry in own}
    several = isinstance(values, Iterable) and not isinstance(values, str | Mapping)
    return tuple(
        known[value] if isinstance(value, str) and value in known else _entry(value, kind, key)
        for value in (values if several else [values])
    )


def _entry(value: Any, kind: type[Entry], key: str) -> Entry:
    if isinstance(value, kind):
        return value
    if not isinstance(value, str | Mapping):
        raise UserError(f"{value!r}: expected a name, or a table with the setting {key!r}")
    table: dict[str, Any] = {key: value} if isinstance(value, str) else dict(value)
    with naming(str(value)):
        specs.require_known("setting", table, [field.name for field in dataclasses.fields(kind)])
    if key not in table:
        raise UserError(f"{value}: expected the setting {key!r} in it")
    check_settings(table)
    return kind(**table)


def check_settings(table: Mapping[str, Any], own: Mapping[str, str] = OWN_ARGUMENTS) -> None:
    """Rejects `settings` of training that are not a table, or that have an argument in `own`."""
    settings = table.get("settings", {})
    if not isinstance(settings, Mapping):
        raise UserError(f"settings is {settings!r}; expected a table of settings")
    for name in settings:
        if name in own:
            raise UserError(f"settings has {name!r}, which has its own argument: see {own[name]}")


def folder_name(label: str) -> str:
    """A label as a file name."""
    return re.sub(r"[^A-Za-z0-9_.=]+", "-", label).strip("-.") or "-"


def _label(rule: str) -> str:
    file, ending, settings = rule.rpartition(".npz")
    if not ending:
        return rule
    path = Path(file)
    return f"{path.parent.name}/{path.name}{settings}".lstrip("/")


def read_rates(rates: Sequence[float]) -> tuple[float, ...]:
    """Learning rates, checked."""
    if not isinstance(rates, list | tuple):
        refuse("learning_rates", rates, "a list of numbers")
    checked = tuple(number("learning_rates", rate, above=0) for rate in rates)
    if len(set(checked)) < len(checked):
        refuse("learning_rates", checked, "different numbers")
    return checked
