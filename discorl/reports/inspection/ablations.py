r"""What agents earn without parts of a Disco rule.

As in Figs. 3c and 4e of Oh et al., Nature 648, 2025. Agents are trained as those of the inspected
run were, with the same seeds, by the same rule without one of its parts (`disco.ABLATIONS`): inputs
of the meta-network and terms of the loss become zero. The meta-network was discovered with all of
its parts and is not discovered again, unlike in the paper's Fig. 3c: this shows what the rule
relies on, not what a rule could do without.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl.reports.charts import IntervalChart, LineChart, thinned
from discorl.reports.inspection.findings import DoesNotApplyError, Findings, line, row, text_of
from discorl.reports.inspection.subject import Subject
from discorl.rules import meta_network
from discorl.rules.disco import ABLATIONS, Disco, DiscoState
from discorl.rules.meta_network import MetaState
from discorl.runs.metrics import RETURN, STEP, recent_return
from discorl.training.compiled.trainer import ProgramCache
from discorl.training.loop import train
from discorl.types import Array, Metrics, Outputs, Params, Trajectory

WHOLE = "whole rule"
_LABELS = {
    "yz": "without y and z",
    "q": "without q",
    "aux_pi": "without p",
    "bootstrapping": "without bootstrapping",
    "meta_rnn": "without the meta-RNN",
}
_POINTS = 40


def analyse(subject: Subject) -> Findings:
    """Trains agents with every part left out in turn."""
    rule = subject.rule
    if not isinstance(rule, Disco):
        raise DoesNotApplyError("parts can be taken out of Disco rules only")
    tables = {WHOLE: subject.metrics}
    programs = ProgramCache()
    for part in ABLATIONS:
        if part not in rule.ablated:
            without = switched(rule, subject.eta, part)
            tables[_LABELS[part]] = train(subject.config, rule=without, programs=programs).metrics
    lines, rows, facts = [], [], {}
    for i, (label, metrics) in enumerate(tables.items()):
        lines.append(line(label, i, *thinned(metrics, STEP, RETURN, _POINTS)))
        recent = np.array([recent_return(metrics, life.seed) for life in subject.lives])
        rows.append(row(label, recent))
        facts[label] = text_of(recent)
    axes = "environment steps", "return per episode"
    curves = LineChart("ablations", "Return while learning", *axes, tuple(lines))
    bars = IntervalChart("ablations-return", "Return, last tenth", (("return", tuple(rows)),))
    return Findings(facts, (curves, bars))


# --- one program for all parts --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Switched(Disco):
    """A Disco rule whose parameters say which of its parts are left out.

    It computes what `Disco(without=part)` does, but all parts share one compiled program, and
    compiling takes several times as long as training on a small task.
    """

    def summarise(self, eta: Params, name: str, output: Array) -> Array | None:
        return super().summarise(eta["rule"], name, output)

    def ask(
        self, eta: Params, state: MetaState, inputs: meta_network.Inputs
    ) -> tuple[dict[str, Array], MetaState]:
        """See `Disco`; the meta-RNN reads the targets of y through the last layer of its y_net."""
        rule, kept = eta["rule"], eta["kept"]
        silent = {
            name: _keeping(name, kept, 0) for part in ABLATIONS for name in ABLATIONS[part][0]
        }
        told = {name: share * getattr(inputs, name) for name, share in silent.items()}
        meta = rule["meta_rnn"]
        *layers, last = meta["y_net"]
        last = jax.tree.map(lambda x: kept["yz"] * x, last)
        rule = rule | {"meta_rnn": meta | {"y_net": type(meta["y_net"])((*layers, last))}}
        state = jax.tree.map(lambda x: kept["meta_rnn"] * x, state)
        hats, state = super().ask(rule, state, dataclasses.replace(inputs, **told))
        return hats, jax.tree.map(lambda x: kept["meta_rnn"] * x, state)

    def targets(
        self,
        eta: Params,
        state: DiscoState,
        trajectory: Trajectory,
        online: Outputs,
        target: Outputs,
    ) -> tuple[Any, DiscoState, Metrics]:
        """See `Disco`; with them go the weights of the terms of the loss, [T, B] each."""
        targets, state, metrics = super().targets(eta, state, trajectory, online, target)
        terms = sorted({name for part in ABLATIONS for name in ABLATIONS[part][1]})
        shape = trajectory.reward.shape
        weights = {name: jnp.broadcast_to(_keeping(name, eta["kept"], 1), shape) for name in terms}
        return (targets, weights), state, metrics

    def loss(self, outputs: Outputs, targets: Any, trajectory: Trajectory) -> dict[str, Array]:
        hats, weights = targets
        terms = super().loss(outputs, hats, trajectory)
        return {name: weights.get(name, 1) * term for name, term in terms.items()}


def switched(rule: Disco, eta: Params, *parts: str) -> tuple[Switched, Params]:
    """The rule without some of its parts."""
    settings = {field.name: getattr(rule, field.name) for field in dataclasses.fields(Disco)}
    kept = {part: jnp.float32(part not in parts) for part in ABLATIONS}
    return Switched(**settings), {"rule": eta, "kept": kept}


def _keeping(name: str, kept: dict[str, Array], place: int) -> Array:
    """1 unless a part is left out that has an input (place 0) or a term of the loss (1)."""
    parts: Iterable[Array] = (kept[part] for part in ABLATIONS if name in ABLATIONS[part][place])
    return math.prod(parts, start=jnp.float32(1))
