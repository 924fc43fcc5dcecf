"""Trained agents, loaded from a run directory."""

import os

import jax

from discorl import rules
from discorl.agent.assembly import NetworkFactory
from discorl.envs import Environment, GymnaxLike, HostEnvironment
from discorl.runs import Run, compilation
from discorl.training.assembly import load_trainer
from discorl.training.policy import Policy
from discorl.training.selection import Best
from discorl.training.trainer import Trainer
from discorl.types import Params, UserError

# Paths of the network's parameters and of the best agents in a checkpoint.
PARAMS, BEST = ".learner.params", ".best"


def load_params(
    run: str | os.PathLike[str],
    environment: Environment | HostEnvironment | GymnaxLike | None = None,
    network: NetworkFactory | None = None,
    rule: rules.Given | None = None,
    *,
    best: bool = False,
) -> tuple[Trainer, int, Params]:
    """A run's trainer, the updates made, and the newest parameters of its agents.

    With `best`, the parameters are those that were evaluated best, and the updates are the maximum
    over seeds. See `load_trainer` for the other arguments.
    """
    with Run.open(run, read_only=True) as opened:
        trainer = load_trainer(opened, environment, network, rule)
        seeds, evaluated = trainer.config.seeds, trainer.config.eval_every > 0
        if best and not evaluated:
            raise UserError(f"{run} has no best agent: it was trained without --eval-every")
        like = jax.eval_shape(trainer.init).learner.params
        if best:
            like = jax.eval_shape(lambda params: Best.none_yet(params, seeds), like)
        restored = opened.restore(like, BEST if best else PARAMS)
    if restored is None:
        raise UserError(f"{run} has no checkpoint yet, so there is no agent in it")
    update, found = restored
    if not best:
        return trainer, update, found
    return trainer, *found.agents(str(run))


def load_agent(
    run: str | os.PathLike[str],
    *,
    seed: int | None = None,
    best: bool = False,
    environment: Environment | HostEnvironment | GymnaxLike | None = None,
    network: NetworkFactory | None = None,
    rule: rules.Given | None = None,
) -> Policy:
    """The policy of a trained agent.

    Args:
        run: directory of its training run.
        seed: which agent, if the run has several seeds; by default the first.
        best: load the agent that was evaluated best, in a run with `eval_every`; by default the
            last one saved.
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
    trainer, _, params = load_params(run, environment, network, rule, best=best)
    return Policy.of(trainer, params, seed)
