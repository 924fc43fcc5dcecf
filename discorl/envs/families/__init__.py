"""Families of small tasks, to discover rules on and to test them on held-out tasks.

The text of a family gives its static sizes and the ranges that its members are drawn from,
`grid:size=7,objects=3,respawn=0.0..0.5`. A member, which is an environment like any other, also has
a seed and a split, `grid:size=7,objects=3,seed=12,split=held_out`.
"""

import inspect
from typing import Any

from discorl.envs.families.bandit import Bandit
from discorl.envs.families.base import Family, Member, Split
from discorl.envs.families.chain import Chain
from discorl.envs.families.cliff import Cliff
from discorl.envs.families.deep_sea import DeepSea
from discorl.envs.families.four_rooms import FourRooms
from discorl.envs.families.gambler import Gambler
from discorl.envs.families.grid import Grid
from discorl.envs.families.hill import Hill
from discorl.envs.families.inventory import Inventory
from discorl.envs.families.key_door import KeyDoor
from discorl.envs.families.memory import Memory
from discorl.envs.families.offers import Offers
from discorl.envs.families.queues import Queues
from discorl.envs.families.river_swim import RiverSwim
from discorl.envs.families.tabular import Tabular
from discorl.envs.families.windy_catch import WindyCatch
from discorl.types import UserError, specs, validation

__all__ = [
    "REGISTRY",
    "Family",
    "Member",
    "MemberConstructor",
    "Split",
    "build",
    "make",
    "ranges_of_sizes",
    "refuse_ranges_of_sizes",
]

REGISTRY: dict[str, type[Family]] = {
    "bandit": Bandit,
    "chain": Chain,
    "cliff": Cliff,
    "deep_sea": DeepSea,
    "four_rooms": FourRooms,
    "gambler": Gambler,
    "grid": Grid,
    "hill": Hill,
    "inventory": Inventory,
    "key_door": KeyDoor,
    "memory": Memory,
    "offers": Offers,
    "queues": Queues,
    "river_swim": RiverSwim,
    "tabular": Tabular,
    "windy_catch": WindyCatch,
}


def make(family: str | Family) -> Family:
    """Builds the family that a text such as `grid:size=7,objects=3` names."""
    return family if isinstance(family, Family) else build(specs.parse(family))


def build(spec: specs.Spec) -> Family:
    """Builds the family that a spec names; see `make`."""
    if spec.name not in REGISTRY:
        raise UserError(f"no family {spec.name!r}; {specs.nearest(spec.name, REGISTRY)}")
    refuse_ranges_of_sizes(spec)
    return specs.build(REGISTRY[spec.name], spec)


def ranges_of_sizes(spec: specs.Spec) -> dict[str, specs.Range]:
    """The ranges that a spec gives for static sizes."""
    settings = inspect.signature(REGISTRY[spec.name]).parameters
    return {
        name: value
        for name, value in spec.parameters.items()
        if isinstance(value, specs.Range) and name in settings and settings[name].annotation is int
    }


def refuse_ranges_of_sizes(spec: specs.Spec) -> None:
    """Raises a `UserError` for the first range of sizes, if there is any."""
    for name, value in ranges_of_sizes(spec).items():
        raise UserError(
            f"{name}={value} is a range of sizes, which only `discorl discover --envs` accepts; "
            f"expected one size, such as {spec.name}:{name}={value.low}"
        )


class MemberConstructor:
    """Builds one member of a family from the family's settings, a seed and a split.

    Its signature is the family's with `seed` and `split` added, so that specs can set them.
    """

    def __init__(self, family: type[Family]) -> None:
        self._family = family
        settings = inspect.signature(family).parameters.values()
        choice = inspect.signature(family.member).parameters
        self.__signature__ = inspect.Signature([*settings, choice["seed"], choice["split"]])

    def __call__(self, seed: int = 0, split: Split = "train", **settings: Any) -> Member:
        """The member that the seed selects."""
        validation.integer("seed", seed, least=0, most=validation.MOST_SEED)
        return self._family(**settings).member(seed, split)
