"""Environments, by name or as objects.

A native environment is registered as its class. A suite is registered as a function that imports
the suite when it is called, so that nobody waits for, or needs, a suite that is not used:

    def _suite(item: str, frames: int = 1) -> Environment:
        from discorl.envs import suite
        return suite.load(item, frames)

    REGISTRY["suite"] = _suite  # makes `suite:ITEM,frames=4` a name
"""

from collections.abc import Callable

from discorl import specs
from discorl.envs.base import Environment, Step
from discorl.envs.catch import Catch
from discorl.envs.families import REGISTRY as FAMILIES
from discorl.envs.families import MemberConstructor
from discorl.types import UserError

__all__ = ["REGISTRY", "Catch", "Environment", "Step", "make"]

REGISTRY: dict[str, Callable[..., Environment]] = {"catch": Catch}
REGISTRY |= {name: MemberConstructor(family) for name, family in FAMILIES.items()}


def make(environment: str | Environment) -> Environment:
    """Builds the environment that a text such as `catch:rows=8,columns=8` names.

    Args:
        environment: `NAME`, `NAME:KEY=VALUE,...` or, for a suite, `SUITE:ITEM,KEY=VALUE,...`; an
            environment is returned as it is.

    Raises:
        UserError: the name or a parameter is not known, or a value is not accepted.
    """
    if isinstance(environment, Environment):
        return environment
    spec = specs.parse(environment)
    if spec.name not in REGISTRY:
        raise UserError(f"no environment {spec.name!r}; {specs.nearest(spec.name, REGISTRY)}")
    return specs.build(REGISTRY[spec.name], spec)
