"""Looking inside a rule: what it predicts, what it reads, and what it does to a policy."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from discorl import rules
from discorl.reports.inspection import (
    ablations,
    attention,
    bootstrapping,
    coefficients,
    future,
    gradient,
    lifetime,
    predictions,
    response,
    sensitivity,
    subject,
    writing,
)
from discorl.reports.inspection.findings import Analysis, DoesNotApplyError, Findings
from discorl.reports.inspection.subject import Subject
from discorl.runs import compilation
from discorl.runs.progress import Progress, waiting
from discorl.training.config import TrainConfig, configure
from discorl.training.loop import train
from discorl.types import UserError, specs

RUN = "run"  # in the folder of an inspection: the agents that it trained
BESIDE = (subject.START, "actor_critic", "ppo", "muesli")


# A new analysis is a module of its own, whose docstring has the formulas, and an entry here.
ANALYSES: dict[str, Analysis] = {
    "predictions": Analysis(
        "Predictions over an episode",
        "What an agent outputs during an episode, below the frames.",
        predictions.analyse,
    ),
    "attention": Analysis(
        "Attention to observations",
        "How strongly y, the policy and the value depend on each cell of the observation.",
        attention.analyse,
    ),
    "future": Analysis(
        "What predictions know of the future",
        "Small probes predict the policy's entropy and large rewards, k steps ahead, from what an "
        "agent says now. Controls: an agent before its first update, and shuffled targets.",
        future.analyse,
    ),
    "bootstrapping": Analysis(
        "Bootstrapping",
        "How much the targets at t move when the predictions at t + k are those of another "
        "trajectory.",
        bootstrapping.analyse,
    ),
    "ablations": Analysis(
        "Without its parts",
        "What agents earn when parts of the rule are removed, without discovering it anew.",
        ablations.analyse,
    ),
    "sensitivity": Analysis(
        "Sensitivity to every input",
        "How much the targets change when one input is replaced by that of another trajectory.",
        sensitivity.analyse,
    ),
    "response": Analysis(
        "What it does to a policy",
        "How the log-probability of the action taken changes, over the advantage of the action and "
        "over its probability ratio. Other rules see the same trajectories and values. Start is "
        "the rule before its discovery.",
        response.analyse,
    ),
    "lifetime": Analysis(
        "Over a lifetime",
        "The same response at several moments of a life, and with the rule's memory of the first.",
        lifetime.analyse,
    ),
    "gradient": Analysis(
        "Is it the gradient of anything?",
        "How far the Jacobian of an update is from symmetric, term by term.",
        gradient.analyse,
    ),
    "coefficients": Analysis(
        "Coefficients over a life",
        "What a lean rule multiplies the coefficients of Muesli's update by; 1 is Muesli.",
        coefficients.analyse,
    ),
}


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What came of an inspection."""

    page: Path
    subject: Subject
    outcomes: Mapping[str, Findings | str]  # by analysis; a reason where it does not apply


@waiting("discorl.inspect")
def inspect(
    rule_or_run: rules.Given | os.PathLike[str],
    env: str | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    only: Sequence[str] = (),
    beside: Sequence[str] = BESIDE,
    seeds: int = 3,
    agents: Sequence[int] = (),
    **settings: Any,
) -> Inspection:
    """Trains agents with a rule, or loads those of a run, and looks at what the rule does.

    Args:
        rule_or_run: a rule, as `discorl.train` takes it, or the directory of a training run.
        env: name of the environment, in JAX; by default Catch. A run has its own.
        out: folder for the page, its figures and the agents; by default `inspection` in the run.
        only: names of analyses; by default all.
        beside: rules to draw in the same pictures. `start` is the rule that a discovery begins
            with, where that is a designed one: Muesli for a lean rule, and none for Disco.
        seeds: how many agents to train; a run has its own.
        agents: seeds of the agents to look at, such as those that have learned; by default all.
        **settings: of the training, such as `preset` and `updates`; a run has its own.

    Returns:
        the findings, and the page that shows them.

    Raises:
        UserError: a name is unknown, the environment is on the host, or the run has no agent yet.

    Example:
        ```python
        found = discorl.inspect("disco103", "catch", out="inside", only=["response"])
        print(found.page, found.outcomes["response"].facts)
        ```
    """
    specs.require_known("analysis", only, ANALYSES)
    compilation.enable_cache()
    others = {subject.label_of(text): rules.load(text) for text in beside if text != subject.START}
    label, own = None, None
    if not isinstance(rule_or_run, rules.Rule | tuple) and Path(rule_or_run).is_dir():
        run = Path(rule_or_run)
        given = sorted(settings) + ["env"] * (env is not None)
        if given:
            raise UserError(f"{run} is a run with its own settings; got {', '.join(given)} besides")
        folder = run / "inspection" if out is None else Path(out)
    else:
        if out is None:
            raise UserError("out is None; expected a folder for the agents and the page")
        folder = Path(out)
        run = folder / RUN
        own = rule_or_run if isinstance(rule_or_run, rules.Rule | tuple) else None
        config = _configure(rule_or_run, env, seeds, settings)  # type: ignore[arg-type]
        subject.require_agents(agents, config)
        train(config, out=run, rule=own)
        label = subject.label_of(config.rule)
    inspected = subject.load(run, label, others, agents, own)
    if subject.START in beside:
        inspected = subject.with_start(inspected)
    names = [name for name in ANALYSES if not only or name in only]
    outcomes: dict[str, Findings | str] = {}
    with Progress(len(names), "analyses") as progress:
        for i, name in enumerate(names):
            try:
                outcomes[name] = found = ANALYSES[name].run(inspected)
                writing.write_figures(folder, inspected.label, found)
            except DoesNotApplyError as reason:
                outcomes[name] = str(reason)
            progress.update(i + 1)
    page = writing.write_page(folder, inspected, outcomes, ANALYSES)
    return Inspection(page, inspected, outcomes)


def _configure(
    rule: rules.Given, env: str | None, seeds: int, settings: Mapping[str, Any]
) -> TrainConfig:
    """The settings of a training that keeps its agents halfway and at the end."""
    config = configure(rule, env, seeds=seeds, **settings)
    if "checkpoint_every" in settings:
        return config
    half = -(-config.updates // 2)  # two checkpoints, of which none is dropped
    return dataclasses.replace(config, log_every=1, checkpoint_every=half)
