"""Spreads agents over the sizes of a family: `grid:size=4..6` becomes three environments.

A range of a parameter, `grid:respawn=0.0..0.5`, is one environment, and every life draws from it. A
size, in contrast, is part of the compiled program. Agents with a range of sizes therefore become
several groups, one for each size, and no life draws a size.
"""

import math
from typing import NamedTuple

from discorl.envs import families
from discorl.types import UserError, specs
from discorl.types.specs import Range


class Share(NamedTuple):
    """Some of the agents of an environment."""

    env: str  # without ranges of sizes
    agents: int


def spread(env: str, agents: int) -> list[Share]:
    """Distributes agents over the sizes in an environment's ranges, as evenly as possible.

    Several ranges give all their combinations, in the order of the text; the last range varies
    fastest. If there are more combinations than agents, every agent gets a different one, evenly
    spaced from the first to the last. An environment without ranges of sizes has one share.
    """
    ranges = _ranges_of_sizes(env)
    if not ranges:
        _check(env)
        return [Share(env, agents)]
    total = _combinations(ranges)
    count = min(agents, total)
    share, rest = divmod(agents, count)
    shares = []
    for i in range(count):
        # i (total - 1) / (count - 1), to the nearest whole number.
        place = (2 * i * (total - 1) + count - 1) // (2 * (count - 1)) if count > 1 else 0
        single = _with_sizes(env, _combination(ranges, place))
        try:
            _check(single)
        except UserError as error:
            raise UserError(f"{env} asks for {single}: {error}") from error
        shares.append(Share(single, share + (i < rest)))
    return shares


def notice(env: str, agents: int) -> str | None:
    """A message for the user if there are fewer agents than sizes; see `spread`."""
    total = _combinations(_ranges_of_sizes(env))
    if total <= agents:
        return None
    chosen = ", ".join(share.env for share in spread(env, agents))
    return (
        f"{env} stands for {total} environments and has agents={agents}: only {chosen} will be used"
    )


def _ranges_of_sizes(env: str) -> dict[str, Range]:
    if not _is_family(env):
        return {}
    ranges = families.ranges_of_sizes(specs.parse(env))
    for key, value in ranges.items():
        if not all(isinstance(end, int) for end in value):
            raise UserError(f"{key}={value} in {env!r}: expected whole numbers, such as {key}=4..6")
    return ranges


def _is_family(env: str) -> bool:
    return env.partition(":")[0].strip() in families.REGISTRY


def _combinations(ranges: dict[str, Range]) -> int:
    return math.prod(high - low + 1 for low, high in ranges.values())


def _combination(ranges: dict[str, Range], place: int) -> dict[str, int]:
    """One combination of sizes, by its place in the order of all."""
    sizes = {}
    for key, (low, high) in reversed(ranges.items()):
        place, offset = divmod(place, high - low + 1)
        sizes[key] = low + offset
    return sizes


def _with_sizes(env: str, sizes: dict[str, int]) -> str:
    """The environment's text with single sizes instead of ranges."""
    name, _, settings = env.partition(":")
    parts = {part.partition("=")[0].strip(): part for part in settings.split(",")}
    parts |= {key: f"{key}={size}" for key, size in sizes.items()}
    return f"{name}:{','.join(parts.values())}"


def _check(env: str) -> None:
    """Raises a `UserError` for invalid settings of a family, before anything is drawn."""
    if _is_family(env):
        spec = specs.parse(env)
        settings = {k: v for k, v in spec.parameters.items() if k not in ("seed", "split")}
        families.build(specs.Spec(spec.name, spec.item, settings))
