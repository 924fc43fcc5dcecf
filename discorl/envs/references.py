"""Scores that returns are compared with, published or measured, from `references.json`."""

import functools
import json
from importlib import resources
from typing import Any

from discorl.envs.base import Environment, Reference
from discorl.envs.host.base import HostEnvironment
from discorl.types import UserError, specs


@functools.cache
def _tables() -> dict[str, Any]:
    return json.loads(resources.files("discorl.envs").joinpath("references.json").read_text())


def lookup(table: str, item: str) -> Reference | None:
    """The ends of an item's scale, if there are any.

    Tables are `atari`, `procgen-easy`, `procgen-hard`, `crafter`, `craftax`,
    `gymnax` and `minigrid`.
    """
    scores = _tables()[table]["scores"].get(item)
    return None if scores is None else Reference(*scores)


def of(environment: Environment | HostEnvironment) -> Reference | None:
    """The ends of an environment's scale, if it knows them."""
    try:
        found = environment.reference()
        if found is None:
            return None
        reference = Reference(*found)
        for end in reference:
            float(end)
        return reference
    except Exception as error:  # in a user's environment
        raise UserError(
            f"the environment's reference() failed: {type(error).__name__}: {error}; expected "
            "discorl.envs.Reference(random, optimal), or None"
        ) from error


def ends_of(env: str) -> tuple[str, str]:
    """What scores of 0 and 1 mean in an environment, such as `random` and `human`."""
    table = table_of(specs.parse(env).name)
    return ("random", "optimal") if table is None else describe(table)[:2]


def describe(table: str) -> tuple[str, str, str]:
    """What the two ends of a table are, and their source."""
    entry = _tables()[table]
    return (*entry["ends"], entry["source"])


def table_of(suite: str) -> str | None:
    """One of the suite's tables, if any; all of them have the same ends and source."""
    return next((name for name in _tables() if name.partition("-")[0] == suite), None)
