"""The cost of training with a rule."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from discorl.comparison.cells import Cell

Records = Sequence[tuple[Cell, Mapping[str, Any]]]

TITLES = {
    "updates": "updates",
    "flops": "FLOP",
    "seconds": "seconds",
    "sweep_seconds": "seconds of tuning",
}
NOTE = (
    "Updates, FLOP and seconds are those of one run, on average over the environments that count; "
    "seconds are wall time of updates divided by the seeds that trained together, and those of "
    "tuning are of the whole sweep."
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a rule: means over its runs that count, None if unknown; and its sweep."""

    learning_rates: tuple[float, ...]
    steps: float | None
    flops_per_update: float | None
    updates: float | None
    flops: float | None
    seconds: float | None  # of updates, divided by the runs that trained together
    sweep_seconds: float  # of updates, of all runs of the sweep together

    def numbers(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in TITLES}

    def texts(self) -> list[str]:
        """The same numbers, formatted."""
        formats = {"updates": ",.0f", "flops": ".3g", "seconds": ",.1f", "sweep_seconds": ",.1f"}
        return [as_text(value, formats[name]) for name, value in self.numbers().items()]


def as_text(value: float | None, form: str) -> str:
    """A formatted number, or a dash for None."""
    return "-" if value is None else format(value, form)


def cost(final: Records, sweep: Records) -> Cost:
    """The cost of a rule."""
    runs = [(record, cell.seeds) for cell, record in final for _ in range(cell.seeds)]
    flops = [record["flops_per_update"] for record, _ in runs]
    updates = [record["updates"] for record, _ in runs]
    return Cost(
        learning_rates=tuple(sorted({record["learning_rate"] for record, _ in runs})),
        steps=_mean([record["steps"] for record, _ in runs]),
        flops_per_update=_mean(flops),
        updates=_mean(updates),
        flops=_mean([f and f * count for f, count in zip(flops, updates, strict=True)]),
        seconds=_mean([record["seconds"] and record["seconds"] / n for record, n in runs]),
        sweep_seconds=math.fsum(record.get("seconds") or 0.0 for _, record in sweep),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
