"""Training: the outer loop of a run, from its settings to its results."""

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl import envs, rules
from discorl.agent.assembly import NetworkFactory
from discorl.envs import Environment, GymnaxLike, references
from discorl.envs.host import EnvironmentFailure, HostEnvironment
from discorl.runs import Run, check_source, compilation, curves, processes, shared, tracking
from discorl.runs.files import write_errors_reported
from discorl.runs.history import History
from discorl.runs.interrupts import Stopped, interrupts
from discorl.runs.metrics import (
    EPISODES,
    RETURN,
    SPEED,
    STEP,
    TOTAL_LOSS,
    WALL_TIME,
    merge,
    recent_return,
)
from discorl.runs.processes import Cluster
from discorl.runs.progress import Progress, waiting
from discorl.runs.tracking import Log, Track
from discorl.training import capacity, selection
from discorl.training.assembly import (
    check_processes,
    create_run,
    load_trainer,
    make_trainer,
    naming_user_code,
)
from discorl.training.compiled.trainer import ProgramCache
from discorl.training.config import TrainConfig, configure
from discorl.training.result import TrainResult, finite_by_seed
from discorl.training.selection import Best, Checkpoint
from discorl.training.state import TrainState
from discorl.training.trainer import Trainer
from discorl.training.warm_start import start_from
from discorl.types import UserError


def train(
    config: TrainConfig | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    accept_changes: bool = False,
    resume_if_exists: bool = False,
    start: str | os.PathLike[str] | None = None,
    rule: rules.Given | None = None,
    environment: Environment | HostEnvironment | GymnaxLike | None = None,
    network: NetworkFactory | None = None,
    distributed: bool | Cluster = False,
    track: Track = None,
    programs: ProgramCache | None = None,
    **settings: Any,
) -> TrainResult:
    """Trains agents.

    Args:
        config: all settings; alternatively, give them one by one.
        out: the run directory to make; None keeps nothing on disk.
        resume: a run directory to continue, instead of settings.
        accept_changes: whether to resume a run whose files were changed since it stopped.
        resume_if_exists: if `out` already holds a run, continue it with its own settings.
        start: directory of a training run whose network parameters the new run starts from. The
            optimiser and replay start fresh.
        rule: the rule: its name, or a rule of your own. A pair (`(MyRule(), eta)`) also gives its
            parameters; without, they are initialised.
        environment: an environment of your own, or an object with gymnax's interface, instead of
            `env`.
        network: makes a network of your own from the rule's `OutputSpec` and the observation's
            shapes and dtypes.
        distributed: whether this is one of several processes that train one agent together, with
            the same arguments; see `discorl.discover`. `data_parallel` must be a multiple of their
            number, and the environment must be written in JAX.
        track: where metrics go besides the run directory: "wandb" or "trackio", optionally with
            arguments of their `init` ("wandb:project=mine,mode=offline"), a function that is called
            with new rows as they come, a `discorl.Tracker`, or a list of these.
        programs: cache of compiled programs, shared with other runs.
        **settings: settings of `TrainConfig`; see `discorl.configure`.

    Returns:
        the trained agents and their metrics.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once the run is saved.

    Example:
        ```python
        result = discorl.train(rule="ppo", env="catch", seed=1, out="runs/ppo")
        print(result.recent_return())
        ```
    """
    own_rule = None if isinstance(rule, str) else rule
    if isinstance(rule, str):
        settings["rule"] = rule
    check_source(config, settings, out=out, resume=resume, shared=bool(distributed))
    if resume is not None and start is not None:
        raise UserError("a resumed run has its own parameters: give either resume or start")
    followers = tracking.make(track)
    compilation.enable_cache()
    if environment is not None or network is not None:
        programs = None  # the cache identifies objects by their names in the settings
    with (
        processes.joined(distributed),
        waiting("discorl.train"),
        contextlib.ExitStack() as stack,
    ):
        run = None
        if resume_if_exists and out is not None and shared.exists(out):
            resume, out, start = out, None, None
        if resume is not None:
            runs = shared.run_class()
            run = stack.enter_context(runs.open(resume, accept_changes=accept_changes))
            trainer = load_trainer(run, environment, network, own_rule, programs)
        else:
            if config is None:
                config = configure(**settings | ({} if own_rule is None else {"rule": own_rule}))
            elif own_rule is not None:
                config = dataclasses.replace(config, rule=rules.text_of(own_rule))
            if environment is not None:
                environment = envs.make(environment)
                config = dataclasses.replace(config, env=envs.name_of(environment))
            trainer = make_trainer(
                config, environment, network=network, rule=own_rule, programs=programs
            )
        check_processes(trainer.config, trainer.environment)
        with naming_user_code(trainer):
            template = jax.eval_shape(trainer.init)
        capacity.check_state(trainer.config, template)
        first = None if start is None else start_from(trainer, start)
        starting = None if first is None else first.learner.params
        processes.require_same(trainer.config.as_dict(), (trainer.eta, starting))
        if out is not None:
            run = stack.enter_context(
                create_run(out, trainer, environment=environment, network=network, rule=own_rule)
            )
        config = trainer.config
        name = f"{config.rule} on {config.env}"
        seeds = range(config.seed, config.seed + config.seeds)
        log = stack.enter_context(tracking.following(followers, run, config.as_dict(), name, seeds))
        result = _Loop(trainer, run, template, log, first).run()
    if not result.finished:
        raise Stopped(result)
    return result


