"""Scales that make returns of different environments comparable."""

import dataclasses
from typing import Any

from discorl import envs
from discorl.comparison.config import ComparisonConfig
from discorl.comparison.entries import EnvironmentEntry
from discorl.envs import Reference, families, references, suites
from discorl.types import UserError, imports, specs


@dataclasses.dataclass(frozen=True)
class Scale:
    """The returns that define scores of 0 and 1."""

    random: float
    optimal: float
    known: bool = True  # False: there are no such returns, and scores are returns

    def score(self, value: Any) -> Any:
        """Normalises returns, numbers or arrays."""
        return Reference(self.random, self.optimal).score(value)


AS_THEY_ARE = Scale(0.0, 1.0, known=False)


class UnavailableError(UserError):
    """An environment that cannot be made here."""


def find(config: ComparisonConfig) -> tuple[dict[str, Scale], dict[str, str]]:
    """Scales by label of environment, and reasons why environments are unavailable."""
    for entry in config.environments:
        _check_name(entry.env)
    scales, unavailable = {}, {}
    for entry in config.environments:
        try:
            scales[entry.label] = scale_of(entry, alone=len(config.environments) == 1)
        except UnavailableError as error:
            unavailable[entry.label] = str(error)
    if not scales:
        raise UserError(next(iter(unavailable.values())))
    return scales, unavailable


def scale_of(entry: EnvironmentEntry, *, alone: bool) -> Scale:
    """The scale of an environment; a single environment, `alone`, needs none."""
    if entry.random is not None and entry.optimal is not None:
        return Scale(entry.random, entry.optimal)
    try:
        environment = envs.make(entry.env)
    except UserError as error:
        raise UnavailableError(str(error)) from error
    reference = references.of(environment)
    if reference is not None:
        return Scale(float(reference.random), float(reference.optimal))
    if alone:
        return AS_THEY_ARE
    raise UserError(
        f"environment {entry.env!r} has no reference returns to normalise scores by: "
        f'write it in a TOML file as {{ env = "{entry.env}", random = ..., optimal = ... }}'
    )


def _check_name(text: str) -> None:
    """Raises a `UserError` for a name that no suite has, installed or not."""
    spec = specs.parse(text)
    suite = envs.SUITES.get(spec.name)
    if suite is None:
        if spec.name in families.REGISTRY:
            families.refuse_ranges_of_sizes(spec)
        elif spec.name not in envs.REGISTRY and not imports.found(spec):
            envs.make(text)  # raises an error that lists the known names
    elif spec.item is not None and not suite.missing():
        suites.check_item(suite.name, spec.item, suite.names())
