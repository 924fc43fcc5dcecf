"""Starting a run from the parameters of another one."""

import dataclasses
import os

import jax
import jax.numpy as jnp

from discorl.runs import Run
from discorl.training.loading import PARAMS
from discorl.training.state import TrainState
from discorl.training.trainer import Trainer
from discorl.types import UserError


def start_from(trainer: Trainer, path: str | os.PathLike[str]) -> TrainState:
    """A fresh state with the newest network parameters of another run.

    The target network starts from them, too. Optimiser, replay and the rule's state are fresh. The
    other run must have as many seeds as the new one, or a single one, from which all start.
    """
    state, wanted = trainer.init(), trainer.config.seeds
    with Run.open(path, read_only=True) as run:
        run.require_kind("train")
        seeds = run.config["seeds"]
        if seeds not in (1, wanted):
            raise UserError(
                f"seeds is {wanted}, and {path} has {seeds} agents to start from; expected "
                f"seeds={seeds}, or a run with a single agent"
            )
        like = state.learner.params
        if seeds == 1:
            like = trainer.params_by_seed(like)[0]
        try:
            restored = run.restore(like, PARAMS)
        except UserError as error:
            raise UserError(
                f"the network of {path} does not fit: {error}. Expected a run with the same "
                "network, outputs of the rule, actions and observations"
            ) from error
    if restored is None:
        raise UserError(f"{path} has no checkpoint yet, so there is nothing to start from")
    params = restored[1]
    if seeds < wanted:
        params = jax.tree.map(lambda x: jnp.broadcast_to(x, (wanted, *x.shape)), params)
    target = None if state.learner.target_params is None else jax.tree.map(jnp.copy, params)
    learner = dataclasses.replace(state.learner, params=params, target_params=target)
    return dataclasses.replace(state, learner=learner)
