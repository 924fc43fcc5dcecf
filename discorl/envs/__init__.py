"""Environments, by name or as objects.

A name is one of the built-in environments, an item of a suite from another package
(`gymnax:Breakout-MinAtar` or `Breakout-MinAtar`; see `discorl.envs.suites`), or the user's own
environment (`package.module:factory`, see `discorl.envs.factories`).
"""

from collections.abc import Callable

from discorl.envs import suites
from discorl.envs.base import Environment, GymnaxLike, Reference, Step
from discorl.envs.catch import Catch
from discorl.envs.families import REGISTRY as FAMILIES
from discorl.envs.families import MemberConstructor, refuse_ranges_of_sizes
from discorl.envs.host.base import HostEnvironment
from discorl.envs.suites import SUITES, UNAVAILABLE, Kind, canonical
from discorl.types import UserError, imports, specs

__all__ = [
    "REGISTRY",
    "SUITES",
    "UNAVAILABLE",
    "Catch",
    "Environment",
    "GymnaxLike",
    "HostEnvironment",
    "Reference",
    "Step",
    "canonical",
    "kind_of",
    "make",
    "name_of",
]

REGISTRY: dict[str, Callable[..., Environment]] = {"catch": Catch}
REGISTRY |= {name: MemberConstructor(family) for name, family in FAMILIES.items()}


def make(
    environment: str | Environment | HostEnvironment | GymnaxLike,
) -> Environment | HostEnvironment:
    """Builds the environment that a text such as `catch:rows=8,columns=8` names.

    Args:
        environment: `NAME`, `NAME:KEY=VALUE,...`, `SUITE:ITEM,KEY=VALUE,...` or
            `package.module:factory,KEY=VALUE,...`. An object with gymnax's interface is adapted; an
            `Environment` or `HostEnvironment` is returned unchanged.

    Returns:
        an `Environment` or, from a suite on the host, a `HostEnvironment`.

    Raises:
        UserError: the name or a parameter is unknown, a value is invalid, or a suite is not
            installed.
    """
    if isinstance(environment, Environment | HostEnvironment):
        return environment
    if isinstance(environment, GymnaxLike):
        from discorl.envs.native import gymnax  # imported late: it needs gymnax

        return gymnax.adapt(environment)
    if not isinstance(environment, str):
        raise UserError(
            f"the environment is {environment!r}; expected a name, a discorl.Environment, a "
            "discorl.HostEnvironment or an object with gymnax's interface"
        )
    spec = specs.parse(canonical(environment))
    if spec.name in FAMILIES:
        refuse_ranges_of_sizes(spec)
    if spec.name in REGISTRY:
        return specs.build(REGISTRY[spec.name], spec)
    if spec.name in SUITES:
        return SUITES[spec.name].make(spec.item, **spec.parameters)
    if imports.found(spec):
        from discorl.envs import factories  # imported late: most names do not need it

        return factories.make(spec)
    plugins = suites.plugins()
    if spec.name in plugins:
        return plugins[spec.name].make(spec.item, **spec.parameters)
    if spec.name in UNAVAILABLE:
        raise UserError(f"no environment {environment!r}: {UNAVAILABLE[spec.name]}")
    no_module = imports.no_module("environment", environment, spec)
    if no_module is not None:
        raise no_module
    known = specs.nearest(spec.name, [*REGISTRY, *SUITES, *plugins])
    own = "or package.module:factory for one of your own"
    if spec.item is not None:
        own = f"there is no module {spec.name!r} either, installed or in the current folder"
    raise UserError(f"no environment {spec.name!r}; {known}; {own}")


def name_of(environment: Environment | HostEnvironment) -> str:
    """The name under which a run records an environment that was passed as an object."""
    name = getattr(environment, "name", None)
    kind = type(environment)
    return name if isinstance(name, str) else f"{kind.__module__}:{kind.__qualname__}"


def kind_of(environment: str | Environment | HostEnvironment) -> Kind:
    """Whether an environment is written in JAX ("native") or runs on the host ("host")."""
    if isinstance(environment, str):
        suite = SUITES.get(specs.parse(canonical(environment)).name)
        if suite is not None:  # it need not be installed
            return suite.kind
    return "host" if isinstance(make(environment), HostEnvironment) else "native"
