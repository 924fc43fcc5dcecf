"""A user's own environment by name: `package.module:factory`."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
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

    What the factory makes may be Gymnasium's. `bins` and `workers` are then for
    `discorl.envs.host.gymnasium.from_gymnasium`, unless the factory has parameters called so.

    Raises:
        UserError: there is no such factory, it failed, or it returned something else than an
            environment.
    """
    text = f"{spec.name}:{spec.item}"
    factory = _factory(spec)
    accepted = inspect.signature(factory).parameters
    ours = {k: v for k, v in spec.parameters.items() if k in _OURS and k not in accepted}
    theirs = {k: v for k, v in spec.parameters.items() if k not in ours}
    environment = _call(factory, text, theirs)
    if _is_gymnasium(environment):
        environment.close()
        takes_mode = "render_mode" in accepted and "render_mode" not in theirs
        drawn = theirs | ({"render_mode": "rgb_array"} if takes_mode else {})

        def create(render: bool) -> Any:
            return _call(factory, text, drawn if render else theirs)

        return _from_gymnasium(create, text, ours)
    if ours:  # to be refused by a factory that does not know them, or taken with any others
        environment = _call(factory, text, spec.parameters)
    if isinstance(environment, Environment | HostEnvironment):
        return environment
    kind = type(environment)
    raise UserError(
        f"{text} returned a {kind.__module__}.{kind.__qualname__}; expected a discorl.Environment, "
        "a discorl.envs.HostEnvironment or a gymnasium.Env"
    )


_OURS = ("bins", "workers")


def _factory(spec: specs.Spec) -> Callable[..., Any]:
    try:
        module = importlib.import_module(spec.name)
    except Exception as error:  # whatever there is in it
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{spec.name} cannot be imported: it raised {reason}") from error
    factory = getattr(module, str(spec.item), None)
    if not callable(factory):
        public = [name for name, value in vars(module).items() if callable(value)]
        known = specs.nearest(str(spec.item), [name for name in public if not name.startswith("_")])
        raise UserError(f"{spec.name} has no function or class {spec.item!r}; {known}")
    return factory


def _call(factory: Callable[..., Any], text: str, parameters: dict[str, specs.Value]) -> Any:
    try:
        return specs.build(factory, specs.Spec(text, None, parameters))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{text} raised {type(error).__name__}: {error}") from error


def _from_gymnasium(
    create: Callable[[bool], Any], text: str, parameters: dict[str, specs.Value]
) -> HostEnvironment:
    from discorl.envs.host.gymnasium import from_gymnasium  # which imports Gymnasium

    def adapt(*, bins: int | None = None, workers: int = 0) -> HostEnvironment:
        return from_gymnasium(create, name=text, bins=bins, workers=workers)

    return specs.build(adapt, specs.Spec(text, None, parameters))


def _is_gymnasium(environment: Any) -> bool:
    # Whoever holds one has imported the package; nobody else needs it.
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(environment, gymnasium.Env)
