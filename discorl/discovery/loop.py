"""The loop around meta-steps, which logs, evaluates, saves and handles Ctrl-C."""

import contextlib
import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from discorl import rules
from discorl.discovery import teachers
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.imitation import imitate
from discorl.discovery.methods import Method, Row, make_method
from discorl.discovery.presets import configure_discovery
from discorl.discovery.result import DiscoverResult, DiscoverState
from discorl.discovery.scoring import LAST, Scoring
from discorl.discovery.start import (
    COSTS,
    check_start,
    is_new,
    kept_costs,
    kept_start,
    keys_of,
    starting_rule,
    tell_of_sizes_left_out,
)
from discorl.envs.host import EnvironmentFailure
from discorl.rules import Disco, Rule
from discorl.runs import (
    Run,
    check_source,
    compilation,
    config_of,
    curves,
    memory,
    processes,
    shared,
    tracking,
)
from discorl.runs.files import write_bytes
from discorl.runs.history import History
from discorl.runs.interrupts import Stopped, interrupts
from discorl.runs.metrics import BEST_SCORE, WALL_TIME
from discorl.runs.processes import Cluster
from discorl.runs.progress import Progress, waiting
from discorl.runs.tracking import Log, Track
from discorl.runs.versions import versions
from discorl.types import Params


def discover(
    config: DiscoverConfig | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    accept_changes: bool = False,
    resume_if_exists: bool = False,
    rule: rules.Given | None = None,
    distributed: bool | Cluster = False,
    track: Track = None,
    **settings: Any,
) -> DiscoverResult:
    """Discovers a rule, from scratch or from another rule.

    Args:
        config: all settings; alternatively, give them one by one.
        out: the run directory to make; None keeps nothing on disk. It will hold the current rule
            in `rule.npz` and the best one in `best.npz`, both ready for `discorl.train`.
        resume: a run directory to continue, instead of settings.
        accept_changes: whether to resume a run whose files were changed since it stopped.
        resume_if_exists: if `out` already holds a run, continue it with its own settings.
        distributed: whether this is one of several processes that call this with the same
            arguments: True if a scheduler describes them, or else a `Cluster`. They must share the
            folder of `out`. A failure in any of them ends them all.
        track: where metrics go besides the run directory; see `discorl.train`.
        rule: the rule to discover: its name, or a rule of your own. A pair also gives the
            parameters to start from; without, they are initialised.
        **settings: settings of `DiscoverConfig`; see `discorl.configure_discovery`.

    Returns:
        the rule and the metrics of its discovery.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once the run is saved.

    Example:
        ```python
        result = discorl.discover(preset="laptop", meta_steps=500, out="runs/mine")
        discorl.train(rule="runs/mine/best.npz", env="catch")
        ```
    """
    own_rule = None if isinstance(rule, str) else rule
    if isinstance(rule, str):
        settings["rule"] = rule
    check_source(config, settings, out=out, resume=resume, shared=bool(distributed))
    followers = tracking.make(track)
    compilation.enable_cache()
    with (
        processes.joined(distributed),
        waiting("discorl.discover"),
        contextlib.ExitStack() as stack,
    ):
        runs = shared.run_class()
        run = None
        if resume_if_exists and out is not None and shared.exists(out):
            resume, out, config, settings = out, None, None, {}
        if resume is not None:
            run = stack.enter_context(runs.open(resume, accept_changes=accept_changes))
            run.require_kind("discover")
            config = config_of(run, DiscoverConfig)
        config = config or configure_discovery(**settings)
        if own_rule is not None:
            config = dataclasses.replace(config, rule=rules.text_of(own_rule))
        tell_of_sizes_left_out(config)
        built, eta = starting_rule(config, kept_start(run), own_rule)
        teacher = None
        if teachers.name_of(config.start) is not None and kept_start(run) is None:
            teacher = teachers.load(config.start, config.rules_path)
        processes.require_same(config.as_dict(), (eta, getattr(teacher, "eta", ())))
        method = make_method(config, built, kept_costs(run))
        stack.callback(method.close)
        check_start(config, built, method.host_environments)
        scoring = Scoring(config, built, keys_of(config).scoring)
        if out is not None:
            start = None if is_new(config.start) else rules.find(config.start, config.rules_path)
            described, copies = config.as_dict(), {"start.npz": start}
            run = stack.enter_context(runs.create(out, described, "discover", copies))
        if teacher is not None:
            assert isinstance(built, Disco), "any other rule is refused"
            origin = _provenance(config, versions(), 0)  # now: the source may change meanwhile
            key = jax.random.fold_in(keys_of(config).population, 0x1317)
            eta = imitate(config, built, eta, key, teacher)
            if run is not None and run.writes:
                built.save(run.path / "start.npz", eta, origin)
                run.note_file("start.npz")
        name = f"discovery of {config.rule}"
        log = stack.enter_context(tracking.following(followers, run, config.as_dict(), name))
        result = _Loop(config, method, scoring, built, eta, run, log).run()
    if not result.finished:
        raise Stopped(result)
    return result


