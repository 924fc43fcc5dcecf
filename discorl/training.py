"""Training: acting, replay, targets and updates as one compiled program, and the loop around it."""

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl import acting, compilation, envs, plots, replay, rules
from discorl.acting import ActorState, EpisodeStatistics
from discorl.config import LONGEST_CALL, Config, configure
from discorl.envs import Environment
from discorl.files import write_errors_reported
from discorl.interrupts import interrupts
from discorl.learning import Learner, LearnerState
from discorl.networks import Network, standard
from discorl.optimisation import Optimisation
from discorl.progress import Progress
from discorl.replay import ReplayState
from discorl.runs import Run
from discorl.types import Array, Key, Metrics, OutputSpec, Params, PyTree, Trajectory, UserError

NetworkFactory = Callable[[OutputSpec, PyTree], Network]

RULE_FILE = "rule.npz"  # in a run directory: its copy of the learned rule
CALL_SECONDS = 1.0  # how long a call should take, so that progress shows and Ctrl-C is heard
RECENT = 0.1  # share of the updates so far, the last ones, whose mean return is reported


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a run depends on from one update to the next."""

    learner: LearnerState
    actor: ActorState
    replay: ReplayState | None  # None: on-policy
    key: Key
    steps: Array  # [] int32, environment steps taken


@dataclasses.dataclass(frozen=True)
class Trainer:
    """One agent's training as pure functions of its state."""

    config: Config
    environment: Environment
    learner: Learner

    def init(self, key: Key) -> TrainState:
        """A fresh agent in fresh environments."""
        learner_key, actor_key, key = jax.random.split(key, 3)
        learner = self.learner.init(learner_key, self.environment.observation)
        actor = acting.init(self.environment, actor_key, self.config.environments)
        buffer = None
        if self.config.replayed:
            rollout = jax.eval_shape(self.act, learner.params, actor, key)[1]
            buffer = replay.init(rollout, self.config.replay)
        return TrainState(learner, actor, buffer, key, jnp.zeros((), jnp.int32))

    def act(
        self, params: Params, actor: ActorState, key: Key
    ) -> tuple[ActorState, Trajectory, EpisodeStatistics]:
        """Acts for one rollout, [T, E]."""

        def policy(observation: PyTree) -> Array:
            return self.learner.policy(params, observation)

        return acting.rollout(self.environment, policy, actor, key, self.config.unroll)

    def collect(self, state: TrainState) -> tuple[TrainState, Trajectory, Metrics]:
        """Acts for one rollout and makes a batch to learn from.

        Returns:
            the new state; the batch, [T, B]; what became of the episodes.
        """
        key, act_key, replay_key = jax.random.split(state.key, 3)
        actor, fresh, episodes = self.act(state.learner.params, state.actor, act_key)
        buffer, batch = state.replay, fresh
        if buffer is not None:
            buffer = replay.add(buffer, fresh)
            batch = replay.mix(buffer, fresh, replay_key, self.config.batch, self.config.replayed)
        steps = state.steps + episodes.steps
        metrics = {
            "steps": steps,
            "episodes": episodes.count,
            # NaN where no episode ended: there is nothing to report.
            "return": episodes.return_sum / episodes.count,
            "episode_length": episodes.length_sum / episodes.count,
        }
        return TrainState(state.learner, actor, buffer, key, steps), batch, metrics

    def update(self, state: TrainState, eta: Params) -> tuple[TrainState, Metrics]:
        """Collects a batch and learns from it."""
        state, batch, episodes = self.collect(state)
        learner, metrics = self.learner.update(state.learner, eta, batch)
        return dataclasses.replace(state, learner=learner), metrics | episodes

    def run(self, state: TrainState, eta: Params, count: Array) -> tuple[TrainState, Metrics]:
        """Makes `count` updates.

        The count is not part of the program: one program serves calls of any length, so that how
        a run is cut into calls cannot change its results.

        Returns:
            the new state; metrics of each update, [LONGEST_CALL], of which `count` are filled.
        """
        shapes = jax.eval_shape(self.update, state, eta)[1]
        table = jax.tree.map(lambda x: jnp.zeros((LONGEST_CALL, *x.shape), x.dtype), shapes)

        def body(i: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, metrics = self.update(carry[0], eta)
            return state, jax.tree.map(lambda rows, x: rows.at[i].set(x), carry[1], metrics)

        return jax.lax.fori_loop(0, count, body, (state, table))


def build(
    config: Config,
    environment: Environment,
    network: NetworkFactory | None = None,
    rule_file: Path | None = None,
) -> tuple[Trainer, Params]:
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
    if network is None:
        net = standard(
            spec,
            environment.observation,
            torso=config.torso,
            hidden=config.hidden,
            filters=config.filters,
            action_lstm=config.action_lstm,
            action_hidden=config.action_hidden,
        )
    else:
        net = network(spec, environment.observation)
    learner = Learner(rule, net, optimisation.optimizer(), environment.num_actions)
    return Trainer(config, environment, learner), jax.tree.map(jnp.asarray, eta)


def initial_state(trainer: Trainer) -> TrainState:
    """The state before the first update; with several seeds, every leaf has a leading axis."""
    seeds = range(trainer.config.seed, trainer.config.seed + trainer.config.seeds)
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    if len(keys) == 1:
        return jax.jit(trainer.init)(keys[0])
    return jax.jit(jax.vmap(trainer.init))(keys)


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
    environment: Environment | None = None,
    network: NetworkFactory | None = None,
    on_rows: Callable[[list[dict[str, float]]], None] | None = None,
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
        **settings: fields of `Config`; see `discorl.configure`.

    Returns:
        the trained agents and their metrics.

    Example:
        result = discorl.train(rule="ppo", env="catch", seed=1, out="runs/ppo")
        print(result.recent_return())
    """
    if sum(x is not None for x in (config, resume, settings or None)) > 1:
        raise UserError("give one of config, resume and single settings, not several of them")
    if resume is not None and out is not None:
        raise UserError("a resumed run goes on in its own directory: give either resume or out")
    compilation.enable_cache()
    with contextlib.ExitStack() as stack:
        run = None
        if resume is not None:
            run = stack.enter_context(Run.open(resume))
            trainer, eta = reopen(run, environment, network)
        else:
            config = config or configure(**settings)
            trainer, eta = build(config, environment or envs.make(config.env), network)
        if out is not None:
            own = {"environment": environment is not None, "network": network is not None}
            rule = rules.find(trainer.config.rule, trainer.config.rules_path)
            described = trainer.config.as_dict() | {"own": own}
            run = stack.enter_context(Run.create(out, described, copies={RULE_FILE: rule}))
        return _Loop(trainer, eta, run, on_rows).run()


def reopen(
    run: Run, environment: Environment | None, network: NetworkFactory | None
) -> tuple[Trainer, Params]:
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
    difference = set(settings) ^ {field.name for field in dataclasses.fields(Config)}
    if difference:
        raise UserError(
            f"{run.path} was made by another version of discorl, with other settings "
            f"({', '.join(sorted(difference))}); see its versions.json"
        )
    config = Config(**settings)
    kept = run.path / RULE_FILE
    rule_file = kept if kept.exists() else None
    return build(config, environment or envs.make(config.env), network, rule_file)


class _Loop:
    """Calls the compiled program until the run is done; logs, saves and listens for Ctrl-C."""

    def __init__(
        self,
        trainer: Trainer,
        eta: Params,
        run: Run | None,
        on_rows: Callable[[list[dict[str, float]]], None] | None,
    ) -> None:
        self._trainer = trainer
        self._config = trainer.config
        self._eta = eta
        self._run = run
        self._on_rows = on_rows
        self._rows: list[dict[str, float]] = []
        self._seconds = 0.0

    def run(self) -> TrainResult:
        config = self._config
        done, state = self._start()
        if done == config.updates:
            return self._finish(state, finished=True)
        program = self._compile(state)
        stopped = False
        saved = done
        rate = 0.0  # updates a second
        with Progress(config.updates) as progress, interrupts() as interrupted:
            while done < config.updates and not stopped:
                count = self._call_length(done, rate)
                start = time.perf_counter()
                state, metrics = program(state, self._eta, count)
                # Metrics come to the host at once; the state stays where it is.
                self._log(done, count, jax.device_get(metrics))
                elapsed = time.perf_counter() - start
                self._seconds += elapsed
                rate = count / elapsed
                done += count
                stopped = interrupted()
                if done == config.updates or stopped or done - saved >= config.checkpoint_every:
                    self._save(done, state)
                    saved = done
                progress.update(done, {"return": self._recent_return()})
        return self._finish(state, finished=done == config.updates)

    def _start(self) -> tuple[int, TrainState]:
        if self._run is not None:
            template = jax.eval_shape(lambda: initial_state(self._trainer))
            restored = self._run.restore(template)
            if restored is not None:
                columns = self._run.metrics()
                names = list(columns)
                self._rows = [
                    dict(zip(names, row, strict=True))
                    for row in zip(*columns.values(), strict=True)
                ]
                return restored[0], jax.tree.map(jnp.asarray, restored[1])
        return 0, initial_state(self._trainer)

    def _compile(self, state: TrainState) -> Callable[..., tuple[TrainState, Metrics]]:
        function = self._trainer.run
        if self._config.seeds > 1:
            function = jax.vmap(function, in_axes=(0, None, None))
        count = jax.ShapeDtypeStruct((), jnp.int32)
        return jax.jit(function, donate_argnums=0).lower(state, self._eta, count).compile()

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
        return TrainResult(self._config, state, self._columns(), path, finished, self._seconds)


def _row(part: Mapping[str, np.ndarray]) -> dict[str, float]:
    """One row of metrics from those of several updates.

    Means, but for totals and for what is a mean over episodes already.
    """
    episodes = part["episodes"]
    row: dict[str, float] = {"steps": int(part["steps"][-1]), "episodes": int(episodes.sum())}
    for name in sorted(set(part) - set(row)):
        values = part[name]
        if name in ("return", "episode_length"):
            seen = episodes > 0
            mean = np.average(values[seen], weights=episodes[seen]) if seen.any() else math.nan
        else:
            mean = values.mean()
        row[name] = float(mean)
    return row
