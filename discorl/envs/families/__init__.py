"""Families of small tasks, to discover rules on and to try them on tasks held out.

A family by text gives its static sizes, `grid:size=7,objects=3`; one of its members also has a seed
and a split, `grid:size=7,objects=3,seed=12,split=held_out`, and is an environment like any other.
"""

import inspect
from typing import Any

from discorl import specs
from discorl.envs.base import Reference
from discorl.envs.families.bandit import Bandit
from discorl.envs.families.base import Family, Member, Plan, Split
from discorl.envs.families.chain import Chain
from discorl.envs.families.cliff import Cliff
from discorl.envs.families.grid import Grid
from discorl.envs.families.memory import Memory
from discorl.envs.families.tabular import Tabular
from discorl.envs.families.windy_catch import WindyCatch
from discorl.types import UserError

__all__ = [
    "REGISTRY",
    "Bandit",
    "Chain",
    "Cliff",
    "Family",
    "Grid",
    "Member",
    "MemberConstructor",
    "Memory",
    "Plan",
    "Reference",
    "Split",
    "Tabular",
    "WindyCatch",
    "make",
]

REGISTRY: dict[str, type[Family]] = {
    "bandit": Bandit,
    "chain": Chain,
    "cliff": Cliff,
    "grid": Grid,
    "memory": Memory,
    "tabular": Tabular,
    "windy_catch": WindyCatch,
}


def make(family: str | Family) -> Family:
    """Builds the family that a text such as `grid:size=7,objects=3` names.

    Raises:
        UserError: the name or a size is not known, or a value is not accepted.
    """
    if isinstance(family, Family):
        return family
    spec = specs.parse(family)
    if spec.name not in REGISTRY:
        raise UserError(f"no family {spec.name!r}; {specs.nearest(spec.name, REGISTRY)}")
    return specs.build(REGISTRY[spec.name], spec)


class MemberConstructor:
    """Builds one member of a family from the family's sizes, a seed and a split.

    Its signature is the family's with `seed` and `split` added, so that texts can name them.
    """

    def __init__(self, family: type[Family]) -> None:
        self._family = family
        sizes = inspect.signature(family).parameters.values()
        choice = inspect.signature(family.member).parameters
        self.__signature__ = inspect.Signature([*sizes, choice["seed"], choice["split"]])

    def __call__(self, seed: int = 0, split: Split = "train", **sizes: Any) -> Member:
        """The member that the seed selects."""
        return self._family(**sizes).member(seed, split)
