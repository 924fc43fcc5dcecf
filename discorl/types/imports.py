"""Objects that discorl does not ship: `package.module:name`, and entry points of packages.

Whatever a user's module raises becomes a `UserError` that names it.
"""

import dataclasses
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from discorl.types import specs
from discorl.types.errors import UserError

ANYTHING = (Exception, SystemExit, GeneratorExit)  # that a user's code may raise
_MOST_SHOWN = 10


# --- package.module:name --------------------------------------------------------------------------


def found(spec: specs.Spec) -> bool:
    """Whether a text reads like `package.module:name` and there is such a module."""
    parts = spec.name.split(".")
    if spec.item is None or not all(part.isidentifier() for part in [*parts, spec.item]):
        return False
    look_here()
    try:
        return importlib.util.find_spec(spec.name) is not None
    except ValueError:  # it is loaded, and not from a file: `__main__`
        return True
    except ANYTHING as error:
        above = [".".join(parts[: i + 1]) for i in range(len(parts))]
        if isinstance(error, ModuleNotFoundError) and error.name in above:
            return False
        raise not_imported(spec.name, error) from error


def load(spec: specs.Spec) -> Callable[..., Any]:
    """Imports the module of `package.module:name` and returns its function or class."""
    try:
        module = importlib.import_module(spec.name)
    except ANYTHING as error:
        raise not_imported(spec.name, error) from error
    item = str(spec.item)
    factory = getattr(module, item, None)
    if not callable(factory):
        raise UserError(f"{spec.name} has no function or class {item!r}; {_known(module, item)}")
    return factory


def call(factory: Callable[..., Any], text: str, parameters: dict[str, specs.Value]) -> Any:
    """Calls a user's function or class, `text` in messages, with parameters that a user wrote."""
    try:
        return specs.build(factory, specs.Spec(text, None, parameters))
    except UserError:
        raise
    except ANYTHING as error:
        raise UserError(f"{text} raised {type(error).__name__}: {error}") from error


def not_imported(module: str, error: BaseException) -> UserError:
    """The error for a module that raised."""
    advice = ""
    if isinstance(error, SystemExit):
        advice = '; what only a script should do belongs under `if __name__ == "__main__":`'
    reason = f"{type(error).__name__}: {error}"
    return UserError(f"{module} cannot be imported: it raised {reason}{advice}")


def no_module(kind: str, text: str, spec: specs.Spec) -> UserError | None:
    """The error for a text that reads like `package.module:name`; None for any other text."""
    if "." not in spec.name or spec.item is None:
        return None
    return UserError(
        f"no {kind} {text!r}: there is no module {spec.name!r}, neither installed nor in the "
        "current folder"
    )


def look_here() -> None:
    """Lets modules in the current folder be found, as `python -m` does and a script does not."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def _known(module: ModuleType, item: str) -> str:
    """The module's own functions and classes, those first that read most like an item."""
    package = module.__name__.partition(".")[0]
    names = [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and str(getattr(value, "__module__", "")).partition(".")[0] == package
    ]
    shown = difflib.get_close_matches(item, names, n=_MOST_SHOWN, cutoff=0)
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return specs.nearest(item, shown) + more


# --- entry points ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Plugin:
    """What an installed package offers under a name; nothing is imported until `load`."""

    name: str
    package: str  # the distribution that offers it
    licence: str  # of that distribution; empty if it does not say
    entry: metadata.EntryPoint

    def load(self) -> Any:
        try:
            return self.entry.load()
        except ANYTHING as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"{self.name!r} of the package {self.package} cannot be loaded from "
                f"{self.entry.value}: it raised {reason}"
            ) from error


def plugins(group: str) -> dict[str, Plugin]:
    """What installed packages offer in a group of entry points, by name.

    If two packages offer the same name, the alphabetically first package wins.
    """
    offered = [_plugin(entry) for entry in metadata.entry_points(group=group)]
    ordered = sorted(offered, key=lambda plugin: plugin.package, reverse=True)
    by_name = {plugin.name: plugin for plugin in ordered}
    return {name: by_name[name] for name in sorted(by_name)}


def _plugin(entry: metadata.EntryPoint) -> Plugin:
    package, licence = "", ""
    if entry.dist is not None:
        about = entry.dist.metadata
        package = about["Name"]
        names = ("License-Expression", "License")
        licence = next((about[name] for name in names if name in about), "")
    return Plugin(entry.name, package, licence, entry)
