"""What is inspected: a rule, and agents at several moments of the lives that they led with it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from discorl import rules
from discorl.agent import frames
from discorl.agent.learner import Learner, LearnerState
from discorl.rules.base import Rule
from discorl.runs import Run
from discorl.runs.metrics import recent_return
from discorl.runs.progress import Progress
from discorl.training.assembly import load_trainer
from discorl.training.compiled.agent import CompiledAgent
from discorl.training.compiled.trainer import CompiledTrainer
from discorl.training.config import TrainConfig
from discorl.training.selection import Checkpoint
from discorl.training.state import TrainState
from discorl.types import Array, Outputs, Params, PyTree, Trajectory, UserError

_T = TypeVar("_T")
START = "start"  # among the rules to compare with: the inspected one before its discovery


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reading:
    """What an agent says along a batch of trajectories, and what the rule is told of it."""

    trajectory: Trajectory  # [T, B]
    outputs: Outputs  # as the loss reads them: [T+1, B, ...], of actions taken [T, B, ...]
    online: Outputs  # summaries for the rule, [T+1, B, ...]
    target: Outputs  # likewise, of the target network; empty if there is none
    logits: Array  # of the policy, [T+1, B, A]


@dataclasses.dataclass(frozen=True)
class Moment:
    """An agent at one moment of its life, and the batch that it is about to learn from."""

    update: int  # updates made so far
    state: LearnerState
    reading: Reading


@dataclasses.dataclass(frozen=True)
class Life:
    """One agent, from its first moment to its latest."""

    seed: int
    moments: tuple[Moment, ...]

    @property
    def latest(self) -> Moment:
        return self.moments[-1]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A rule, and the agents that it trained in one environment."""

    label: str
    config: TrainConfig
    agent: CompiledAgent
    eta: Params
    lives: tuple[Life, ...]
    metrics: Mapping[str, np.ndarray]  # of the training run
    beside: Mapping[str, tuple[Rule, Params]]  # rules to compare with, by label

    @property
    def learner(self) -> Learner:
        return self.agent.learner

    @property
    def best(self) -> Life:
        """The agent that earned most in the last tenth of its updates."""
        earned = [recent_return(self.metrics, life.seed) for life in self.lives]
        return self.lives[int(np.argmax(np.nan_to_num(earned, nan=-np.inf)))]

    @property
    def rule(self) -> Rule:
        return self.agent.learner.rule


def by_agent(subject: Subject, analysis: str, measure: Callable[[Life], _T]) -> list[_T]:
    """What a function measures of each life, with a line of progress for the analysis."""
    found: list[_T] = []
    with Progress(len(subject.lives), "agents", title=analysis, transient=True) as progress:
        for life in subject.lives:
            found.append(measure(life))
            progress.update(len(found))
    return found


def over_agents(subject: Subject, analysis: str, measure: Callable[[Life], PyTree]) -> PyTree:
    """What a function measures of each life, leaves [agents, ...]; dicts become sorted."""
    found = by_agent(subject, analysis, measure)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *found)


def read(learner: Learner, state: LearnerState, eta: Params, trajectory: Trajectory) -> Reading:
    """Asks an agent and its target network along trajectories, [T, B]."""
    details = learner.details(state, eta, trajectory)
    outputs, _ = learner.outputs(state.params, trajectory)
    return Reading(trajectory, outputs, details.online, details.target, details.policy)


def require_agents(agents: Sequence[int], config: TrainConfig) -> range:
    """The seeds of a training; refuses agents that are not among them."""
    seeds = range(config.seed, config.seed + config.seeds)
    for seed in agents:
        if seed not in seeds:
            raise UserError(
                f"agents holds {seed}; expected seeds of the training, {seeds[0]} to {seeds[-1]}"
            )
    return seeds


def load(
    path: Path,
    label: str | None = None,
    beside: Mapping[str, tuple[Rule, Params]] | None = None,
    agents: Sequence[int] = (),
    rule: rules.Given | None = None,
) -> Subject:
    """The agents of a training run, fresh and at each of its checkpoints.

    `agents` are the seeds of those to look at; by default all. A run that was given a rule as an
    object needs it again, as `rule`.
    """
    with Run.open(path, read_only=True) as run:
        trainer = load_trainer(run, rule=rule)
        if not isinstance(trainer, CompiledTrainer):
            raise UserError(
                f"{path}: {trainer.config.env} runs on the host; expected an environment written "
                "in JAX, since analyses act in compiled programs"
            )
        template = Checkpoint.template(jax.eval_shape(trainer.init), trainer.config)
        states = [(0, trainer.init())]
        for update in run.checkpoint_updates():
            restored = run.restore(template, up_to=update)
            assert restored is not None
            states.append((restored[0], jax.tree.map(jnp.asarray, restored[1].state)))
        metrics = run.metrics()
    if len(states) == 1:
        raise UserError(f"{path} has no checkpoint yet, so there is no agent in it")
    agent, eta, config = trainer.agent, trainer.eta, trainer.config
    seeds = require_agents(agents, config)

    def look(state: TrainState) -> Reading:
        state, batch, _ = agent.collect(state)
        batch = frames.with_stacks(batch, agent.config.frame_stack)
        return read(agent.learner, state.learner, eta, batch)

    looking = jax.jit(look)

    def moment(update: int, state: TrainState, index: int) -> Moment:
        own = state if config.seeds == 1 else jax.tree.map(lambda x: x[index], state)
        return Moment(update, own.learner, looking(own))

    lives = [
        Life(seed, tuple(moment(update, state, i) for update, state in states))
        for i, seed in enumerate(seeds)
        if not agents or seed in agents
    ]
    label = label or label_of(config.rule)
    return Subject(label, config, agent, eta, tuple(lives), metrics, beside or {})


def with_start(subject: Subject) -> Subject:
    """The subject beside the rule that its discovery began with.

    Nothing changes for a rule that has no parameters or is its own start, and for Disco, whose
    start is a random network.
    """
    if isinstance(subject.rule, rules.Disco):
        return subject
    start, eta = rules.load(subject.rule)
    if jax.tree.all(jax.tree.map(np.array_equal, eta, subject.eta)):
        return subject
    return dataclasses.replace(subject, beside={START: (start, eta)} | dict(subject.beside))


def label_of(rule: str) -> str:
    """What to call a rule that a text names: a file by its name alone."""
    return Path(rule).stem if rule.endswith(".npz") else rule
