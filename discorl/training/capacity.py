"""Whether what a run keeps in memory fits there, found out before hours have gone into it."""

import os
from pathlib import Path

import jax

from discorl.agent.replay import ReplayState
from discorl.training.config import TrainConfig
from discorl.training.presets import small_preset
from discorl.types import UserError

_MEMINFO = Path("/proc/meminfo")
_GIB = 2**30


def available() -> int | None:
    """Bytes of the machine's memory that can be had; None where the system does not say."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) * 1024
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a name that every system knows
        return None


def check_replay(config: TrainConfig, replay: ReplayState | None) -> None:
    """Refuses a replay, of all seeds, that is larger than the memory that can be had."""
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(replay))
    free = available()
    if free is None or size <= free:
        return
    small = small_preset(config.preset)
    or_preset = f", or take the preset for small machines, `--preset {small}`" if small else ""
    seeds = f" for each of {config.seeds} seeds" if config.seeds > 1 else ""
    raise UserError(
        f"replay is {config.agent.replay}: so many trajectories{seeds} take {size / _GIB:.1f} GiB, "
        f"and {free / _GIB:.1f} GiB of memory are available: keep fewer than "
        f"{int(config.agent.replay * free / size)}, with `--replay N`{or_preset}"
    )
