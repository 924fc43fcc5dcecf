"""How far a meta-gradient in float32 can be trusted, over an agent's life.

    python benchmarks/float32.py [--rule RULE] [--updates 0 10 100 400] [--epsilons 1e-8 1e-5]

An agent lives on 5x5 Catch in float32. At several ages its next window of updates is recorded, and
differentiated in float32 and in float64 from the very same numbers: agent, rule and data. The error
is relative to the norm in float64. Epsilon is that of the agent's Adam: early in a life the second
moment of a parameter with hardly any gradient is tiny, and its root divides the meta-gradient.
"""

import argparse
import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from measuring import report

import discorl
from discorl import envs
from discorl.agent import acting
from discorl.agent.config import AgentConfig, NetworkConfig, OptimiserConfig
from discorl.discovery.meta_gradient import MetaGradient
from discorl.discovery.meta_value import MetaValue
from discorl.rules import Disco, Sizes
from discorl.training.compiled.agent import CompiledAgent
from discorl.types import Array, Params, PyTree, settings

WINDOW, VALIDATION = 5, 32
AGENT = AgentConfig(
    network=NetworkConfig(hidden=(64, 64), action_lstm=32, action_hidden=(32,)),
    optimiser=OptimiserConfig(learning_rate=5e-3),
    num_envs=32,
    unroll=16,
    batch=32,
    replay_fraction=0.0,
)
ENVIRONMENT = envs.make("catch:rows=5,columns=5")


def parts(rule: Disco, epsilon: float) -> tuple[CompiledAgent, MetaGradient]:
    """An agent whose Adam has the given epsilon."""
    agent = settings.replace(AGENT, adam_epsilon=epsilon)
    learner = discorl.make_learner(agent, rule, ENVIRONMENT.num_actions, ENVIRONMENT.observation)
    meta_value = MetaValue(ENVIRONMENT.observation, hidden=(64, 64), learning_rate=1e-3)
    return CompiledAgent(agent, ENVIRONMENT, learner), MetaGradient(learner, meta_value)


def cast(tree: PyTree, dtype: str) -> PyTree:
    """The tree with all its floating-point numbers in another precision."""

    def convert(x: Array) -> Array:
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(convert, tree)


def programs(rule: Disco) -> tuple[Callable, Callable, Callable]:
    """The beginning of a life; some updates of it, with their data; a meta-gradient."""

    def begin(epsilon: float, key: Array) -> PyTree:
        trainer, meta_gradient = parts(rule, epsilon)
        keys = jax.random.split(key)
        return trainer.init(keys[0], lifetime=1), meta_gradient.meta_value.init(keys[1])

    def step(epsilon: float, eta: Params, carry: PyTree) -> tuple[PyTree, PyTree]:
        trainer, meta_gradient = parts(rule, epsilon)
        training, batch, _ = trainer.collect(carry[0])
        learner, value, _ = meta_gradient.update(training.learner, carry[1], eta, batch)
        return (dataclasses.replace(training, learner=learner), value), batch

    def live(epsilon: float, eta: Params, agent: PyTree, count: Array) -> tuple[PyTree, PyTree]:
        agent = jax.lax.fori_loop(0, count, lambda _, a: step(epsilon, eta, a)[0], agent)
        after, batches = jax.lax.scan(lambda a, _: step(epsilon, eta, a), agent, length=WINDOW)
        trainer, _ = parts(rule, epsilon)
        keys = jax.random.split(after[0].key)
        actor = acting.init(ENVIRONMENT, keys[0], VALIDATION)
        _, validation, _ = acting.rollout(
            ENVIRONMENT,
            lambda *seen: trainer.learner.policy(after[0].learner.params, *seen),
            actor,
            keys[1],
            AGENT.unroll,
        )
        return agent, (batches, validation)

    def differentiate(epsilon: float, eta: Params, agent: PyTree, data: PyTree) -> Params:
        _, meta_gradient = parts(rule, epsilon)
        return meta_gradient(eta, agent[0].learner, agent[1], *data)[0]

    return tuple(jax.jit(each, static_argnums=0) for each in (begin, live, differentiate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", help="a learned rule; without one, a compact one from scratch")
    parser.add_argument("--updates", type=int, nargs="+", default=[0, 10, 100, 400])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1e-8, 1e-6, 1e-5, 1e-4])
    arguments = parser.parse_args()

    if arguments.rule:
        rule, eta = discorl.load_rule(arguments.rule)
    else:
        sizes = Sizes(prediction=32, trajectory_lstm=64, meta_lstm=32)
        rule = Disco(sizes=sizes, num_bins=51)
        eta = rule.init_params(jax.random.key(0))
    begin, live, differentiate = programs(rule)
    rows = []
    for epsilon in arguments.epsilons:
        for updates in arguments.updates:
            inputs = (epsilon, eta, begin(epsilon, jax.random.key(1)))
            agent, data = live(*inputs, updates)
            single = differentiate(*inputs[:2], agent, data)
            with jax.enable_x64(True):
                exact = differentiate(epsilon, *cast((eta, agent, data), "float64"))
                error = jax.tree.map(lambda x, y: np.asarray(x, np.float64) - y, single, exact)
                norm = float(optax.tree.norm(exact))
                rows.append(
                    {
                        "epsilon": epsilon,
                        "updates": updates,
                        "meta_gradient_norm": norm,
                        "relative_error": float(optax.tree.norm(error)) / norm,
                    }
                )
    report(rows)


if __name__ == "__main__":
    main()