@dataclasses.dataclass
class _Loop:
    """Calls the compiled program until the run is done; logs, saves and handles Ctrl-C."""

    _trainer: Trainer
    _run: Run | None
    _template: TrainState  # shapes and dtypes of a state
    _log_rows: Log  # takes rows of metrics
    _first: TrainState | None  # the initial state; None: a fresh one

    def __post_init__(self) -> None:
        self._config = config = self._trainer.config
        # Computed first: an error here loses nothing.
        self._reference = references.of(self._trainer.environment)
        self._history, self._evaluations = History(config.seeds), History(config.seeds)
        self._best: Best | None = None
        self._lost: set[float] = set()  # seeds whose loss is not a finite number
        self._seconds = 0.0

    def run(self) -> TrainResult:
        config = self._config
        done, state = self._start()
        if done == config.updates:
            return self._finish(state, finished=True)
        stopped = False
        saved = done
        rate = 0.0  # updates per second, measured by process 0
        with naming_user_code(self._trainer):
            self._trainer.start(state)
        with (
            self._trainer,  # stops host environments at the end
            Progress(config.updates) as progress,
            interrupts() as interrupted,
        ):
            while done < config.updates and not stopped:
                count = config.call_length(done, rate)
                try:
                    with compilation.Stopwatch() as watch:
                        state, metrics, count = self._trainer.run(state, count)
                    self._log(done, count, metrics, watch.seconds)
                    rate = processes.exchange(count / watch.seconds)[0]
                    done += count
                    self._evaluate_if_due(done, state)
                except EnvironmentFailure as error:
                    raise self._give_up(done, saved, state, error) from error
                stopped = any(processes.exchange(interrupted()))
                if done == config.updates or stopped or done % config.checkpoint_every == 0:
                    self._save(done, state)
                    saved = done
                progress.update(done, self._headline(), self._seconds)
        return self._finish(processes.gather(state), finished=done == config.updates)

    def _start(self) -> tuple[int, TrainState]:
        restored = self._restore()
        if restored is not None:
            done, state = restored
            try:
                if self._evaluate_if_due(done, state):  # it may have failed before
                    self._save(done, state)
            except EnvironmentFailure as error:
                raise self._give_up(done, done, state, error) from error
            return restored
        state = self._trainer.init() if self._first is None else self._first
        if self._config.eval_every:
            self._best = Best.none_yet(state.learner.params, self._config.seeds)
        if self._run is not None and self._first is not None:
            self._save_state(0, state)  # a resume may start from it
        return 0, state

    def _restore(self) -> tuple[int, TrainState] | None:
        """The updates made and the state of a resumed run; None without a checkpoint."""
        if self._run is None:
            return None
        found = self._run.restore(Checkpoint.template(self._template, self._config))
        if found is None:
            return None
        done, checkpoint = found[0], jax.tree.map(jnp.asarray, found[1])
        for table, kept in (("metrics", self._history), ("evaluation", self._evaluations)):
            for rows in self._run.rows(table):
                kept.extend(rows)
                self._seconds = max([self._seconds, *(row[WALL_TIME] for row in rows[-1:])])
        self._best = checkpoint.best
        return done, checkpoint.state

    def _give_up(
        self, done: int, saved: int, state: TrainState, error: EnvironmentFailure
    ) -> EnvironmentFailure:
        """Saves the run after an environment failed; the error says how to continue."""
        if done > saved:
            self._save(done, state)
        if self._run is None or not done:
            return error
        return EnvironmentFailure(
            f"{error}. Run saved as of update {done}; continue with `--resume {self._run.path}`"
        )

    def _log(
        self, done: int, count: int, metrics: Mapping[str, np.ndarray], seconds: float
    ) -> None:
        """Logs a call of `count` updates, assuming that they took equally long."""
        config = self._config
        if config.seeds == 1:
            metrics = {name: values[None] for name, values in metrics.items()}
        names = [STEP, EPISODES, *sorted(set(metrics) - {STEP, EPISODES})]
        rows = []
        for start in range(0, count, config.log_every):
            stop = min(start + config.log_every, count)
            merged = merge({name: metrics[name][:, start:stop] for name in names})
            wall_time = self._seconds + seconds * stop / count
            for i in range(config.seeds):
                found = {name: merged[name][i].item() for name in names}
                timing = {WALL_TIME: wall_time, SPEED: found[STEP] / wall_time}
                rows.append({"update": done + stop, "seed": config.seed + i} | timing | found)
        self._seconds += seconds
        self._history.extend(rows)
        self._warn_of_nan(rows)
        self._log_rows(rows)

    def _evaluate_if_due(self, done: int, state: TrainState) -> bool:
        """Evaluates the agents and keeps the best so far; returns False if it is not due."""
        every, updates = self._config.eval_every, self._config.updates
        if self._best is None or not done or (done % every and done < updates):
            return False
        newest = self._evaluations.columns("update").get("update", ())[-1:]
        if processes.exchange(done in newest)[0]:
            return False
        with compilation.Stopwatch() as watch, naming_user_code(self._trainer):
            self._best, rows = selection.evaluate(self._trainer, state, done, self._best)
        self._seconds += watch.seconds
        rows = [row | {WALL_TIME: self._seconds} for row in rows]
        self._evaluations.extend(rows)
        self._log_rows(rows, "evaluation")
        return True

    def _warn_of_nan(self, rows: list[dict[str, float]]) -> None:
        """Warns once per seed that its loss is not finite; other seeds continue."""
        for row in rows:
            if not math.isfinite(row[TOTAL_LOSS]) and row["seed"] not in self._lost:
                self._lost.add(row["seed"])
                print(
                    f"seed {row['seed']}: the loss is not a finite number at update "
                    f"{row['update']} and will not recover; is the learning rate too high, or "
                    f"does `discorl envs check {self._config.env}` find a mistake?",
                    file=sys.stderr,
                )

    def _save(self, done: int, state: TrainState) -> None:
        if self._run is None:
            return
        self._save_state(done, state)
        if self._run.writes:
            with write_errors_reported(self._run.curve_path):
                title = f"{self._config.rule} on {self._config.env}"
                curves.learning_curve(self._run.curve_path, self._history.columns(), title=title)

    def _save_state(self, done: int, state: TrainState) -> None:
        """Writes a checkpoint, in the process that writes the run."""
        assert self._run is not None
        checkpoint = Checkpoint.of(processes.gather(state), self._best)
        finite = finite_by_seed(checkpoint.learner.params, self._config.seeds).all()
        self._run.save(done, checkpoint if self._run.writes else None, finite=bool(finite))

    def _headline(self) -> dict[str, float]:
        """Metrics for the progress line, over all seeds."""
        shown = {"return": recent_return(self._history.columns("update", RETURN, EPISODES))}
        if self._evaluations.columns():
            assert self._best is not None
            shown["best evaluation"] = float(self._best.mean_return.mean())
        return shown

    def _finish(self, state: TrainState, finished: bool) -> TrainResult:
        run = self._run
        return TrainResult(
            self._config,
            state,
            self._trainer,
            self._history.columns(),
            None if run is None else run.path,
            finished,
            self._seconds,
            self._reference,
            None if run is None else run.finite_checkpoint,
            self._evaluations.columns(),
            self._best,
        )
