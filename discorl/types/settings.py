"""Settings in nested frozen dataclasses, by flat names.

The names of settings are unique across the parts of a configuration, so a setting needs no path:
`replace(config, learning_rate=1e-3)` finds `config.agent.optimiser.learning_rate`. Names may also
be nested, as in TOML and JSON files: `{"agent": {"optimiser": {...}}}`.

A configuration may list other libraries' names for its settings in a class variable `other_names`.
They are rejected with a message that suggests ours.
"""

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from discorl.types import UserError, specs

Config = TypeVar("Config")


@functools.cache
def parts(kind: type) -> dict[str, type]:
    """The fields of a configuration that are configurations themselves."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: hints[name] for name in names if dataclasses.is_dataclass(hints[name])}


@functools.cache
def names(kind: type) -> tuple[str, ...]:
    """The names of all settings of a configuration and of its parts."""
    found: list[str] = []
    for field in dataclasses.fields(kind):
        part = parts(kind).get(field.name)
        found += [field.name] if part is None else names(part)
    assert len(set(found)) == len(found), f"settings of {kind.__name__} share a name"
    return tuple(found)


def other_names(kind: type) -> dict[str, str]:
    """Other libraries' names for settings, mapped to ours."""
    found = dict(getattr(kind, "other_names", {}))
    for part in parts(kind).values():
        found |= other_names(part)
    return found


def flatten(kind: type, values: Any, where: str = "") -> dict[str, Any]:
    """Settings of a configuration by flat names, from an instance or a mapping.

    The names in a mapping may be flat, nested, or both. Messages begin with `where`.
    """
    if isinstance(values, kind):
        values = {f.name: getattr(values, f.name) for f in dataclasses.fields(kind)}
    if not isinstance(values, Mapping):
        raise UserError(f"{where}got {values!r}; expected a table of settings")
    flat: dict[str, Any] = {}
    for name, value in values.items():
        part = parts(kind).get(name)
        if part is None:
            require_known(kind, name, where)
            # Files have lists where configurations have tuples.
            inner = {name: tuple(value) if isinstance(value, list) else value}
        else:
            inner = flatten(part, value, f"{where}{name}: ")
        for key in inner:
            if key in flat:
                raise UserError(f"{where}{key} is given twice; expected it once")
        flat |= inner
    return flat


def require_known(kind: type, name: str, where: str = "") -> None:
    """Rejects an unknown setting; the message suggests the nearest one."""
    if name in names(kind):
        return
    ours = other_names(kind).get(name)
    if ours is not None:
        raise UserError(f"{where}no setting {name!r}; did you mean {ours!r}?")
    raise UserError(f"{where}no setting {name!r}; {specs.nearest(name, names(kind))}")


def build(kind: type[Config], values: Mapping[str, Any], where: str = "") -> Config:
    """Makes a configuration from flat or nested settings; others keep their defaults."""
    return replace(kind(), **flatten(kind, values, where))


def replace(config: Config, **flat: Any) -> Config:
    """Changes some settings of a configuration, by flat names."""
    kind: type = type(config)
    for name in flat:
        require_known(kind, name)
    own = {field.name for field in dataclasses.fields(kind)}
    changes = {name: value for name, value in flat.items() if name in own}
    for name, part in parts(kind).items():
        inner = {key: value for key, value in flat.items() if key in names(part)}
        if inner:
            changes[name] = replace(getattr(config, name), **inner)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]
