"""A user's own environment by name: `package.module:factory`."""

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from discorl.envs.base import Environment
from discorl.envs.host.base import HostEnvironment
from discorl.types import UserError, specs

ANYTHING = (Exception, SystemExit)  # that there may be in somebody's module
_MOST_SHOWN = 10


def found(spec: specs.Spec) -> bool:
    """Whether a text reads like `package.module:factory` and there is such a module.

    Raises:
        UserError: a package above the module cannot be imported.
    """
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


def not_imported(module: str, error: BaseException) -> UserError:
    """What is wrong with a module that raised."""
    advice = ""
    if isinstance(error, SystemExit):
        advice = '; what only a script should do belongs under `if __name__ == "__main__":`'
    reason = f"{type(error).__name__}: {error}"
    return UserError(f"{module} cannot be imported: it raised {reason}{advice}")


def look_here() -> None:
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
    try:
        accepted = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        raise UserError(f"{text} is no function or class written in Python: {error}") from error
    ours = {k: v for k, v in spec.parameters.items() if k in _OURS and k not in accepted}
    theirs = {k: v for k, v in spec.parameters.items() if k not in ours}
    environment = _call(factory, text, theirs)
    if _is_gymnasium(environment):
        from discorl.envs.host.gymnasium import close_unused  # which imports Gymnasium

        close_unused(environment)
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
    except ANYTHING as error:
        raise not_imported(spec.name, error) from error
    item = str(spec.item)
    factory = getattr(module, item, None)
    if not callable(factory):
        raise UserError(f"{spec.name} has no function or class {item!r}; {_known(module, item)}")
    return factory


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


def _call(factory: Callable[..., Any], text: str, parameters: dict[str, specs.Value]) -> Any:
    try:
        return specs.build(factory, specs.Spec(text, None, parameters))
    except UserError:
        raise
    except ANYTHING as error:
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
