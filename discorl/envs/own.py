"""A user's own environment by name: `package.module:factory`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from discorl import specs
from discorl.envs.base import Environment
from discorl.envs.host.base import HostEnvironment
from discorl.types import UserError


def found(spec: specs.Spec) -> bool:
    """Whether a text reads like `package.module:factory` and there is such a module."""
    parts = spec.name.split(".")
    if spec.item is None or not all(part.isidentifier() for part in [*parts, spec.item]):
        return False
    _look_here()
    try:
        return importlib.util.find_spec(spec.name) is not None
    except ModuleNotFoundError:  # a package above the module is missing
        return False


def _look_here() -> None:
    """Lets modules in the current folder be found, as `python -m` does and a script does not."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def make(spec: specs.Spec) -> Any:
    """Imports the module and calls the factory, a function or a class, with the parameters.

    Raises:
        UserError: there is no such factory, or it returned something else than an environment.
    """
    text = f"{spec.name}:{spec.item}"
    module = importlib.import_module(spec.name)
    factory = getattr(module, str(spec.item), None)
    if not callable(factory):
        public = [name for name, value in vars(module).items() if callable(value)]
        known = specs.nearest(str(spec.item), [name for name in public if not name.startswith("_")])
        raise UserError(f"{spec.name} has no function or class {spec.item!r}; {known}")
    asked = specs.Spec(text, None, spec.parameters)
    environment = specs.build(factory, asked)
    if isinstance(environment, Environment | HostEnvironment):
        return environment
    if _is_gymnasium(environment):
        from discorl.envs.host.gymnasium import from_gymnasium  # which imports Gymnasium

        environment.close()
        return from_gymnasium(lambda render: specs.build(factory, asked), name=text)
    kind = type(environment)
    raise UserError(
        f"{text} returned a {kind.__module__}.{kind.__qualname__}; expected a discorl.Environment, "
        "a discorl.envs.HostEnvironment or a gymnasium.Env"
    )


def _is_gymnasium(environment: Any) -> bool:
    # Whoever holds one has imported the package; nobody else needs it.
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(environment, gymnasium.Env)
