"""Cells of a comparison: one rule in one environment with one learning rate, for some seeds."""

import dataclasses
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from discorl.comparison.entries import EnvironmentEntry, RuleEntry, folder_name
from discorl.runs import Run
from discorl.runs.files import write_bytes, write_errors_reported
from discorl.runs.interrupts import Stopped
from discorl.runs.metrics import EPISODES, RETURN, STEP, recent_return
from discorl.runs.schemas import read_json
from discorl.training import make_trainer, train
from discorl.training.compiled.trainer import ProgramCache
from discorl.training.config import TrainConfig
from discorl.training.result import seeds_of
from discorl.types import UserError

Kind = Literal["sweep", "final"]

RECORD = "result.json"  # in a cell's folder, once the cell has ended
CURVE_POINTS = 50
CURVE_WINDOW = 0.1  # share of all steps; a point is the mean over the episodes that ended in it

_HEAD = {"status": str, "message": str}
_RECORD = _HEAD | {
    "seeds": [int],
    "returns": [float],
    "learning_rate": float,
    "updates": int,
    "steps": int,
    "seconds": float,
    "flops_per_update": (float, type(None)),
    "curve": {"steps": [int], "returns": [[(float, type(None))]]},
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A training run of one or more seeds."""

    kind: Kind
    rule: RuleEntry
    environment: EnvironmentEntry
    learning_rate: float | None  # None: the recipe's
    seed: int
    seeds: int

    @property
    def folder(self) -> Path:
        """Its run directory, relative to the comparison's."""
        rate = "own" if self.learning_rate is None else repr(self.learning_rate)
        place = Path("cells", folder_name(self.rule.label), folder_name(self.environment.label))
        return place / f"{self.kind}-rate-{rate}-seeds-{self.seed}-{self.seed + self.seeds - 1}"

    def __str__(self) -> str:
        rate = "" if self.learning_rate is None else f", learning rate {self.learning_rate}"
        last = self.seed + self.seeds - 1
        seeds = f"seed {self.seed}" if self.seeds == 1 else f"seeds {self.seed} to {last}"
        return f"{self.kind} {self.rule.label} on {self.environment.label}{rate}, {seeds}"


def read_record(path: Path) -> dict[str, Any] | None:
    """The record of a cell in a folder; None if the cell has not ended yet.

    Its "status" is "finished", "diverged" (finished, but with losses that are not finite) or
    "failed", with a "message". Unless it failed, it also has "returns" by seed.
    """
    file = path / RECORD
    if not file.exists():
        return None
    record = read_json(file, _HEAD)
    if record["status"] == "failed":
        return record
    read_json(file, _RECORD)
    curve = record["curve"]
    sizes = {len(record["seeds"]), len(record["returns"]), len(curve["returns"])}
    if len(sizes) > 1 or any(len(values) != len(curve["steps"]) for values in curve["returns"]):
        raise UserError(f"{file}: has returns or curves that are not one for each seed")
    return record


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Writes the record of a cell into a folder, which is created if necessary."""
    content = json.dumps(record, indent=1).encode()
    with write_errors_reported(path / RECORD):
        path.mkdir(parents=True, exist_ok=True)
        write_bytes(path / RECORD, content)


def run(
    cell: Cell,
    path: Path,
    config: TrainConfig,
    steps: int,
    *,
    keep_checkpoints: bool,
    programs: ProgramCache | None = None,
    accept_changes: bool = False,
) -> dict[str, Any] | None:
    """Trains a cell, resuming it if possible, and records the outcome.

    Returns None if the user stopped it. `programs` is a cache that cells share.
    """
    try:
        record = _train(cell, path, config, steps, programs, accept_changes)
    except Stopped:
        return None
    except Exception as error:  # the other cells continue
        logging.getLogger(__name__).debug("%s failed", cell, exc_info=True)
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        record = {"status": "failed", "message": message.strip()}
    write_record(path, record)
    if record["status"] != "failed" and not keep_checkpoints:
        with Run.open(path, accept_changes=True) as made:
            made.drop_checkpoints()
    return record


def _train(
    cell: Cell,
    path: Path,
    config: TrainConfig,
    steps: int,
    programs: ProgramCache | None,
    accept_changes: bool,
) -> dict[str, Any]:
    if (path / "config.json").exists():
        result = train(resume=path, programs=programs, accept_changes=accept_changes)
    else:
        (path / RECORD).unlink(missing_ok=True)  # of a cell that failed before its run started
        result = train(config, out=path, programs=programs)
    metrics = result.metrics
    seeds = [int(seed) for seed in seeds_of(metrics)]
    returns = [recent_return(metrics, seed) for seed in seeds]
    silent = [seed for seed, value in zip(seeds, returns, strict=True) if not math.isfinite(value)]
    if silent:
        raise ValueError(f"no episode ended in the last tenth of the updates of seeds {silent}")
    broken = _broken(metrics, seeds)
    return {
        "status": "diverged" if broken else "finished",
        "message": f"the loss of seeds {broken} is not a number" if broken else "",
        "seeds": seeds,
        "returns": returns,
        "learning_rate": config.agent.optimiser.learning_rate,
        "updates": config.updates,
        "steps": int(metrics[STEP].max()),
        "seconds": result.seconds,
        "flops_per_update": _flops(config) if cell.kind == "final" else None,
        "curve": _curve(metrics, seeds, steps),
    }


def _broken(metrics: Mapping[str, np.ndarray], seeds: list[int]) -> list[int]:
    """The seeds whose loss is not finite at the end."""
    losses = [name for name in metrics if name.startswith("losses/")]
    last = metrics["update"] == metrics["update"].max()
    return [
        seed
        for seed in seeds
        if not all(
            np.isfinite(metrics[name][last & (metrics["seed"] == seed)]).all() for name in losses
        )
    ]


def _curve(metrics: Mapping[str, np.ndarray], seeds: list[int], steps: int) -> dict[str, Any]:
    """Return over environment steps; None where no episode has ended yet."""
    grid = np.linspace(0, steps, CURVE_POINTS + 1)[1:]
    curves = [curve(metrics, seed, grid, CURVE_WINDOW * steps) for seed in seeds]
    plain = [[float(v) if math.isfinite(v) else None for v in values] for values in curves]
    return {"steps": [int(point) for point in grid], "returns": plain}


def curve(
    metrics: Mapping[str, np.ndarray], seed: int, grid: np.ndarray, window: float
) -> np.ndarray:
    """Mean return per episode of one seed in the window before each point: [points].

    If no episode ended in the window, the previous value is used; NaN if there is none.
    """
    rows = (metrics["seed"] == seed) & (metrics[EPISODES] > 0)
    steps, episodes = metrics[STEP][rows], metrics[EPISODES][rows].astype(float)
    counts = np.concatenate([[0], np.cumsum(episodes)])
    totals = np.concatenate([[0], np.cumsum(episodes * metrics[RETURN][rows])])
    last = np.searchsorted(steps, grid, side="right")
    first = np.searchsorted(steps, grid - window, side="right")
    first = np.minimum(first, np.maximum(last - 1, 0))  # at least the newest value
    count = counts[last] - counts[first]
    total = totals[last] - totals[first]
    return np.divide(total, count, out=np.full(len(grid), np.nan), where=count > 0)


def _flops(config: TrainConfig) -> float | None:
    """FLOPs of one update of one agent, acting included; None if it cannot be traced."""
    try:
        return make_trainer(config).flops_per_update()
    except Exception:  # a result must not be lost because of its FLOP count
        return None
