"""Training: a run from its settings to its results, and the loop on the host around updates."""

import contextlib
import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl import compilation, envs, frames, memory, plots, rules
from discorl.config import LONGEST_CALL, Config, configure
from discorl.envs import Environment, Reference, references
from discorl.envs.host import EnvironmentFailure, HostEnvironment
from discorl.files import write_errors_reported
from discorl.host_training import EPISODE, HostProgram, HostTrainer
from discorl.interrupts import interrupts
from discorl.learning import Learner
from discorl.networks import Network, standard
from discorl.networks.prepared import prepared
from discorl.optimisation import Optimisation, with_learning_rate
from discorl.progress import Progress
from discorl.runs import Run, check_settings, check_source
from discorl.trainers import CompiledProgram, Program, Programs, Trainer, TrainState
from discorl.types import OutputSpec, Params, PyTree, UserError

NetworkFactory = Callable[[OutputSpec, PyTree], Network]

RULE_FILE = "rule.npz"  # in a run directory: its copy of the learned rule
CALL_SECONDS = 1.0  # how long a call should take, so that progress shows and Ctrl-C is heard
RECENT = 0.1  # share of the updates so far, the last ones, whose mean return is reported


def build(
    config: Config,
    environment: Environment | HostEnvironment,
    network: NetworkFactory | None = None,
    rule_file: Path | None = None,
) -> tuple[Trainer | HostTrainer, Params]:
    """Puts a trainer together from its settings.

    Args:
        config: the settings.
        environment: the task.
        network: makes a network from the rule's outputs and the observation's shapes; by default
            the standard one.
        rule_file: file of the rule, in place of where `config` would have it looked for.

    Returns:
        the trainer; the rule's parameters.
    """
    rule, eta = rules.load(
        config.rule, file=rule_file, rules_path=config.rules_path, discount=config.discount
    )
    if config.batch % rule.minibatches:
        raise UserError(
            f"batch is {config.batch}; rule {config.rule!r} needs a multiple of its "
            f"{rule.minibatches} minibatches"
        )
    gradient_steps = rule.epochs * rule.minibatches
    steps_per_update = config.environments * config.unroll
    optimisation = Optimisation(
        learning_rate=config.learning_rate,
        end_learning_rate=config.end_learning_rate,
        schedule=config.schedule,
        warmup=round(config.warmup_steps / steps_per_update * gradient_steps),
        steps=config.updates * gradient_steps,
        weight_decay=config.weight_decay,
        max_abs_update=config.max_abs_update,
        max_gradient_norm=config.max_gradient_norm,
        adam_epsilon=config.adam_epsilon,
    )
    spec = rule.outputs(environment.num_actions)
    seen = frames.stacked(environment.observation, config.frame_stack)
    if isinstance(environment, HostEnvironment):
        seen = environment.shown(seen)
    if network is None:
        net = standard(
            spec,
            seen,
            torso=config.torso,
            hidden=config.hidden,
            filters=config.filters,
            action_lstm=config.action_lstm,
            action_hidden=config.action_hidden,
            core=config.core,
        )
    else:
        net = network(spec, seen)
    if isinstance(environment, HostEnvironment):
        net = prepared(net, environment.prepare)
    learner = Learner(
        rule, net, optimisation.optimizer(rate_in_state=True), environment.num_actions
    )
    eta = jax.tree.map(jnp.asarray, eta)
    if not isinstance(environment, HostEnvironment):
        return Trainer(config, environment, learner), eta
    if config.seeds > 1:
        raise UserError(
            f"seeds is {config.seeds}; expected 1, for {config.env} runs on the host, where one "
            "agent is trained a run: start one run for each seed"
        )
    return HostTrainer(config, environment, learner), eta


def initial_state(trainer: Trainer | HostTrainer, programs: Programs | None = None) -> TrainState:
    """The state before the first update; with several seeds, every leaf has a leading axis.

    Args:
        trainer: the agents' training.
        programs: those compiled so far.
    """
    seeds = range(trainer.config.seed, trainer.config.seed + trainer.config.seeds)
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    if isinstance(trainer, HostTrainer):
        return jax.jit(trainer.init)(keys[0])
    init = (programs or Programs()).init(trainer)
    state = init(keys if len(keys) > 1 else keys[0])
    return with_learning_rate(state, trainer.config.learning_rate)


# --- the loop on the host -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What training leaves behind."""

    config: Config
    state: TrainState  # with several seeds, every leaf has a leading axis
    metrics: dict[str, np.ndarray]  # columns of the table of metrics
    path: Path | None  # the run directory
    finished: bool  # False: stopped by the user; the run can be resumed
    seconds: float  # that updates took, compilation apart
    reference: Reference | None = None  # the returns that make scores of 0 and 1, if known

    def recent_return(self) -> np.ndarray:
        """Mean return over the last tenth of the updates, for each seed."""
        return np.array([recent_return(self.metrics, seed) for seed in seeds_of(self.metrics)])


