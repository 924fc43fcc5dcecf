"""NetHack, by the NetHack Learning Environment (Küttler et al. 2020, arXiv:2006.13760).

An observation has three parts. `screen` and `around` hold, for each cell of the dungeon and of a
square around the hero, the character and its colour as bytes, which are compact in replay. Networks
see them as bits (`prepare`), because a character's code is a name and not a quantity; from bits, a
first layer can learn an embedding. `status` holds the numbers of the bottom lines, which range from
1 to millions, on a logarithmic scale.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import nle  # noqa: F401  # registers its tasks
import numpy as np
from gymnasium.envs.registration import load_env_creator

from discorl.envs.host.base import HostEnvironment, HostVector, seeds_from
from discorl.envs.host.serial import Outcome
from discorl.envs.host.workers import vector_of
from discorl.types import Array, PyTree
from discorl.types.validation import integer

_ROWS, _COLUMNS = 21, 79
_REACH = 4  # cells that `around` shows to each side of the hero
_STATUS = 27
_CHARACTER_BITS, _COLOUR_BITS = 7, 4
_UNSEEDED = "NetHackChallenge-v0"  # forbids choosing seeds


def names() -> Sequence[str]:
    """The tasks, such as `NetHackScore-v0`."""
    return [name for name in gymnasium.registry if name.startswith("NetHack")]


def make(item: str, *, max_steps: int = 100_000, workers: int = 0) -> HostEnvironment:
    """Builds a NetHack task.

    Args:
        item: such as `NetHackScore-v0`.
        max_steps: steps after which an episode is truncated.
        workers: worker processes; 0 steps all environments in this process.
    """
    integer("max_steps", max_steps, least=1, owner="nethack")
    integer("workers", workers, least=0, owner="nethack")
    env = _create(item)
    count = int(env.action_space.n)
    env.close()
    return _NetHack(item, max_steps, count, workers)


def _create(item: str) -> Any:
    spec = gymnasium.registry[item]
    return load_env_creator(spec.entry_point)(
        **spec.kwargs,
        observation_keys=("chars", "colors", "blstats"),
        max_episode_steps=2**31,  # `_Single` applies the limit; NLE's own spoils the last screen
        save_ttyrec_every=0,
    )


@dataclasses.dataclass(frozen=True)
class _NetHack(HostEnvironment):
    item: str
    max_steps: int
    num_actions: int
    workers: int

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return self.item != _UNSEEDED

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"nethack:{self.item}"

    @property
    def observation(self) -> PyTree:
        side = 2 * _REACH + 1
        return {
            "around": jax.ShapeDtypeStruct((side, side, 2), np.uint8),
            "screen": jax.ShapeDtypeStruct((_ROWS, _COLUMNS, 2), np.uint8),
            "status": jax.ShapeDtypeStruct((_STATUS,), np.float32),
        }

    def prepare(self, observation: PyTree) -> PyTree:
        cells = {name: _bits(observation[name]) for name in ("around", "screen")}
        return cells | {"status": observation["status"]}

    def start(self, count: int, seed: int, *, render: bool = False) -> HostVector:
        del render  # NetHack is text
        return vector_of(
            functools.partial(_Single, self),
            seeds_from(seed, count),
            observation=self.observation,
            workers=self.workers,
            timeout=self.timeout,
            read=_read,
        )


def _bits(cells: Array) -> Array:
    """Characters and colours as bits: [..., 2 S] uint8 -> [..., 11 S] float32."""
    pairs = cells.reshape(*cells.shape[:-1], -1, 2)
    parts = [
        (pairs[..., i, None] >> jnp.arange(count, dtype=jnp.uint8)) & 1
        for i, count in enumerate((_CHARACTER_BITS, _COLOUR_BITS))
    ]
    bits = jnp.concatenate(parts, axis=-1)
    return bits.reshape(*cells.shape[:-1], -1).astype(jnp.float32)


class _Single:
    """See `discorl.envs.host.serial.Single`."""

    def __init__(self, task: _NetHack) -> None:
        self._task = task
        self._env = _create(task.item)
        # NLE would play an aborted game to its end and show the remains.
        self._env._quit_game = lambda *_: None
        self._steps = 0

    def reset(self, seed: int | None) -> PyTree:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if self._task.item != _UNSEEDED:
            # In every episode, or all of them would use the same dungeon.
            core, display = self._random.integers(2**31, size=2)
            self._env.seed(int(core), int(display), reseed=False)
        self._steps = 0
        return self._env.reset()[0]

    def step(self, action: int) -> Outcome:
        found, reward, done, _, info = self._env.step(action)
        self._steps += 1
        aborted = info["end_status"] == self._env.StepStatus.ABORTED
        cut = aborted or self._steps >= self._task.max_steps
        return found, float(reward), bool(done and not aborted), bool(cut), {}

    def render(self) -> np.ndarray | None:
        return None

    def close(self) -> None:
        self._env.close()


def _read(found: dict[str, np.ndarray]) -> PyTree:
    """Converts NLE's observations, [E, ...]."""
    screen = np.stack([found["chars"], found["colors"]], axis=-1)
    count, side = len(screen), 2 * _REACH + 1
    padded = np.zeros((count, _ROWS + side - 1, _COLUMNS + side - 1, 2), np.uint8)
    padded[:, _REACH:-_REACH, _REACH:-_REACH] = screen
    # A view of every square of cells; the one at the hero's place is centred on the hero.
    squares = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(1, 2))
    column, row = found["blstats"][:, :2].T
    status = found["blstats"].astype(np.float32)
    return {
        "around": np.moveaxis(squares[np.arange(count), row, column], 1, -1),
        "screen": screen,
        "status": np.sign(status) * np.log1p(np.abs(status)),
    }
