"""Making trainers, from settings or from an existing run, and the directories of runs."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from discorl import envs, rules
from discorl.agent.assembly import NetworkFactory, make_learner
from discorl.agent.config import AgentConfig
from discorl.envs import Environment, GymnaxLike, HostEnvironment, conformance, references
from discorl.rules import Rule
from discorl.runs import Run, config_of, processes, shared
from discorl.training.compiled.trainer import CompiledTrainer, ProgramCache
from discorl.training.config import TrainConfig
from discorl.training.host.trainer import HostTrainer
from discorl.training.trainer import Trainer
from discorl.types import UserError
from discorl.types.findings import raised

RULE_FILE = "rule.npz"  # in a run directory: its copy of the learned rule


def make_trainer(
    config: TrainConfig,
    environment: Environment | HostEnvironment | GymnaxLike | None = None,
    *,
    network: NetworkFactory | None = None,
    rule: rules.Given | None = None,
    rule_file: Path | None = None,
    programs: ProgramCache | None = None,
) -> Trainer:
    """Makes the trainer of a run.

    Args:
        config: the settings; the trainer's have the rule's discount and reward scale filled in.
        environment: an environment of your own, in place of the one that the settings name.
        network: makes a network from the rule's outputs and the observation's shapes; by default
            the standard one.
        rule: a rule as an object, in place of the one that the settings name.
        rule_file: file of the rule, in place of where the settings would have it looked for.
        programs: compiled for other runs; this one may share them, and adds its own.

    Raises:
        UserError: the environment is not what it declares to be, or a setting does not go with it
            or with the rule.
    """
    environment = envs.make(config.env if environment is None else environment)
    check_environment(environment, config.env)
    built, eta = rules.load(
        rule or config.rule,
        file=rule_file,
        rules_path=config.rules_path,
        discount=config.agent.discount,
    )
    agent = dataclasses.replace(
        config.agent,
        discount=built.discount,  # `ppo:discount=0.9` wins
        reward_scale=_reward_scale(config.agent, built, environment),
    )
    # A run records what was found here: a resume must not depend on the references of its day.
    config = dataclasses.replace(config, agent=agent)
    shapes = environment.num_actions, environment.observation
    eta = jax.tree.map(jnp.asarray, eta)
    if not isinstance(environment, HostEnvironment):
        learner = make_learner(agent, built, *shapes, network=network)
        return CompiledTrainer(config, environment, learner, eta, programs)
    if agent.data_parallel > 1:
        raise UserError(
            f"data_parallel is {agent.data_parallel}; expected 1: {config.env} runs on the host, "
            "where a run uses one device"
        )
    if config.seeds > 1:
        raise UserError(
            f"seeds is {config.seeds}; expected 1: {config.env} runs on the host, where a run "
            "trains one agent; start one run for each seed"
        )
    learner = make_learner(agent, built, *shapes, network=network, prepare=environment.prepare)
    return HostTrainer(config, environment, learner, eta)


def _reward_scale(
    agent: AgentConfig, rule: Rule, environment: Environment | HostEnvironment
) -> float:
    if agent.reward_scale is not None:
        return agent.reward_scale

    def span() -> float | None:
        reference = references.of(environment)
        return None if reference is None else float(reference.optimal - reference.random)

    return rule.reward_scale(span)


@contextlib.contextmanager
def naming_user_code(trainer: Trainer) -> Iterator[None]:
    """Says of an error whose code it may be, if it is not all discorl's own."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and processes.count() > 1:
            raise  # most likely another process is gone
        config, rule = trainer.config, trainer.learner.rule
        own = {f"rule {config.rule}": rule, f"environment {config.env}": trainer.environment}
        names = [name for name, x in own.items() if not _is_ours(x)]
        factory = config.agent.network.network_factory
        names += [] if factory is None else [f"network {factory}"]
        if not names:
            raise
        raise UserError(
            f"{raised('the ' + ' or the '.join(names), error)}; `discorl rules check` and `discorl "
            "envs check` tell more"
        ) from error


def _is_ours(found: object) -> bool:
    return type(found).__module__.partition(".")[0] == "discorl"


def check_environment(environment: Environment | HostEnvironment, name: str) -> None:
    """Refuses an environment of the user's own that is not what it declares to be.

    Nothing is compiled for that. discorl's own are left out: to trace the largest takes seconds.
    """
    if _is_ours(environment):
        return
    for finding in conformance.check_declaration(environment):
        if not finding.ok:
            raise UserError(
                f"{name} breaks the contract of environments: {finding.detail}. `discorl envs "
                "check`, or discorl.envs.conformance.check in Python, lists every violation"
            )


def check_processes(config: TrainConfig, environment: Environment | HostEnvironment) -> None:
    """Refuses what several processes cannot train together."""
    count = processes.count()
    if count == 1:
        return
    if isinstance(environment, HostEnvironment):
        raise UserError(
            f"env is {config.env}, which runs on the host, and there are {count} processes: "
            "expected an environment written in JAX, or one process"
        )
    if config.seeds > 1:
        raise UserError(
            f"seeds is {config.seeds}; expected 1: {count} processes train one agent; `discorl "
            "compare --executor` trains many"
        )
    if config.agent.data_parallel % count:
        raise UserError(
            f"data_parallel is {config.agent.data_parallel}; expected a multiple of the number of "
            f"processes, {count}"
        )


def create_run(out: str | os.PathLike[str], trainer: Trainer, **objects: Any) -> Run:
    """Creates a run directory that records the user's own objects, with a copy of the rule."""
    config = trainer.config
    own = {name: given is not None for name, given in objects.items()}
    file = None if own["rule"] else rules.find(config.rule, config.rules_path)
    settings = config.as_dict() | {"own": own}
    run = shared.run_class().create(out, settings, copies={RULE_FILE: file})
    if file is None and run.writes and jax.tree.leaves(trainer.eta):
        trainer.learner.rule.save(run.path / RULE_FILE, trainer.eta)
        run.note_file(RULE_FILE)
    return run


def load_trainer(
    run: Run,
    environment: Environment | HostEnvironment | GymnaxLike | None = None,
    network: NetworkFactory | None = None,
    rule: rules.Given | None = None,
    programs: ProgramCache | None = None,
) -> Trainer:
    """Makes the trainer of an existing run again.

    Environment, network and rule have to be given again if the run was given them as objects.
    """
    run.require_kind("train")
    settings = dict(run.config)
    own = settings.pop("own", {})
    for name, given in (("environment", environment), ("network", network), ("rule", rule)):
        if own.get(name) and given is None:
            raise UserError(
                f"{run.path} was made in Python with a {name} of its own: give it again, as "
                f"`{name}=...`"
            )
    config = config_of(run, TrainConfig, settings)
    kept = run.path / RULE_FILE
    file = kept if kept.exists() else None
    return make_trainer(
        config, environment, network=network, rule=rule, rule_file=file, programs=programs
    )
