"""Putting trainers together, from settings or from an existing run."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp

from discorl import envs, rules
from discorl.agent.assembly import NetworkFactory, make_learner
from discorl.agent.optimiser import with_learning_rate
from discorl.envs import Environment, conformance
from discorl.envs.host import HostEnvironment
from discorl.runs import Run, config_of
from discorl.training.config import TrainConfig
from discorl.training.host.trainer import HostTrainer
from discorl.training.trainer import Programs, Trainer, TrainState
from discorl.types import Params, UserError

RULE_FILE = "rule.npz"  # in a run directory: its copy of the learned rule


def build(
    config: TrainConfig,
    environment: Environment | HostEnvironment,
    network: NetworkFactory | None = None,
    rule_file: Path | None = None,
    rule: rules.Given | None = None,
) -> tuple[Trainer | HostTrainer, Params]:
    """Puts a trainer together from its settings.

    Args:
        config: the settings.
        environment: the task.
        network: makes a network from the rule's outputs and the observation's shapes; by default
            the standard one.
        rule_file: file of the rule, in place of where `config` would have it looked for.
        rule: a rule as an object, in place of the one that `config` names.

    Returns:
        the trainer; the rule's parameters.

    Raises:
        UserError: the environment is not what it declares to be, or a setting does not go with it
            or with the rule.
    """
    check_environment(environment, config.env)
    built, eta = rules.load(
        rule or config.rule,
        file=rule_file,
        rules_path=config.rules_path,
        discount=config.agent.discount,
    )
    agent = dataclasses.replace(config.agent, discount=built.discount)  # `ppo:discount=0.9` wins
    learner = make_learner(
        agent,
        built,
        environment.num_actions,
        environment.observation,
        network=network,
        prepare=environment.prepare if isinstance(environment, HostEnvironment) else None,
    )
    eta = jax.tree.map(jnp.asarray, eta)
    if not isinstance(environment, HostEnvironment):
        return Trainer(agent, environment, learner), eta
    if config.seeds > 1:
        raise UserError(
            f"seeds is {config.seeds}; expected 1: {config.env} runs on the host, where a run "
            "trains one agent; start one run for each seed"
        )
    return HostTrainer(agent, environment, learner), eta


def check_environment(environment: Environment | HostEnvironment, name: str) -> None:
    """Refuses an environment of somebody's own that is not what it declares to be.

    Nothing is compiled for that. discorl's own are left out: to trace the largest takes seconds.

    Raises:
        UserError: what it declares is wrong, or not what it does.
    """
    if type(environment).__module__.partition(".")[0] == "discorl":
        return
    for finding in conformance.check_declaration(environment):
        if not finding.ok:
            raise UserError(
                f"{name} breaks the contract of environments: {finding.detail}. `discorl envs "
                "check`, or discorl.envs.conformance.check in Python, tells what else there is"
            )


def initial_state(
    config: TrainConfig, trainer: Trainer | HostTrainer, programs: Programs | None = None
) -> TrainState:
    """The state before the first update; with several seeds, every leaf has a leading axis.

    Args:
        config: the run's settings.
        trainer: the agents' training.
        programs: those compiled so far.
    """
    seeds = range(config.seed, config.seed + config.seeds)
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    if isinstance(trainer, HostTrainer):
        return jax.jit(trainer.init)(keys[0], config.updates)
    init = (programs or Programs()).init(config, trainer)
    state = init(keys if len(keys) > 1 else keys[0])
    return with_learning_rate(state, config.agent.optimiser.learning_rate)


def reopen(
    run: Run,
    environment: Environment | HostEnvironment | None,
    network: NetworkFactory | None,
    rule: rules.Given | None = None,
) -> tuple[TrainConfig, Trainer | HostTrainer, Params]:
    """Puts the trainer of an existing run together again.

    Args:
        run: the run.
        environment: the environment, if the run was given one of its own.
        network: the network, likewise.
        rule: the rule, likewise.

    Raises:
        UserError: the run is of another kind or version, or needs something of its own.
    """
    if run.kind != "train":
        raise UserError(f"{run.path} holds a run of `{run.kind}`; expected one of `train`")
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
    rule_file = kept if kept.exists() else None
    environment = environment or envs.make(config.env)
    trainer, eta = build(config, environment, network, rule_file, rule)
    return config, trainer, eta
