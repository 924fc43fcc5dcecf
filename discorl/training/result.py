"""The result of training."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs import Reference
from discorl.runs.metrics import recent_return
from discorl.training.config import TrainConfig
from discorl.training.policy import Policy
from discorl.training.selection import Best
from discorl.training.state import TrainState
from discorl.training.trainer import Trainer
from discorl.types import Params, UserError


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """The trained agents and their metrics."""

    config: TrainConfig
    state: TrainState  # with several seeds, every leaf has a leading axis
    trainer: Trainer
    # Columns of the table of metrics. Long histories are shortened by merging neighbouring rows;
    # metrics.csv has every row.
    metrics: dict[str, np.ndarray]
    path: Path | None  # the run directory
    finished: bool  # False: stopped by the user (see `Stopped.result`) and resumable
    seconds: float  # wall time of the whole run without compilation
    reference: Reference | None = None  # the returns that map to scores 0 and 1, if known
    finite_checkpoint: Path | None = None  # the newest with finite parameters
    # One row for each seed and evaluation during training; {} without `eval_every`.
    evaluations: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    best: Best | None = None  # the agents that were evaluated best

    @property
    def updates(self) -> int:
        """Updates made."""
        return int(np.max(self.state.learner.updates))

    def params(self, *, best: bool = False) -> Params:
        """Parameters of the agents, after the last update or when they were evaluated best."""
        if not best:
            return self.state.learner.params
        if self.best is None:
            raise UserError("there is no best agent: train with eval_every")
        return self.best.agents()[1]

    def policy(self, seed: int | None = None, *, best: bool = False) -> Policy:
        """The policy of a trained agent.

        Args:
            seed: which agent, if there are several; by default the first.
            best: the agent that was evaluated best, with `eval_every`, instead of the last one.
        """
        return Policy.of(self.trainer, self.params(best=best), seed)

    @property
    def lost(self) -> np.ndarray:
        """Whether an agent's parameters are no longer finite: [seeds] bool."""
        return ~finite_by_seed(self.state.learner.params, self.config.seeds)

    def recent_return(self) -> np.ndarray:
        """Mean return over the last tenth of the updates, for each seed."""
        return np.array([recent_return(self.metrics, seed) for seed in seeds_of(self.metrics)])


def finite_by_seed(params: Params, seeds: int) -> np.ndarray:
    """Whether all parameters of each agent are finite numbers: [seeds] bool."""
    finite = [
        jnp.isfinite(leaf.reshape(seeds, -1)).all(axis=1)
        for leaf in jax.tree.leaves(params)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return np.logical_and.reduce([np.ones(seeds, bool), *map(np.asarray, finite)])


def seeds_of(metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """The seeds that a table of metrics holds."""
    return np.unique(metrics["seed"])
