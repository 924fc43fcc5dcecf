"""The 16 procedurally generated games of ProcGen, by EnvPool.

Cobbe et al. 2020, arXiv:1912.01588; Weng et al. 2022, arXiv:2206.10558. Training uses a fixed set
of `levels` levels from `start_level` on; `levels=0` draws from all levels, as for a test.

EnvPool's ProcGen is linked against Qt 5. Its libraries are taken from the wheel PyQt5-Qt5, which
`pip install "discorl[procgen]"` installs, or else from the system.
"""

import ctypes
import dataclasses
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from discorl.envs import references
from discorl.envs.base import Reference
from discorl.envs.host.base import HostEnvironment, HostStep, HostVector, picture, seeds_from
from discorl.types import PyTree, UserError
from discorl.types.validation import integer

Mode = Literal["easy", "hard"]

_NAMES = [
    "bigfish",
    "bossfight",
    "caveflyer",
    "chaser",
    "climber",
    "coinrun",
    "dodgeball",
    "fruitbot",
    "heist",
    "jumper",
    "leaper",
    "maze",
    "miner",
    "ninja",
    "plunder",
    "starpilot",
]
_ACTIONS = 15
_SIZE = 64


def names() -> Sequence[str]:
    """The games."""
    return _NAMES


def make(
    item: str, *, mode: Mode = "hard", levels: int = 500, start_level: int = 0
) -> HostEnvironment:
    """Builds a ProcGen game.

    Args:
        item: such as `coinrun`.
        mode: difficulty of the levels.
        levels: number of distinct levels; 0: unlimited.
        start_level: the first level.
    """
    integer("levels", levels, least=0, owner="procgen")
    integer("start_level", start_level, least=0, owner="procgen")
    return _Procgen(item, mode, levels, start_level, _envpool())


def _envpool() -> Any:
    """Imports the package after loading the libraries it needs."""
    _load_qt()
    import envpool
    from envpool import procgen

    try:
        if not hasattr(procgen, "_ProcgenEnvPool"):
            importlib.reload(procgen)  # it may have been imported before Qt was loaded
        procgen.ProcgenGymnasiumEnvPool  # noqa: B018  # raises if Qt is missing
    except ImportError as error:
        raise UserError(
            "procgen needs the Qt 5 libraries, which were not found: `pip install PyQt5-Qt5`, or "
            "install your system's package (qtbase5-dev, qt5-qtbase)"
        ) from error
    return envpool


def _load_qt() -> None:
    """Loads Qt's libraries from their wheel; the linker then finds them by name."""
    spec = importlib.util.find_spec("PyQt5")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in ("libQt5Core.so.5", "libQt5Gui.so.5"):
            path = Path(folder, "Qt5", "lib", library)
            if path.exists():
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


@dataclasses.dataclass(frozen=True)
class _Procgen(HostEnvironment):
    game: str
    mode: Mode
    levels: int
    start_level: int
    envpool: Any = dataclasses.field(repr=False, compare=False)

    num_actions = _ACTIONS

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"procgen:{self.game}"

    @property
    def observation(self) -> PyTree:
        return jax.ShapeDtypeStruct((_SIZE, _SIZE, 3), np.uint8)

    def start(self, count: int, seed: int, *, render: bool = False) -> HostVector:
        pool = self.envpool.make(
            f"{self.game.capitalize()}{self.mode.capitalize()}-v0",
            env_type="gymnasium",
            num_envs=count,
            env_seed=seeds_from(seed, count),
            channel_first=False,
            num_levels=self.levels,
            start_level=self.start_level,
        )
        return EnvPoolVector(pool, count)

    def reference(self) -> Reference | None:
        return references.lookup(f"procgen-{self.mode}", self.game)


class EnvPoolVector(HostVector):
    """EnvPool's environments, which reset in the call after the end of an episode."""

    def __init__(self, pool: Any, count: int) -> None:
        self._pool = pool
        self._ended = np.zeros(count, bool)

    def reset(self) -> PyTree:
        self._seen = self._pool.reset()[0]
        return self._seen

    def step(self, action: np.ndarray) -> HostStep:
        first = self._ended
        self._seen, reward, terminated, truncated, _ = self._pool.step(action)
        terminated = terminated & ~first
        truncated = truncated & ~terminated & ~first
        self._ended = terminated | truncated
        return HostStep(self._seen, reward, terminated, truncated, first)

    def render(self) -> np.ndarray | None:
        return picture(self._seen[0])

    def close(self) -> None:
        self._pool.close()
