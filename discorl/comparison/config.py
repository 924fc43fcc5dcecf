"""The settings of a comparison: rules, environments and budget; from Python, TOML or a suite."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

from discorl import rules
from discorl.comparison import suite_files
from discorl.comparison.entries import (
    EnvironmentEntry,
    RuleEntry,
    check_settings,
    folder_name,
    read_entries,
    read_rates,
)
from discorl.comparison.search import Search
from discorl.training.config import TrainConfig, configure, with_steps
from discorl.types import UserError, specs
from discorl.types.validation import MOST_SEED, Fields, bounded, refuse

Tuning = Literal["suite", "environment"]


@dataclasses.dataclass(frozen=True)
class ComparisonConfig:
    """Settings of a comparison; its results are a function of them."""

    rules: tuple[RuleEntry, ...]
    """The rules."""
    environments: tuple[EnvironmentEntry, ...]
    """The environments."""
    steps: int = bounded(50_000, least=1)
    """Environment steps of every agent; its rule's recipe determines the number of updates."""
    seeds: int = bounded(5, least=1)
    """Agents per rule and environment."""
    seed: int = bounded(0, least=0, most=MOST_SEED)
    """Seed of the first agent."""
    seeds_at_once: int = bounded(0, least=0)
    """Agents that train together in one program; 0: all."""
    learning_rates: tuple[float, ...] = ()
    """Candidate learning rates of each rule. A single one needs no sweep; without any, the recipe's
    is used."""
    tune: Tuning = "suite"
    """Whether a rule has one learning rate for the whole suite, or one for each environment."""
    sweep_seeds: int = bounded(2, least=1)
    """Agents per candidate learning rate."""
    sweep_seed: int = bounded(1_000_000, least=0, most=MOST_SEED)
    """Seed of the first agent of the sweep; its seeds must differ from those compared."""
    keep_checkpoints: bool = False
    """Whether to keep the trained agents, which take most of the disk space."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Training settings of all agents, such as the size of the network."""
    over: tuple[str, ...] = ()
    """Settings that vary between the rules, if this is a sweep; see `configure_sweep`."""
    search: Search | None = None
    """The search of an adaptive sweep, which proposes trials from the scores of earlier ones."""
    name: str = "comparison"
    """Name of the comparison."""
    about: str = ""
    """Purpose of the comparison."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rates", read_rates(self.learning_rates))
        object.__setattr__(self, "over", tuple(self.over))
        for name in ("rules", "environments"):
            entries = getattr(self, name)
            if not entries:
                raise UserError(f"no {name} to compare; name some, or a suite such as 'laptop'")
            folders = [folder_name(entry.label) for entry in entries]
            for entry, folder in zip(entries, folders, strict=True):
                if folders.count(folder) > 1:
                    raise UserError(f"{name}: {entry.label!r} appears twice; give it another label")
        Fields(self).declared()
        if self.search is not None and self.learning_rates:
            refuse("learning_rates", self.learning_rates, "none with method 'tpe', see over")
        for rule in self.rules:
            if rule.seeds is not None and rule.seeds > self.seeds:
                raise UserError(
                    f"{rule.label}: seeds is {rule.seeds}; expected at most those of the "
                    f"comparison, {self.seeds}"
                )
        apart = self.sweep_seed >= self.seed + self.seeds
        if not apart and self.sweep_seed + self.sweep_seeds > self.seed:
            raise UserError(
                f"sweep_seed is {self.sweep_seed}; expected seeds apart from those compared, "
                f"{self.seed} to {self.seed + self.seeds - 1}"
            )

    def rates(self, rule: RuleEntry) -> tuple[float, ...]:
        """The candidate learning rates of a rule; empty: its recipe's."""
        return rule.learning_rates or self.learning_rates

    def seeds_of(self, rule: RuleEntry) -> int:
        """Agents that a rule trains in each environment."""
        return self.seeds if rule.seeds is None else rule.seeds

    @property
    def runs_text(self) -> str:
        """The number of agents, and that of rules with fewer."""
        fewer = [f"{r.seeds} of {r.label}" for r in self.rules if self.seeds_of(r) < self.seeds]
        return f"{self.seeds}" + (f" ({', '.join(fewer)})" if fewer else "")

    def rules_path(self, rule: RuleEntry) -> str | None:
        """The folder or file to look for a rule in first."""
        return rule.settings.get("rules_path", self.settings.get("rules_path"))

    def training(
        self, rule: RuleEntry, environment: EnvironmentEntry, learning_rate: float | None = None
    ) -> TrainConfig:
        """Training settings of an agent, with the number of updates that `steps` determines."""
        settings = {**self.settings, **environment.settings, **rule.settings}
        if learning_rate is not None:
            settings["learning_rate"] = learning_rate
        config = configure(rule=rule.rule, env=environment.env, **settings)
        return with_steps(config, self.steps)

    def as_dict(self) -> dict[str, Any]:
        """The settings for JSON; `read` reads them back."""
        return dataclasses.asdict(self)


def configure_comparison(
    suite: str | os.PathLike[str] | None = None, **settings: Any
) -> ComparisonConfig:
    """Merges the settings of a comparison.

    Args:
        suite: name of a suite, or a TOML file; the settings given override its own.
        **settings: fields of `ComparisonConfig`, or `more_rules` to add to the suite's; None means
            not given. Rules and environments may be texts, or tables with the fields of `RuleEntry`
            and `EnvironmentEntry`; a text may name an entry of the suite.

    Raises:
        UserError: a name or a value is invalid.
    """
    base = {} if suite is None else suite_files.load(suite)
    given = {name: value for name, value in settings.items() if value is not None}
    config = _without_missing(read(suite_files.on_top(base, given)))
    _check(config)
    return config


def _without_missing(config: ComparisonConfig) -> ComparisonConfig:
    """Drops optional rules that are missing."""
    kept, about = [], [config.about] if config.about else []
    for rule in config.rules:
        known = rules.library.available(config.rules_path(rule)) if rule.optional else []
        if any(entry.name == rule.rule and entry.path is None for entry in known):
            about.append(f"{rule.label} is left out: it has not been fetched.")
        else:
            kept.append(rule)
    return dataclasses.replace(config, rules=tuple(kept), about=" ".join(about))


def read(values: Mapping[str, Any]) -> ComparisonConfig:
    """Settings from a TOML or JSON table; rules are not looked up."""
    fields = [field.name for field in dataclasses.fields(ComparisonConfig)]
    specs.require_known("setting", values, fields)
    check_settings(values)
    values = dict(values)
    values["rules"] = read_entries(values.get("rules", ()), RuleEntry)
    values["environments"] = read_entries(values.get("environments", ()), EnvironmentEntry)
    if values.get("search") is not None and not isinstance(values["search"], Search):
        values["search"] = Search.read(values["search"])
    return ComparisonConfig(**values)


def _check(config: ComparisonConfig) -> None:
    """Raises `UserError`s early that would otherwise appear cell by cell."""
    for rule in config.rules:
        if rules.find(rule.rule, config.rules_path(rule)) is None:
            rules.load(rule.rule)
        for environment in config.environments:
            for rate in config.rates(rule) or (None,):
                try:
                    config.training(rule, environment, rate)
                except UserError as error:
                    raise UserError(
                        f"settings of {rule.label!r} in {environment.label!r}: {error}"
                    ) from error
