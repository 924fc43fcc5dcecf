"""The main panels of a discovery, on its plot and on its page."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Literal

from discorl.runs.metrics import BEST_SCORE, RETURN, SCORE

Scale = Literal["linear", "log", "symlog"]  # symlog: linear up to `LINEAR`, logarithmic beyond
LINEAR = 1.0


@dataclasses.dataclass(frozen=True)
class Panel:
    """Metrics that belong in one plot."""

    title: str
    about: str  # how to read it, in a sentence
    columns: Mapping[str, str]  # labels by name of the metric
    table: str = "metrics"
    scale: Scale = "linear"  # used if the range of values suits it

    def fitting_scale(self, low: float, high: float) -> Scale:
        """The scale for values in this range."""
        if not math.isfinite(low) or not math.isfinite(high):
            return "linear"
        if self.scale == "log":
            return "log" if low > 0 else "linear"
        if self.scale == "symlog":
            return "symlog" if max(-low, high) > 5 * LINEAR else "linear"
        return "linear"


def of_discovery(names: Iterable[str]) -> tuple[Panel, ...]:
    """The six panels of a discovery, by meta-gradients or by evolution."""
    columns = list(names)
    by_evolution = any(name.startswith("meta/spread/") for name in columns)
    return _of_evolution(columns) if by_evolution else _of_meta_gradients(columns)


_SCORES = Panel(
    "score with fresh agents",
    "Fresh agents trained by the rule alone: 0 is random play, 1 is optimal.",
    {SCORE: "score", BEST_SCORE: "best so far"},
    table="evaluation",
)


def _of_evolution(names: Iterable[str]) -> tuple[Panel, ...]:
    """Panels of columns such as "charts/score/ENVIRONMENT"."""
    return (
        Panel(
            "score of a generation",
            "Mean over perturbed rules: 0 is random play, 1 is optimal. Short lives earn less.",
            _environments(names, f"{SCORE}/"),
        ),
        _SCORES,
        Panel(
            "mean over environments",
            "It varies with the lengths of lives, which every generation draws again.",
            {SCORE: "score"},
        ),
        Panel(
            "cosine of two halves' gradients",
            "Near 0, a generation's gradient is mostly noise, which momentum averages out.",
            {"meta/agreement": "cosine"},
        ),
        Panel(
            "spread of differences within pairs",
            "Standard deviation. At 0, perturbations change nothing that lives depend on.",
            _environments(names, "meta/spread/"),
        ),
        Panel("movement of the rule", "Norm of a generation's step.", {"meta/moved": "norm"}),
    )


def _of_meta_gradients(names: Iterable[str]) -> tuple[Panel, ...]:
    """Panels of columns such as "charts/episodic_return/ENVIRONMENT"."""
    entropies = {"policy/entropy": "policy", "rule/pi_hat_entropy": "its target, pi_hat"}
    parts = {
        "meta/policy_gradient": "policy gradient",
        "meta/entropy_penalty": "entropy bonuses",
        "meta/target_penalty": "target regularisers",
    }
    return (
        Panel(
            "return, mean over agents",
            "Return of the agents while they learn. It drops when agents start a new life.",
            _environments(names, f"{RETURN}/"),
            scale="symlog",
        ),
        _SCORES,
        Panel(
            "norm of the meta-gradient",
            "Mean over agents. Steady growth is a sign that the rule becomes unstable.",
            {"meta/gradient_norm": "norm"},
            scale="log",
        ),
        Panel(
            "cosine of two agents' meta-gradients",
            "Near 0, agents disagree and steps are mostly noise.",
            {"meta/gradient_cosine": "cosine"},
        ),
        Panel(
            "entropy, mean over agents",
            "At 0 a policy has become deterministic and no longer explores.",
            entropies,
        ),
        Panel(
            "parts of the meta-loss", "Terms of the meta-loss, which meta-steps minimise.", parts
        ),
    )


def _environments(names: Iterable[str], prefix: str) -> dict[str, str]:
    """The columns of a metric by environment, labelled with the environments."""
    return {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}
