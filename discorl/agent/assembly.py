"""Assembles a learner from the description of an agent."""

import dataclasses
import functools
from collections.abc import Callable

from discorl.agent import frames
from discorl.agent.config import AgentConfig, NetworkConfig
from discorl.agent.learner import Learner
from discorl.agent.optimiser import make_optimiser
from discorl.networks import Network, standard
from discorl.networks.prepared import make_prepared
from discorl.rules.base import Rule
from discorl.types import OutputSpec, PyTree, UserError, imports, specs

NetworkFactory = Callable[[OutputSpec, PyTree], Network]


def make_learner(
    config: AgentConfig,
    rule: Rule,
    num_actions: int,
    observation: PyTree,
    *,
    network: NetworkFactory | None = None,
    prepare: Callable[[PyTree], PyTree] | None = None,
    mixed_mode: bool = False,
) -> Learner:
    """Assembles the learner of an agent.

    Schedules span the agent's lifetime, an argument of `Learner.init`.

    Args:
        config: the agent.
        rule: the rule that it learns by; the agent's discount replaces the rule's.
        num_actions: actions of its environment.
        observation: shapes and dtypes of one observation of its environment; a single frame if
            frames are stacked.
        network: makes a network from the rule's outputs and the shapes of its inputs; by default
            the network that `config` describes.
        prepare: applied to observations before the network.
        mixed_mode: see `Learner`.

    Raises:
        UserError: a setting does not fit the rule or the observations.
    """
    if config.batch % rule.minibatches:
        raise UserError(
            f"batch is {config.batch}; expected a multiple of the {rule.minibatches} minibatches "
            f"of rule {rule.name}"
        )
    rule = dataclasses.replace(rule, discount=config.discount)
    seen = frames.stacked(observation, config.frame_stack)
    make = network or functools.partial(_make_network, config.network)
    net = make_prepared(functools.partial(make, rule.outputs(num_actions)), seen, prepare)
    warmup_updates = config.optimiser.warmup_steps / config.steps_per_update
    warmup = round(warmup_updates * rule.epochs * rule.minibatches)
    optimiser = make_optimiser(config.optimiser, warmup=warmup)
    return Learner(rule, net, optimiser, num_actions, mixed_mode=mixed_mode)


def _make_network(config: NetworkConfig, outputs: OutputSpec, observation: PyTree) -> Network:
    if config.network_factory is not None:
        return _make_own_network(config.network_factory, outputs, observation)
    sizes = {name: x for name, x in vars(config).items() if name != "network_factory"}
    return standard(outputs, observation, **sizes)


def _make_own_network(text: str, outputs: OutputSpec, observation: PyTree) -> Network:
    spec = specs.parse(text)
    if not imports.found(spec):
        raise UserError(
            f"network_factory is {text!r}; expected package.module:function, of a module that is "
            "installed or in the current folder"
        )
    made = imports.call(
        functools.partial(imports.load(spec), outputs, observation), text, spec.parameters
    )
    if not isinstance(made, Network):
        raise UserError(f"{text} made a {type(made).__name__}; expected a discorl.Network")
    return made
