r"""Does a rule change its mind as agents age?

The response R(A*, rho*) of `response`, at several moments of an agent's life: before its first
update and at each checkpoint. What changes from moment to moment is the agent, its data, and what
the rule remembers of its life. To tell the last apart, the latest agent is looked at again with the
rule's memory of its first moment: Disco's meta-RNN state, the updates that a lean rule has counted,
or the whole state of another rule. The share

    |R - R'|_2 / |R|_2

says how much of the response the memory makes. A rule beside it that differs in its parameters
alone, such as the start of a discovery, is asked at the same moments: the ratio of the sizes |R|_2
says when in a life the rule does more than its start, and when less.
"""

import dataclasses

import jax
import numpy as np

from discorl.reports.inspection import readings, response
from discorl.reports.inspection.findings import Findings, text_of
from discorl.reports.inspection.readings import Asked
from discorl.reports.inspection.subject import Life, Moment, Subject, by_agent
from discorl.rules.disco import DiscoState
from discorl.rules.lean import LeanState
from discorl.types import PyTree

Grids = dict[str, np.ndarray]  # R by moment, [(agents,) advantages, ratios]


def analyse(subject: Subject) -> Findings:
    """The responses of all agents at all moments."""
    own, by_rule = _responses(subject)
    latest = _moment(subject.lives[0].latest)
    drawn = own | {f"{rule}, {latest}": grids[latest] for rule, grids in by_rule.items()}
    gain = len(response.ADVANTAGES) - 3
    charts = (
        response.chart("lifetime-advantage", "On policy", drawn),
        response.chart(
            "lifetime-ratio", f"Advantage +{response.ADVANTAGES[gain]:g} sigma", drawn, row=gain
        ),
    )
    facts = {
        f"{moment}: R² of a straight line in the advantage": text_of(response.linearity(grid))
        for moment, grid in own.items()
    }
    for rule, grids in by_rule.items():
        for moment, grid in grids.items():
            sizes = response.size(own[moment]) / response.size(grid)
            facts[f"{moment}: size of the response, relative to {rule}"] = text_of(sizes)
    swapped = own.get(_swapped(latest))
    if swapped is None:
        facts["the rule's memory"] = "it keeps none"
    else:
        share = response.size(own[latest] - swapped) / response.size(own[latest])
        facts["share of the response that the memory makes"] = text_of(share)
    return Findings(facts, charts)


def _moment(moment: Moment) -> str:
    return f"after {moment.update} updates"


def _swapped(moment: str) -> str:
    return f"{moment}, with the first memory"


def _responses(subject: Subject) -> tuple[Grids, dict[str, Grids]]:
    """Of the rule, with the memory of its first moment, too; and of rules akin, by label."""

    def measure(life: Life) -> tuple[Grids, dict[str, Grids]]:
        own: Grids = {}
        kin: dict[str, Grids] = {}
        for moment in life.moments:
            asked = readings.ask(subject, moment)
            own[_moment(moment)] = response.responses(asked, life)
            for other in readings.kin(subject, moment):
                grids = kin.setdefault(other.label, {})
                grids[_moment(moment)] = response.responses(other, life, asked)
        swapped = with_first_memory(readings.ask(subject, life.latest), life)
        if swapped is not None:
            own[_swapped(_moment(life.latest))] = response.responses(swapped, life)
        return own, kin

    owns, kins = zip(*by_agent(subject, "lifetime", measure), strict=True)
    kin = {label: response.stacked([each[label] for each in kins]) for label in kins[0]}
    return response.stacked(owns), kin


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
