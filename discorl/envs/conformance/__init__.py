"""Checks that an environment keeps its contract, for the suites' adapters and users' environments.

The checker plays random actions. It compares the results with the declaration, with a second run of
the same episodes, and with a single environment stepped by hand.
"""

from numbers import Integral

import jax

from discorl.envs.base import Environment
from discorl.envs.conformance.host import check_host
from discorl.envs.conformance.native import check_native, check_types
from discorl.envs.host.base import HostEnvironment
from discorl.types.findings import Finding, describe, judge, raised

__all__ = ["Finding", "check", "check_declaration", "describe"]


def check(
    environment: Environment | HostEnvironment, *, steps: int = 300, count: int = 4, seed: int = 0
) -> list[Finding]:
    """Checks an environment against its contract: `count` environments for `steps` steps.

    Stops at a failed check that later ones depend on. An exception of the environment is a failed
    check.
    """
    findings = check_declaration(environment)
    if not all(finding.ok for finding in findings):
        return findings
    if isinstance(environment, Environment):
        return [*findings, *check_native(environment, steps, count, seed)]
    return [*findings, *check_host(environment, steps, count, seed)]


def check_declaration(environment: Environment | HostEnvironment) -> list[Finding]:
    """Runs the checks that need neither compilation nor play."""
    try:
        declared = _declaration(environment)
    except Exception as error:  # raised by a property
        return [Finding("declaration", False, raised("it", error))]
    if not declared.ok or not isinstance(environment, Environment):
        return [declared]
    return [declared, check_types(environment)]


def _declaration(environment: Environment | HostEnvironment) -> Finding:
    actions, observation = environment.num_actions, environment.observation
    leaves = jax.tree.leaves(observation)
    problems = []
    if not isinstance(actions, Integral) or actions < 1:
        problems.append(f"num_actions is {actions!r}; expected a positive int")
    if not leaves or not all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        problems.append(f"observation is {observation!r}; expected jax.ShapeDtypeStruct leaves")
    elif any(0 in leaf.shape for leaf in leaves):
        problems.append(f"observations are {describe(observation)}; expected no axis of length 0")
    detail = f"{actions} actions, observations {describe(observation)}"
    return judge("declaration", problems, detail)
