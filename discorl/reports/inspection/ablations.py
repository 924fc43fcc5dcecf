r"""What agents earn without parts of a Disco rule.

As in Figs. 3c and 4e of Oh et al., Nature 648, 2025. Agents are trained as those of the inspected
run were, with the same seeds, by the same rule without one of its parts (`disco.ABLATIONS`): inputs
of the meta-network and terms of the loss become zero. The meta-network was discovered with all of
its parts and is not discovered again, unlike in the paper's Fig. 3c: this shows what the rule
relies on, not what a rule could do without.
"""

import dataclasses

import numpy as np

from discorl.reports.charts import IntervalChart, LineChart, thinned
from discorl.reports.inspection.findings import DoesNotApplyError, Findings, line, row, text_of
from discorl.reports.inspection.subject import Subject
from discorl.rules.disco import ABLATIONS, Disco
from discorl.runs.metrics import RETURN, STEP, recent_return
from discorl.training.loop import train

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
    for part in ABLATIONS:
        if part not in rule.ablated:
            kept = "+".join(sorted({part, *rule.ablated}))
            ablated = dataclasses.replace(rule, without=kept)
            result = train(subject.config, rule=(ablated, subject.eta))
            tables[_LABELS[part]] = result.metrics
    lines, rows, facts = [], [], {}
    for i, (label, metrics) in enumerate(tables.items()):
        lines.append(line(label, i, *thinned(metrics, STEP, RETURN, _POINTS)))
        recent = np.array([recent_return(metrics, life.seed) for life in subject.lives])
        rows.append(row(label, recent))
        facts[label] = text_of(recent)
    return Findings(
        facts,
        (
            LineChart(
                "ablations",
                "Return while learning",
                "environment steps",
                "return per episode",
                tuple(lines),
            ),
            IntervalChart("ablations-return", "Return, last tenth", (("return", tuple(rows)),)),
        ),
    )
