"""What is to be compared: rules, environments, the budget; from Python, TOML or a named suite."""

import dataclasses
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from discorl import rules, specs
from discorl.config import Config, configure
from discorl.types import UserError

Tuning = Literal["suite", "environment"]


@dataclasses.dataclass(frozen=True)
class RuleEntry:
    """A rule to compare."""

    rule: str
    """Name of the rule, with settings if wished, or its npz file."""
    label: str = ""
    """What to call it; by default its name, or the folder and name of its file."""
    learning_rates: tuple[float, ...] = ()
    """Learning rates to choose from; by default the comparison's."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Settings of training for this rule only."""
    optional: bool = False
    """Whether to leave it out where its file is not found; `about` then says so."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or _label(self.rule))
        object.__setattr__(self, "learning_rates", _rates(self.learning_rates))


@dataclasses.dataclass(frozen=True)
class EnvironmentEntry:
    """An environment to compare on, and the two ends of its scale."""

    env: str
    """Name of the environment, with parameters if wished."""
    label: str = ""
    """What to call it; by default its name."""
    random: float | None = None
    """Return per episode that makes a score of 0; by default the environment's own reference."""
    optimal: float | None = None
    """Return per episode that makes a score of 1; likewise."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Settings of training in this environment only."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.env)
        ends = {self.random, self.optimal}
        numbers = len(ends) == 2 and all(isinstance(end, int | float) for end in ends)
        if not numbers and ends != {None}:
            raise UserError(
                f"environment {self.env!r} has random {self.random} and optimal {self.optimal}; "
                "expected two different numbers, or neither"
            )


@dataclasses.dataclass(frozen=True)
class ComparisonConfig:
    """Settings of a comparison; its results are a function of them."""

    rules: tuple[RuleEntry, ...]
    """The rules."""
    environments: tuple[EnvironmentEntry, ...]
    """The environments."""
    steps: int = 50_000
    """Environment steps that every agent may take; its rule's recipe makes updates of them."""
    seeds: int = 5
    """Agents that each rule trains in each environment."""
    seed: int = 0
    """Seed of the first of them."""
    seeds_at_once: int = 0
    """How many of them train together in one program; 0 for all."""
    learning_rates: tuple[float, ...] = ()
    """Learning rates that each rule chooses from; one is taken as it is, none is the recipe's."""
    tune: Tuning = "suite"
    """Whether a rule has one learning rate for the whole suite, or one for each environment."""
    sweep_seeds: int = 2
    """Agents that each learning rate is tried with."""
    sweep_seed: int = 1_000_000
    """Seed of the first of them, apart from those that are compared."""
    keep_checkpoints: bool = False
    """Whether to keep the trained agents; they take most of the room."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Settings of training for all, such as the size of the network."""
    name: str = "comparison"
    """What to call the comparison."""
    about: str = ""
    """What it is for."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rates", _rates(self.learning_rates))
        for name in ("rules", "environments"):
            entries = getattr(self, name)
            if not entries:
                raise UserError(f"no {name} to compare; give {name}")
            folders = [folder_name(entry.label) for entry in entries]
            for entry, folder in zip(entries, folders, strict=True):
                if folders.count(folder) > 1:
                    raise UserError(
                        f"{name}: {entry.label!r} is there twice; give it another label"
                    )
        counts = dict.fromkeys(("steps", "seeds", "sweep_seeds"), 1)
        counts |= dict.fromkeys(("seed", "sweep_seed", "seeds_at_once"), 0)
        for name, least in counts.items():
            value = getattr(self, name)
            if not isinstance(value, int):
                raise UserError(f"{name} is {value!r}; expected a whole number")
            if value < least:
                raise UserError(f"{name} is {value}; expected at least {least}")
        if self.tune not in get_args(Tuning):
            raise UserError(f"tune is {self.tune!r}; expected one of {', '.join(get_args(Tuning))}")
        apart = self.sweep_seed >= self.seed + self.seeds
        if not apart and self.sweep_seed + self.sweep_seeds > self.seed:
            raise UserError(
                f"sweep_seed is {self.sweep_seed}; expected seeds apart from those compared, "
                f"{self.seed} to {self.seed + self.seeds - 1}"
            )

    def rates(self, rule: RuleEntry) -> tuple[float, ...]:
        """The learning rates that a rule chooses from; empty for its recipe's own."""
        return rule.learning_rates or self.learning_rates

    def training(
        self, rule: RuleEntry, environment: EnvironmentEntry, learning_rate: float | None = None
    ) -> Config:
        """Settings of an agent, with as many updates as the steps allow."""
        settings = {**self.settings, **environment.settings, **rule.settings}
        if learning_rate is not None:
            settings["learning_rate"] = learning_rate
        config = configure(rule=rule.rule, env=environment.env, **settings)
        updates = math.ceil(self.steps / (config.environments * config.unroll))
        return dataclasses.replace(config, updates=updates)

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON can hold them; `read` reads them back."""
        return dataclasses.asdict(self)


def suites() -> list[str]:
    """Names of the suites in this package."""
    return sorted(
        Path(file.name).stem for file in _folder().iterdir() if file.name.endswith(".toml")
    )


def configure_comparison(
    suite: str | os.PathLike[str] | None = None, **settings: Any
) -> ComparisonConfig:
    """Puts the settings of a comparison together.

    Args:
        suite: name of a suite, or a TOML file; the settings given override its own.
        **settings: fields of `ComparisonConfig`; None stands for not given. Rules and environments
            may be texts or tables with the fields of `RuleEntry` and `EnvironmentEntry`.

    Raises:
        UserError: a name or a value is not accepted.
    """
    base = {} if suite is None else _load(suite)
    given = {name: value for name, value in settings.items() if value is not None}
    config = _without_missing(read(base | given))
    _check(config)
    return config


def _without_missing(config: ComparisonConfig) -> ComparisonConfig:
    """Leaves out the rules that may be missing, and are."""
    kept, about = [], [config.about] if config.about else []
    for rule in config.rules:
        try:
            if rule.optional:
                rules.find(rule.rule, _rules_path(rule, config))
            kept.append(rule)
        except UserError:
            about.append(f"{rule.label} is left out: its file is not on this machine.")
    return dataclasses.replace(config, rules=tuple(kept), about=" ".join(about))


def _rules_path(rule: RuleEntry, config: ComparisonConfig) -> str | None:
    return rule.settings.get("rules_path", config.settings.get("rules_path"))


def read(values: Mapping[str, Any]) -> ComparisonConfig:
    """Settings from a table as TOML and JSON have it; rules are not looked for yet."""
    fields = {field.name for field in dataclasses.fields(ComparisonConfig)}
    for name in values:
        if name not in fields:
            raise UserError(f"no setting {name!r}; {specs.nearest(name, fields)}")
    _check_settings(values)
    values = dict(values)
    values["rules"] = _entries(values.get("rules", ()), RuleEntry, "rule")
    values["environments"] = _entries(values.get("environments", ()), EnvironmentEntry, "env")
    return ComparisonConfig(**values)


def _check(config: ComparisonConfig) -> None:
    """Raises a `UserError` now for what would else be found cell by cell."""
    for rule in config.rules:
        if rules.find(rule.rule, _rules_path(rule, config)) is None:
            rules.load(rule.rule)
        for environment in config.environments:
            for rate in config.rates(rule) or (None,):
                try:
                    config.training(rule, environment, rate)
                except TypeError as error:  # a text for a number, one number for several
                    raise UserError(
                        f"settings of {rule.label!r} in {environment.label!r}: {error}"
                    ) from error


def _entries(entries: Sequence[Any], kind: type, key: str) -> tuple[Any, ...]:
    names = [field.name for field in dataclasses.fields(kind)]
    found = []
    for entry in [entries] if isinstance(entries, str) else entries:
        if isinstance(entry, kind):
            found.append(entry)
            continue
        if not isinstance(entry, str | Mapping):
            raise UserError(f"{entry!r}: expected a name, or a table with the setting {key!r}")
        table = {key: entry} if isinstance(entry, str) else dict(entry)
        for name in table:
            if name not in names:
                raise UserError(f"{entry}: no setting {name!r}; {specs.nearest(name, names)}")
        if key not in table:
            raise UserError(f"{entry}: expected the setting {key!r} in it")
        _check_settings(table)
        found.append(kind(**table))
    return tuple(found)


def _check_settings(table: Mapping[str, Any]) -> None:
    settings = table.get("settings", {})
    if not isinstance(settings, Mapping):
        raise UserError(f"settings is {settings!r}; expected a table of settings")


def _load(suite: str | os.PathLike[str], extending: tuple[str, ...] = ()) -> dict[str, Any]:
    """The table of a suite; `extends` names another one that it starts from.

    Args:
        suite: its name or file.
        extending: the files that led to it.
    """
    text = os.fspath(suite)
    if text.endswith(".toml"):
        try:
            content = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"{text}: cannot be read: {error.strerror}") from error
    else:
        known = suites()
        if text not in known:
            raise UserError(
                f"no suite {text!r}; {specs.nearest(text, known)}; or give a file ending in .toml"
            )
        content = (_folder() / f"{text}.toml").read_text(encoding="utf-8")
    try:
        table = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{text}: is not TOML: {error}") from error
    base = _load(*_extended(text, table.pop("extends"), extending)) if "extends" in table else {}
    return base | {"name": Path(text).stem} | table


def _extended(text: str, extends: Any, extending: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """What a suite starts from, a file being looked for beside it, and the files so far."""
    if not isinstance(extends, str):
        raise UserError(f"{text}: extends is {extends!r}; expected a suite's name or a TOML file")
    base = str(Path(text).parent / extends) if extends.endswith(".toml") else extends
    chain = (*extending, os.path.realpath(text))
    if os.path.realpath(base) in chain:
        raise UserError(f"{text}: extends {extends!r}, which extends this file in turn")
    return base, chain


def _folder() -> Any:
    return resources.files("discorl.comparison") / "suites"


def folder_name(label: str) -> str:
    """A label as the name of a file or folder."""
    return re.sub(r"[^A-Za-z0-9_.=]+", "-", label).strip("-.") or "-"


def _label(rule: str) -> str:
    file, ending, settings = rule.rpartition(".npz")
    if not ending:
        return rule
    path = Path(file)
    return f"{path.parent.name}/{path.name}{settings}".lstrip("/")


def _rates(rates: Sequence[float]) -> tuple[float, ...]:
    try:
        rates = tuple(float(rate) for rate in rates)
    except (TypeError, ValueError) as error:
        raise UserError(f"learning_rates is {rates!r}; expected a list of numbers") from error
    for rate in rates:
        if not (math.isfinite(rate) and rate > 0) or rates.count(rate) > 1:
            raise UserError(f"learning_rates are {rates}; expected different positive numbers")
    return rates
