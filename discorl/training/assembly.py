"""Putting trainers together, from settings or from an existing run."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from discorl import envs, rules
from discorl.agent import frames
from discorl.agent.learner import Learner
from discorl.agent.optimiser import Optimisation, with_learning_rate
from discorl.envs import Environment, conformance
from discorl.envs.host import HostEnvironment
from discorl.networks import Network, standard
from discorl.networks.prepared import prepared
from discorl.runs import Run, check_settings
from discorl.training.config import Config
from discorl.training.host.trainer import HostTrainer
from discorl.training.trainer import Programs, Trainer, TrainState
from discorl.types import OutputSpec, Params, PyTree, UserError

NetworkFactory = Callable[[OutputSpec, PyTree], Network]

RULE_FILE = "rule.npz"  # in a run directory: its copy of the learned rule


def build(
    config: Config,
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
        rule or config.rule, file=rule_file, rules_path=config.rules_path, discount=config.discount
    )
    if config.batch % built.minibatches:
        raise UserError(
            f"batch is {config.batch}; rule {config.rule!r} needs a multiple of its "
            f"{built.minibatches} minibatches"
        )
    gradient_steps = built.epochs * built.minibatches
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
    spec = built.outputs(environment.num_actions)
    seen = frames.stacked(environment.observation, config.frame_stack)
    if isinstance(environment, HostEnvironment):
        seen = environment.shown(seen)
    net = network_of(config, spec, seen) if network is None else network(spec, seen)
    if isinstance(environment, HostEnvironment):
        net = prepared(net, environment.prepare)
    learner = Learner(
        built, net, optimisation.optimizer(rate_in_state=True), environment.num_actions
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


def network_of(config: Config, spec: OutputSpec, observation: PyTree) -> Network:
    """The standard network in the sizes of the settings.

    Args:
        config: the settings.
        spec: outputs that the rule asks for.
        observation: shapes and dtypes of one observation, as the network sees it.
    """
    return standard(
        spec,
        observation,
        torso=config.torso,
        hidden=config.hidden,
        filters=config.filters,
        action_lstm=config.action_lstm,
        action_hidden=config.action_hidden,
        core=config.core,
    )


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


def reopen(
    run: Run,
    environment: Environment | HostEnvironment | None,
    network: NetworkFactory | None,
    rule: rules.Given | None = None,
) -> tuple[Trainer | HostTrainer, Params]:
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
    check_settings(run, settings, Config)
    config = Config(**settings)
    kept = run.path / RULE_FILE
    rule_file = kept if kept.exists() else None
    return build(config, environment or envs.make(config.env), network, rule_file, rule)
