"""Trained agents, loaded from a run directory."""

import os

import jax

from discorl import rules
from discorl.agent.assembly import NetworkFactory
from discorl.envs import Environment, GymnaxLike, HostEnvironment
from discorl.runs import Run, compilation
from discorl.training.assembly import load_trainer
from discorl.training.policy import Policy
from discorl.training.trainer import Trainer
from discorl.types import Params, UserError

PARAMS = ".learner.params"  # where the network's parameters are in a checkpoint


def load_params(
    run: str | os.PathLike[str],
    environment: Environment | HostEnvironment | GymnaxLike | None = None,
    network: NetworkFactory | None = None,
    rule: rules.Given | None = None,
) -> tuple[Trainer, int, Params]:
    """A run's trainer, the updates made, and the newest parameters of its agents.

    See `load_trainer` for the arguments.
    """
    with Run.open(run, read_only=True) as opened:
        trainer = load_trainer(opened, environment, network, rule)
        restored = opened.restore(jax.eval_shape(trainer.init).learner.params, PARAMS)
    if restored is None:
        raise UserError(f"{run} has no checkpoint yet, so there is no agent in it")
    update, params = restored
    return trainer, update, params


def load_agent(
    run: str | os.PathLike[str],
    *,
    seed: int | None = None,
    environment: Environment | HostEnvironment | GymnaxLike | None = None,
    network: NetworkFactory | None = None,
    rule: rules.Given | None = None,
) -> Policy:
    """The policy of a trained agent.

    Args:
        run: directory of its training run.
        seed: which agent, if the run has several seeds; by default the first.
        environment: the environment, if the run was given one as an object.
        network: the network, likewise.
        rule: the rule, likewise.

    Example:
        ```python
        policy = discorl.load_agent("runs/ppo")
        action, state = policy(observation, policy.init())
        ```
    """
    compilation.enable_cache()
    trainer, _, params = load_params(run, environment, network, rule)
    return Policy.of(trainer, params, seed)
