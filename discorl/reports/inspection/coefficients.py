r"""The coefficients of a lean rule over an agent's life.

Each coefficient of Muesli's update is multiplied by exp(gain * row . features), where the features
are functions of the share of life n / N, of the life's length log N, and of the size of advantages
(`rules.lean`). Drawn are these multipliers over n / N for several N, with advantages of the size
that the inspected agents have. 1 is Muesli. Lean rules beside it, such as its start, are drawn for
one N.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from discorl.reports.charts import Line, LineChart
from discorl.reports.inspection.findings import DoesNotApplyError, Findings
from discorl.reports.inspection.subject import Subject
from discorl.rules.lean import GAINS, Lean, LeanState

LENGTHS = (150, 450, 1350, 4000)  # N
BESIDE = 450  # N of rules beside the inspected one
SHARES = np.linspace(0, 1, 41)  # n / N


def analyse(subject: Subject) -> Findings:
    """Multipliers of all coefficients."""
    rule = subject.rule
    if not isinstance(rule, Lean):
        raise DoesNotApplyError("it has no coefficients over a life; lean rules have")
    state = subject.lives[0].latest.state.rule
    found = {length: schedules(rule, subject.eta, state, length) for length in LENGTHS}
    others = {
        label: schedules(other, eta, state, BESIDE)
        for label, (other, eta) in subject.beside.items()
        if isinstance(other, Lean)
    }
    charts, facts = [], {}
    for name in GAINS:
        drawn = {f"N = {length}": each for length, each in found.items()}
        drawn |= {f"{label}, N = {BESIDE}": each for label, each in others.items()}
        lines = tuple(
            Line(0, SHARES, each[name], label=label, style=i)
            for i, (label, each) in enumerate(drawn.items())
        )
        charts.append(LineChart(f"coefficient-{name}", name, "share of life, n / N", "", lines))
        ends = [each[name][[0, -1]] for each in found.values()]
        facts[name] = "; ".join(
            f"N = {length}: {a:.2f} to {b:.2f}" for length, (a, b) in zip(found, ends, strict=True)
        )
    return Findings(facts, tuple(charts))


def schedules(rule: Lean, eta: dict, state: LeanState, length: int) -> dict[str, np.ndarray]:
    """Multipliers of each coefficient over the shares of a life of `length` updates."""

    def at(updates: jax.Array) -> dict[str, jax.Array]:
        # Fractions of updates do no harm here, and make all lives of equally many points.
        moment = dataclasses.replace(state, updates=updates, lifetime=jnp.float32(length))
        return rule.coefficients(eta, moment)

    found = jax.vmap(at)(jnp.asarray(SHARES * length, jnp.float32))
    return {name: np.asarray(x) for name, x in found.items()}
