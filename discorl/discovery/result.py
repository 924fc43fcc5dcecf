"""What a discovery carries from one meta-step to the next, and what it leaves behind."""

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
    """All that a run of discovery depends on from one meta-step to the next."""

    search: PyTree  # state of the method
    best_eta: Params  # of the highest score so far
    best_score: Array  # [] float32
    best_meta_step: Array  # [] int32


@dataclasses.dataclass(frozen=True)
class DiscoverResult:
    """What discovery leaves behind."""

    config: DiscoverConfig
    rule: Rule
    eta: Params  # the rule's parameters, or their average, after the last meta-step
    best_eta: Params  # and those that were evaluated best
    best_score: float
    # One row a meta-step and one an evaluation. Beyond some thousand rows, neighbouring rows are
    # merged; the files metrics.csv and evaluation.csv have them all.
    metrics: dict[str, np.ndarray]
    evaluations: dict[str, np.ndarray]
    path: Path | None  # the run directory
    finished: bool  # False: stopped by the user; the run can be resumed
    seconds: float  # that meta-steps and evaluations took, of all stretches; compilation apart
