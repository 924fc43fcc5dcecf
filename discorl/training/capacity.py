"""Checks that training fits into memory before anything is allocated.

The state is measured by its shapes, the program by the compiler's memory analysis.
"""

import jax

from discorl.runs import memory
from discorl.runs.memory import GIB, size_of
from discorl.training.config import TrainConfig
from discorl.training.presets import small_preset
from discorl.training.state import TrainState
from discorl.types import UserError


def check_state(config: TrainConfig, state: TrainState) -> None:
    """Rejects a run whose state, summed over seeds, does not fit into memory."""
    agent = config.agent
    learner, replay = size_of(state.learner), size_of(state.replay)
    actor = size_of(state.actor)
    needed = learner + replay + actor + size_of(state.learner.params)
    free = memory.available()
    if free is None or needed <= free:
        return
    small = small_preset(config.preset)
    or_preset = f", or take the preset for small machines, `--preset {small}`" if small else ""
    seeds = f" for each of {config.seeds} seeds" if config.seeds > 1 else ""
    if needed / config.seeds <= free:
        raise UserError(
            f"seeds is {config.seeds}: this many agents take {needed / GIB:.1f} GiB, and "
            f"{free / GIB:.1f} GiB of memory are available: expected at most "
            f"{int(config.seeds * free / needed)}"
        )
    if replay >= max(learner, actor):
        most = max(0, int(agent.replay * (free - needed + replay) / replay))
        raise UserError(
            f"replay is {agent.replay}: this many trajectories{seeds} take {replay / GIB:.1f} GiB, "
            f"and {free / GIB:.1f} GiB of memory are available: keep fewer than {most}, with "
            f"`--replay N`{or_preset}"
        )
    what = (
        f"hidden is {agent.network.hidden}: the network and its optimiser{seeds} take"
        if learner >= actor
        else f"num_envs is {agent.num_envs}: this many environments of {config.env}{seeds} take"
    )
    size = max(learner, actor)
    raise UserError(
        f"{what} {size / GIB:.1f} GiB, and {free / GIB:.1f} GiB of memory are available: make "
        f"them smaller{or_preset}"
    )


def check_program(config: TrainConfig, compiled: jax.stages.Compiled) -> None:
    """Rejects a program that needs more memory, beside the state, than is available."""
    found, free = compiled.memory_analysis(), memory.available()
    needed = getattr(found, "temp_size_in_bytes", 0)  # not every backend reports it
    if free is not None and needed > free:
        agent = config.agent
        raise UserError(
            f"an update with unroll {agent.unroll}, batch {agent.batch}, num_envs "
            f"{agent.num_envs} and {config.seeds} seeds takes {needed / GIB:.1f} GiB, and "
            f"{free / GIB:.1f} GiB of memory are available: make one of them smaller"
        )