def seeds_of(metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """The seeds that a table of metrics holds."""
    return np.unique(metrics["seed"])


def recent_return(metrics: Mapping[str, np.ndarray], seed: int) -> float:
    """Mean return of one seed over the last tenth of the updates; NaN if no episode ended."""
    latest = metrics["update"] > (1 - RECENT) * metrics["update"].max()
    rows = (metrics["seed"] == seed) & latest
    values, episodes = metrics["return"][rows], metrics["episodes"][rows]
    seen = episodes > 0
    return float(np.average(values[seen], weights=episodes[seen])) if seen.any() else math.nan


def train(
    config: Config | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    environment: Environment | HostEnvironment | None = None,
    network: NetworkFactory | None = None,
    on_rows: Callable[[list[dict[str, float]]], None] | None = None,
    programs: Programs | None = None,
    **settings: Any,
) -> TrainResult:
    """Trains agents.

    Args:
        config: all settings; or else give them one by one.
        out: the run directory to make; None keeps nothing on disk.
        resume: a run directory to go on with, in place of settings.
        environment: an environment of your own, in place of one by name.
        network: makes a network of your own from the rule's `OutputSpec` and the observation's
            shapes and dtypes.
        on_rows: called with new rows of metrics as they come.
        programs: those compiled in other runs, which this one may share and adds to.
        **settings: fields of `Config`; see `discorl.configure`.

    Returns:
        the trained agents and their metrics.

    Example:
        result = discorl.train(rule="ppo", env="catch", seed=1, out="runs/ppo")
        print(result.recent_return())
    """
    check_source(config, settings, out=out, resume=resume)
    compilation.enable_cache()
    with contextlib.ExitStack() as stack:
        run = None
        if resume is not None:
            run = stack.enter_context(Run.open(resume))
            trainer, eta = reopen(run, environment, network)
        else:
            config = config or configure(**settings)
            trainer, eta = build(config, environment or envs.make(config.env), network)
        template = jax.eval_shape(lambda: initial_state(trainer))
        memory.check_replay(trainer.config, template.replay)
        if out is not None:
            own = {"environment": environment is not None, "network": network is not None}
            rule = rules.find(trainer.config.rule, trainer.config.rules_path)
            described = trainer.config.as_dict() | {"own": own}
            run = stack.enter_context(Run.create(out, described, copies={RULE_FILE: rule}))
        if environment is not None or network is not None:
            programs = None  # which are told apart by names
        return _Loop(trainer, eta, run, template, on_rows, programs).run()


def reopen(
    run: Run,
    environment: Environment | HostEnvironment | None,
    network: NetworkFactory | None,
) -> tuple[Trainer | HostTrainer, Params]:
    """Puts the trainer of an existing run together again.

    Args:
        run: the run.
        environment: the environment, if the run was given one of its own.
        network: the network, likewise.

    Raises:
        UserError: the run is of another kind or version, or needs something of its own.
    """
    if run.kind != "train":
        raise UserError(f"{run.path} holds a run of `{run.kind}`; expected one of `train`")
    settings = dict(run.config)
    own = settings.pop("own", {})
    for name, given in (("environment", environment), ("network", network)):
        if own.get(name) and given is None:
            raise UserError(
                f"{run.path} was made in Python with a {name} of its own: give it again, as "
                f"`{name}=...`"
            )
    check_settings(run, settings, Config)
    config = Config(**settings)
    kept = run.path / RULE_FILE
    rule_file = kept if kept.exists() else None
    return build(config, environment or envs.make(config.env), network, rule_file)


class _Loop:
    """Calls the compiled program until the run is done; logs, saves and listens for Ctrl-C."""

    def __init__(
        self,
        trainer: Trainer | HostTrainer,
        eta: Params,
        run: Run | None,
        template: TrainState,  # shapes and dtypes of a state
        on_rows: Callable[[list[dict[str, float]]], None] | None,
        programs: Programs | None,
    ) -> None:
        self._trainer = trainer
        self._config = trainer.config
        self._eta = eta
        self._run = run
        self._template = template
        self._on_rows = on_rows
        self._programs = programs
        self._reference = references.of(trainer.environment)  # now, while nothing can be lost
        self._rows: list[dict[str, float]] = []
        self._seconds = 0.0

    def run(self) -> TrainResult:
        config = self._config
        done, state = self._start()
        if done == config.updates:
            return self._finish(state, finished=True)
        stopped = False
        saved = done
        rate = 0.0  # updates a second
        with (
            contextlib.closing(self._program(state, done)) as program,
            Progress(config.updates) as progress,
            interrupts() as interrupted,
        ):
            while done < config.updates and not stopped:
                start = time.perf_counter()
                try:
                    state, metrics, count = program(state, self._call_length(done, rate))
                except EnvironmentFailure as error:
                    raise self._give_up(done, saved, state, error) from error
                self._log(done, count, metrics)
                elapsed = time.perf_counter() - start
                self._seconds += elapsed
                rate = count / elapsed
                done += count
                stopped = interrupted()
                if done == config.updates or stopped or done % config.checkpoint_every == 0:
                    self._save(done, state)
                    saved = done
                progress.update(done, {"return": self._recent_return()})
        return self._finish(state, finished=done == config.updates)

    def _start(self) -> tuple[int, TrainState]:
        if self._run is not None:
            restored = self._run.restore(self._template)
            if restored is not None:
                columns = self._run.metrics()
                names = list(columns)
                self._rows = [
                    dict(zip(names, row, strict=True))
                    for row in zip(*columns.values(), strict=True)
                ]
                return restored[0], jax.tree.map(jnp.asarray, restored[1])
        return 0, initial_state(self._trainer, self._programs)

    def _program(self, state: TrainState, done: int) -> Program:
        if isinstance(self._trainer, Trainer):
            return CompiledProgram(self._trainer, self._eta, state, self._programs)
        if done:
            # The rest of a run is resumed bit for bit; these cannot be.
            message = f"the environments of {self._config.env} start anew, with other seeds"
            print(f"going on from update {done}: {message}", file=sys.stderr)
        return HostProgram(self._trainer, self._eta, state, done)

    def _give_up(
        self, done: int, saved: int, state: TrainState, error: EnvironmentFailure
    ) -> EnvironmentFailure:
        """Saves what was learned before an environment failed, and says how to go on."""
        if done > saved:
            self._save(done, state)
        if self._run is None:
            return error
        return EnvironmentFailure(
            f"{error}. The run is saved as of update {done}; go on with `--resume {self._run.path}`"
        )

    def _call_length(self, done: int, rate: float) -> int:
        """Updates of the next call: about a second's worth, in whole rows of metrics."""
        config = self._config
        every = config.log_every
        wished = max(1, round(rate * CALL_SECONDS / every)) * every
        to_checkpoint = config.checkpoint_every - done % config.checkpoint_every
        return min(wished, LONGEST_CALL // every * every, to_checkpoint, config.updates - done)

    def _log(self, done: int, count: int, metrics: Mapping[str, np.ndarray]) -> None:
        config = self._config
        if config.seeds == 1:
            metrics = {name: rows[None] for name, rows in metrics.items()}
        rows = []
        for start in range(0, count, config.log_every):
            stop = min(start + config.log_every, count)
            for i in range(config.seeds):
                part = {name: table[i, start:stop] for name, table in metrics.items()}
                rows.append({"update": done + stop, "seed": config.seed + i, **_row(part)})
        self._rows += rows
        if self._run is not None:
            self._run.log(rows)
        if self._on_rows is not None:
            self._on_rows(rows)

    def _save(self, done: int, state: TrainState) -> None:
        if self._run is None:
            return
        self._run.save(done, state)
        with write_errors_reported(self._run.curve_path):
            plots.learning_curve(
                self._run.curve_path,
                self._columns(),
                title=f"{self._config.rule} on {self._config.env}",
            )

    def _columns(self) -> dict[str, np.ndarray]:
        names = self._rows[0] if self._rows else {}
        return {name: np.array([row[name] for row in self._rows]) for name in names}

    def _recent_return(self) -> float:
        """Mean return over the last tenth of the updates, of all seeds."""
        rows = self._rows[-math.ceil(RECENT * len(self._rows)) :]
        seen = [(row["return"], row["episodes"]) for row in rows if row["episodes"] > 0]
        if not seen:
            return math.nan
        values, episodes = np.transpose(seen)
        return float(np.average(values, weights=episodes))

    def _finish(self, state: TrainState, finished: bool) -> TrainResult:
        path = None if self._run is None else self._run.path
        return TrainResult(
            self._config, state, self._columns(), path, finished, self._seconds, self._reference
        )


def _row(part: Mapping[str, np.ndarray]) -> dict[str, float]:
    """One row of metrics from those of several updates.

    Means, but for totals and for what is a mean over episodes already.
    """
    episodes = part["episodes"]
    row: dict[str, float] = {"steps": int(part["steps"][-1]), "episodes": int(episodes.sum())}
    for name in sorted(set(part) - set(row)):
        values = part[name]
        if name in ("return", "episode_length") or name.startswith(EPISODE):
            seen = episodes > 0
            mean = np.average(values[seen], weights=episodes[seen]) if seen.any() else math.nan
        else:
            mean = values.mean()
        row[name] = float(mean)
    return row
