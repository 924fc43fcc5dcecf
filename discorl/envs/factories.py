"""Users' environments by the import path of a factory: `package.module:factory`."""

import inspect
import sys
from typing import Any

from discorl.envs.base import Environment, GymnaxLike
from discorl.envs.host.base import HostEnvironment
from discorl.types import UserError, imports, specs


def make(spec: specs.Spec) -> Environment | HostEnvironment:
    """Imports the factory, a function or a class, and calls it with the parameters.

    The result may be a Gymnasium environment. `bins` and `workers` are then passed to
    `discorl.envs.host.gymnasium.from_gymnasium`, unless the factory has parameters of that name.
    """
    text = f"{spec.name}:{spec.item}"
    factory = imports.load(spec)
    try:
        accepted = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        raise UserError(f"{text} is not a function or class written in Python: {error}") from error
    ours = {
        k: v for k, v in spec.parameters.items() if k in ("bins", "workers") and k not in accepted
    }
    theirs = {k: v for k, v in spec.parameters.items() if k not in ours}
    environment = imports.call(factory, text, theirs)
    gymnasium = sys.modules.get("gymnasium")  # imported, if there is such an environment
    if gymnasium is not None and isinstance(environment, gymnasium.Env):
        from discorl.envs.host.gymnasium import close_unused, from_gymnasium

        close_unused(environment)
        takes_mode = "render_mode" in accepted and "render_mode" not in theirs
        drawn = theirs | ({"render_mode": "rgb_array"} if takes_mode else {})

        def create(render: bool) -> Any:
            return imports.call(factory, text, drawn if render else theirs)

        def adapt(*, bins: int | None = None, workers: int = 0) -> HostEnvironment:
            return from_gymnasium(create, name=text, bins=bins, workers=workers)

        return specs.build(adapt, specs.Spec(text, None, ours))
    if ours:  # the factory rejects them, or takes them as **parameters
        environment = imports.call(factory, text, spec.parameters)
    if isinstance(environment, Environment | HostEnvironment):
        return environment
    if isinstance(environment, GymnaxLike):
        from discorl.envs.native import gymnax  # imports gymnax

        return gymnax.adapt(environment, item=text)
    kind = type(environment)
    raise UserError(
        f"{text} returned a {kind.__module__}.{kind.__qualname__}; expected a discorl.Environment, "
        "a discorl.envs.HostEnvironment, a gymnasium.Env or an object with gymnax's interface"
    )