@dataclasses.dataclass
class _Loop:
    """Makes meta-steps until the run is done."""

    _config: DiscoverConfig
    _method: Method
    _scoring: Scoring
    _rule: Rule
    _eta: Params
    _run: Run | None
    _log_rows: Log  # takes rows of a table

    def __post_init__(self) -> None:
        self._metrics, self._evaluations = History(), History()
        self._evaluated = -1  # the meta-step of the newest evaluation
        self._seconds = 0.0  # of meta-steps and evaluations, over the whole run
        self._versions = versions()

    def run(self) -> DiscoverResult:
        config = self._config
        done, state = self._start()
        saved, stopped = done, False
        with Progress(config.meta_steps, "meta-steps") as progress, interrupts() as interrupted:
            try:
                evaluated = self._evaluated
                state = self._evaluate_if_due(done, state)
                if done == config.meta_steps and self._evaluated > evaluated:
                    self._save(done, state)  # a failure had prevented the evaluation
                while done < config.meta_steps and not stopped:
                    with compilation.Stopwatch() as watch:
                        search, row, agents = self._method.step(state.search)
                    self._seconds += watch.seconds
                    state = dataclasses.replace(state, search=search)
                    done += 1
                    self._log(done, row, agents)
                    state = self._evaluate_if_due(done, state)
                    stopped = any(processes.exchange(interrupted()))
                    last = done == config.meta_steps
                    if last or stopped or done % config.checkpoint_every == 0:
                        self._save(done, state)
                        saved = done
                    headline = self._method.headline
                    name = headline.rpartition("/")[2].removeprefix("episodic_")
                    shown = {name: row[headline]}
                    if math.isfinite(state.best_score):
                        shown |= {"best score": float(state.best_score)}
                    progress.update(done, shown, self._seconds)
            except EnvironmentFailure as error:
                if done > saved:
                    self._save(done, state)
                if self._run is None:
                    raise
                raise EnvironmentFailure(
                    f"{error}. The run is saved as of meta-step {done}; continue with "
                    f"`--resume {self._run.path}`"
                ) from error
        return self._finish(state, done)

    def _initial_state(self) -> DiscoverState:
        return DiscoverState(
            search=self._method.init(self._eta, keys_of(self._config).population),
            best_eta=self._eta,
            best_score=jnp.float32(-jnp.inf),
            best_meta_step=jnp.int32(0),
        )

    def _start(self) -> tuple[int, DiscoverState]:
        template = jax.eval_shape(self._initial_state)
        memory.check(template, "the agents of the population")
        if self._run is not None:
            restored = self._run.restore(template)
            if restored is not None:
                self._read_back(self._run)
                done, state = restored[0], jax.tree.map(jnp.asarray, restored[1])
                state = dataclasses.replace(state, search=self._method.place(state.search))
                # The files may be older than the checkpoint, or newer if that was damaged.
                self._write_files(done, state)
                if self._method.host_environments:
                    # Everything else is resumed bit for bit.
                    names = ", ".join(self._method.host_environments)
                    message = f"the environments of {names} restart with other seeds"
                    print(f"continuing from meta-step {done}: {message}", file=sys.stderr)
                return done, state
        return 0, self._initial_state()

    def _read_back(self, run: Run) -> None:
        """Reads back the rows logged up to the checkpoint."""
        for table, kept in (("metrics", self._metrics), ("evaluation", self._evaluations)):
            for rows in run.rows(table):
                kept.extend(rows)
                self._seconds = max([self._seconds, *(row[WALL_TIME] for row in rows[-1:])])
        self._evaluated = int(self._evaluations.columns().get("update", [-1])[-1])

    def _log(self, done: int, row: Row, agents: list[Row]) -> None:
        place = {"update": done, WALL_TIME: self._seconds}
        self._metrics.extend([place | row])
        self._log_rows([place | row])
        self._log_rows([place | agent for agent in agents], "agents")

    def _evaluate_if_due(self, done: int, state: DiscoverState) -> DiscoverState:
        """Evaluates if due; a resumed run repeats an evaluation in which an environment failed."""
        due = done % self._config.evaluate_every == 0 or done == self._config.meta_steps
        if not due or processes.exchange(self._evaluated)[0] == done:
            return state
        eta = self._method.eta(state.search)
        with compilation.Stopwatch() as watch:
            score = self._scoring(eta)
        self._seconds += watch.seconds
        for name, value in score.returns.items():
            if math.isnan(value):
                print(
                    f"no score at meta-step {done}: no agent ended an episode in the last "
                    f"{LAST:.0%} of its updates in {name}; raise evaluate_updates",
                    file=sys.stderr,
                )
        if score.mean > float(state.best_score):
            state = DiscoverState(state.search, eta, jnp.float32(score.mean), jnp.int32(done))
        row = {"update": done, WALL_TIME: self._seconds} | score.row()
        row |= {BEST_SCORE: float(state.best_score)}
        self._evaluations.extend([row])
        self._evaluated = done
        self._log_rows([row], "evaluation")
        return state

    def _save(self, done: int, state: DiscoverState) -> None:
        if self._run is None:
            return
        self._run.save(done, state)
        self._write_files(done, state)
        if self._run.writes:
            names = dict.fromkeys(group.env.partition(":")[0] for group in self._config.population)
            curves.discovery_curve(
                self._run.curve_path,
                self._metrics.columns(),
                self._evaluations.columns(),
                title=f"discovery on {', '.join(names)}",
            )

    def _write_files(self, done: int, state: DiscoverState) -> None:
        assert self._run is not None
        if not self._run.writes:
            return
        write_bytes(self._run.path / COSTS, json.dumps(self._method.costs()).encode())
        score = float(state.best_score)
        current = _provenance(self._config, self._versions, done)
        self._rule.save(self._run.path / "rule.npz", self._method.eta(state.search), current)
        best = _provenance(self._config, self._versions, int(state.best_meta_step))
        best |= {"score": score if math.isfinite(score) else None}
        self._rule.save(self._run.path / "best.npz", state.best_eta, best)

    def _finish(self, state: DiscoverState, done: int) -> DiscoverResult:
        return DiscoverResult(
            config=self._config,
            rule=self._rule,
            eta=self._method.eta(state.search),
            best_eta=state.best_eta,
            best_score=float(state.best_score),
            metrics=self._metrics.columns(),
            evaluations=self._evaluations.columns(),
            path=None if self._run is None else self._run.path,
            finished=done == self._config.meta_steps,
            seconds=self._seconds,
        )


def _provenance(
    config: DiscoverConfig, made_with: Mapping[str, str | None], meta_steps: int
) -> dict[str, Any]:
    """What a rule file remembers of where it comes from."""
    return {
        "meta_steps": meta_steps,
        "seed": config.seed,
        "discorl": made_with["discorl"],
        "commit": made_with["commit"],
        "config": config.as_dict(),
    }
