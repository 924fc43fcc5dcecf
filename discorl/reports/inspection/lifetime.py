r"""Does a rule change its mind as agents age?

The response R(A*, rho*) of `response`, at several moments of an agent's life: before its first
update and at each checkpoint. What changes from moment to moment is the agent, its data, and what
the rule remembers of its life. To tell the last apart, the latest agent is looked at again with the
rule's memory of its first moment: Disco's meta-RNN state, the updates that a lean rule has counted,
or the whole state of another rule. The share

    |R - R'|_2 / |R|_2

says how much of the response the memory makes.
"""

import dataclasses

import jax
import numpy as np

from discorl.reports.inspection import readings, response
from discorl.reports.inspection.findings import Findings, text_of
from discorl.reports.inspection.readings import Asked
from discorl.reports.inspection.subject import Life, Subject
from discorl.rules.disco import DiscoState
from discorl.rules.lean import LeanState
from discorl.types import PyTree


def analyse(subject: Subject) -> Findings:
    """The responses of all agents at all moments."""
    found: dict[str, list[np.ndarray]] = {}
    for life in subject.lives:
        for moment in life.moments:
            label = f"after {moment.update} updates"
            asked = readings.ask(subject, moment)
            found.setdefault(label, []).append(response.responses(asked, life))
        swapped = with_first_memory(readings.ask(subject, life.latest), life)
        if swapped is not None:
            label = f"after {life.latest.update}, with the first memory"
            found.setdefault(label, []).append(response.responses(swapped, life))
    grids = {label: np.stack(each) for label, each in found.items()}
    gain = len(response.ADVANTAGES) - 3
    charts = (
        response.chart("lifetime-advantage", "On policy", grids),
        response.chart(
            "lifetime-ratio", f"Advantage +{response.ADVANTAGES[gain]:g} sigma", grids, row=gain
        ),
    )
    facts = {
        f"{label}: R² of a straight line in the advantage": text_of(response.linearity(grid))
        for label, grid in grids.items()
    }
    last = grids[f"after {subject.lives[0].latest.update} updates"]
    other = grids.get(f"after {subject.lives[0].latest.update}, with the first memory")
    if other is None:
        facts["the rule's memory"] = "it keeps none"
    else:
        apart, size = (np.nansum(np.square(x), axis=(1, 2)) for x in (last - other, last))
        facts["share of the response that the memory makes"] = text_of(np.sqrt(apart / size))
    return Findings(facts, charts)


def with_first_memory(asked: Asked, life: Life) -> Asked | None:
    """The rule with what it remembered at the first moment; None if it remembers nothing."""
    first: PyTree = life.moments[0].state.rule
    state = asked.state
    if not jax.tree.leaves(state):
        return None
    if isinstance(state, DiscoState):
        first = dataclasses.replace(state, meta_rnn=first.meta_rnn)
    elif isinstance(state, LeanState):
        first = dataclasses.replace(state, updates=first.updates)
    return dataclasses.replace(asked, state=first)
