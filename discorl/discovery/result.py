"""The state and the result of a discovery."""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from discorl.discovery.config import DiscoverConfig
from discorl.rules import Rule
from discorl.types import Array, Params, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DiscoverState:
    """Everything that a discovery carries from one meta-step to the next."""

    search: PyTree  # state of the method
    best_eta: Params  # of the highest score so far
    best_score: Array  # [] float32
    best_meta_step: Array  # [] int32


@dataclasses.dataclass(frozen=True)
class DiscoverResult:
    """The discovered rule and the metrics of its discovery."""

    config: DiscoverConfig
    rule: Rule
    eta: Params  # the rule's parameters, or their EMA, after the last meta-step
    best_eta: Params  # those that were evaluated best
    best_score: float
    # One row per meta-step and one per evaluation. Long histories are shortened by merging
    # neighbouring rows; metrics.csv and evaluation.csv have every row.
    metrics: dict[str, np.ndarray]
    evaluations: dict[str, np.ndarray]
    path: Path | None  # the run directory
    finished: bool  # False: stopped by the user; the run can be resumed
    seconds: float  # wall time of the whole run without compilation
