"""What training leaves behind, and the numbers of its table of metrics."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from discorl.envs import Reference
from discorl.runs.metrics import EPISODE, EPISODES, LENGTH, RETURN, STEP, recent_return
from discorl.training.config import TrainConfig
from discorl.training.policy import Policy
from discorl.training.state import TrainState
from discorl.training.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What training leaves behind."""

    config: TrainConfig
    state: TrainState  # with several seeds, every leaf has a leading axis
    trainer: Trainer
    metrics: dict[str, np.ndarray]  # columns of the table of metrics
    path: Path | None  # the run directory
    finished: bool  # False: stopped by the user; the run can be resumed
    seconds: float  # that updates took, of all stretches; compilation apart
    reference: Reference | None = None  # the returns that make scores of 0 and 1, if known

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

    def recent_return(self) -> np.ndarray:
        """Mean return over the last tenth of the updates, for each seed."""
        return np.array([recent_return(self.metrics, seed) for seed in seeds_of(self.metrics)])


def seeds_of(metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """The seeds that a table of metrics holds."""
    return np.unique(metrics["seed"])


def row_of(part: Mapping[str, np.ndarray]) -> dict[str, float]:
    """One row of metrics from those of several updates.

    Means, but for totals and for what is a mean over episodes already.
    """
    episodes = part[EPISODES]
    row: dict[str, float] = {STEP: int(part[STEP][-1]), EPISODES: int(episodes.sum())}
    for name in sorted(set(part) - set(row)):
        values = part[name]
        if name in (RETURN, LENGTH) or name.startswith(EPISODE):
            seen = (episodes > 0) & ~np.isnan(values)
            mean = np.average(values[seen], weights=episodes[seen]) if seen.any() else math.nan
        else:
            mean = values.mean()
        row[name] = float(mean)
    return row
