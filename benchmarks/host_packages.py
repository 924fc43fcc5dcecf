"""Suites on the host as their packages have them, without discorl; see `benchmarks/host.py`."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from discorl.types import UserError
from discorl.types.specs import Spec

SEED = 0


class Stepped(Protocol):
    def step(self, action: np.ndarray) -> object:
        """Takes actions, [E]; begins episodes anew where they ended."""

    def close(self) -> None: ...


def start(spec: Spec, count: int) -> Stepped:
    """`count` environments that have been reset."""
    if spec.name not in STARTS:
        raise UserError(f"{spec.name}: no package to compare with; expected one of {[*STARTS]}")
    return STARTS[spec.name](spec.item, count)


class Vector:
    """A vector environment that resets by itself."""

    def __init__(self, vector: Any) -> None:
        self.step, self.close = vector.step, vector.close


def _gymnasium(item: str, count: int) -> Stepped:
    import gymnasium
    from gymnasium.vector import SyncVectorEnv

    vector = SyncVectorEnv([lambda: gymnasium.make(item)] * count)
    vector.reset(seed=SEED)
    return Vector(vector)


def _atari(item: str, count: int) -> Stepped:
    from ale_py.vector_env import AtariVectorEnv

    from discorl.envs.host.atari import _roms

    vector = AtariVectorEnv(_roms()[item], count, stack_num=1, use_fire_reset=False)
    vector.reset(seed=SEED)
    return Vector(vector)


def _procgen(item: str, count: int) -> Stepped:
    from discorl.envs.host.procgen import _envpool

    name = f"{item.capitalize()}Hard-v0"
    pool = _envpool().make(name, env_type="gymnasium", num_envs=count, num_levels=500)
    pool.reset()
    return Vector(pool)


class Loop:
    """Environments one after the other; `over` says whether what a step returned is an end."""

    def __init__(self, environments: Sequence[Any], over: Callable[[tuple], bool]) -> None:
        self.environments, self.over = environments, over
        for environment in environments:
            environment.reset()

    def step(self, action: np.ndarray) -> None:
        for environment, chosen in zip(self.environments, action.tolist(), strict=True):
            if self.over(environment.step(chosen)):
                environment.reset()

    def close(self) -> None:
        return


def _crafter(item: str | None, count: int) -> Stepped:
    import crafter

    return Loop([crafter.Env(seed=SEED + i) for i in range(count)], lambda step: step[2])


def _nethack(item: str, count: int) -> Stepped:
    import gymnasium
    import nle  # noqa: F401  # registers its tasks

    environments = [gymnasium.make(item) for _ in range(count)]
    return Loop(environments, lambda step: step[2] or step[3])


STARTS: dict[str, Callable[[Any, int], Stepped]] = {
    "gymnasium": _gymnasium,
    "atari": _atari,
    "procgen": _procgen,
    "crafter": _crafter,
    "nethack": _nethack,
}
