"""What training leaves behind, and the numbers of its table of metrics."""

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
from discorl.training.state import TrainState
from discorl.training.trainer import Trainer
from discorl.types import Params


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What training leaves behind."""

    config: TrainConfig
    state: TrainState  # with several seeds, every leaf has a leading axis
    trainer: Trainer
    # Columns of the table of metrics. Beyond some thousand rows, neighbouring rows are merged; the
    # file metrics.csv has them all.
    metrics: dict[str, np.ndarray]
    path: Path | None  # the run directory
    finished: bool  # False: stopped by the user, in `Stopped.result`; the run can be resumed
    seconds: float  # that updates took, of all stretches; compilation apart
    reference: Reference | None = None  # the returns that make scores of 0 and 1, if known
    finite_checkpoint: Path | None = None  # the newest whose parameters are all finite

    @property
    def updates(self) -> int:
        """Updates made."""
        return int(np.max(self.state.learner.updates))

    def policy(self, seed: int | None = None) -> Policy:
        """The policy of a trained agent.

        Args:
            seed: which agent, if there are several; by default the first.
        """
        return Policy.of(self.trainer, self.state.learner.params, seed)

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
