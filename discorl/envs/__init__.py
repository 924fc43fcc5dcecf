"""Environments, by name or as objects.

A name is one of the built-in environments, an item of a suite from another package
(`gymnax:Breakout-MinAtar`, see `discorl.envs.suites`), or an environment of one's own
(`package.module:factory`, see `discorl.envs.own`).
"""

from collections.abc import Callable
from typing import Any

from discorl.envs.base import Environment, Reference, Step
from discorl.envs.catch import Catch
from discorl.envs.families import REGISTRY as FAMILIES
from discorl.envs.families import MemberConstructor, refuse_ranges_of_sizes
from discorl.envs.host.base import HostEnvironment
from discorl.envs.suites import SUITES, UNAVAILABLE
from discorl.types import UserError, specs

__all__ = [
    "REGISTRY",
    "SUITES",
    "UNAVAILABLE",
    "Catch",
    "Environment",
    "HostEnvironment",
    "Reference",
    "Step",
    "make",
]

REGISTRY: dict[str, Callable[..., Environment]] = {"catch": Catch}
REGISTRY |= {name: MemberConstructor(family) for name, family in FAMILIES.items()}


def make(environment: str | Environment | HostEnvironment) -> Any:
    """Builds the environment that a text such as `catch:rows=8,columns=8` names.

    Args:
        environment: `NAME`, `NAME:KEY=VALUE,...`, `SUITE:ITEM,KEY=VALUE,...` or
            `package.module:factory,KEY=VALUE,...`; an environment is returned as it is.

    Returns:
        an `Environment` or, from a suite on the host, a `HostEnvironment`.

    Raises:
        UserError: the name or a parameter is not known, a value is not accepted, or a suite is not
            installed.
    """
    if isinstance(environment, Environment | HostEnvironment):
        return environment
    spec = specs.parse(environment)
    if spec.name in FAMILIES:
        refuse_ranges_of_sizes(spec)
    if spec.name in REGISTRY:
        return specs.build(REGISTRY[spec.name], spec)
    if spec.name in SUITES:
        return SUITES[spec.name].make(spec.item, **spec.parameters)
    from discorl.envs import own  # here, for most names are not of one's own

    if own.found(spec):
        return own.make(spec)
    if spec.name in UNAVAILABLE:
        raise UserError(f"no environment {environment!r}: {UNAVAILABLE[spec.name]}")
    if "." in spec.name and spec.item is not None:
        raise UserError(
            f"no environment {environment!r}: there is no module {spec.name!r}, neither installed "
            "nor in the current folder"
        )
    known = specs.nearest(spec.name, [*REGISTRY, *SUITES])
    raise UserError(
        f"no environment {spec.name!r}; {known}; or package.module:factory for one of your own"
    )
