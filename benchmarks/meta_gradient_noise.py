"""Where the noise of a meta-gradient comes from: its data, or the agent.

    python benchmarks/meta_gradient_noise.py --rule RULE [--env tabular] [--windows 0 6 24]

Some agents live under a rule that stands still. At several ages each is copied, and the copies'
meta-gradients are compared by their mean cosine: copies that differ only in the validation data,
copies that differ in the batches too, and the agents themselves, each with its own task, network
and past. Where the last cosine is much the smallest, more agents help, and more data do not.
"""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from measuring import report

from discorl.discovery import configure_discovery
from discorl.discovery.agents import Agents, AgentState
from discorl.discovery.loop import starting_rule
from discorl.runs import compilation
from discorl.types import Array, Params

AGENTS, COPIED = 8, 3


def cosine(gradients: Params) -> float:
    """Mean cosine between two of the meta-gradients, every leaf [AGENTS, ...]."""
    rows = np.concatenate(
        [np.asarray(x, np.float64).reshape(AGENTS, -1) for x in jax.tree.leaves(gradients)], axis=1
    )
    total = np.sum(rows / np.linalg.norm(rows, axis=1, keepdims=True), axis=0)
    return float((total @ total - AGENTS) / (AGENTS * (AGENTS - 1)))


def copies(agents: AgentState, i: int) -> AgentState:
    """One agent many times, each with another key for what it will do when it is judged."""
    copied = jax.tree.map(lambda x: jnp.stack([x[i]] * AGENTS), agents)
    return dataclasses.replace(copied, key=jax.random.split(copied.key[0], AGENTS))


def with_other_batches(agents: AgentState) -> AgentState:
    """The same agents, about to act and to sample replay in different ways."""
    key: Array = agents.training.key
    training = dataclasses.replace(agents.training, key=jax.random.split(key[0], AGENTS))
    return dataclasses.replace(agents, training=training)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rule", required=True)
    parser.add_argument("--env", default="tabular")
    parser.add_argument("--windows", type=int, nargs="+", default=[0, 2, 6, 12, 24])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--validation", type=int, default=32)
    arguments = parser.parse_args()
    compilation.enable_cache()
    config = configure_discovery(
        "laptop",
        envs=(arguments.env,),
        start=arguments.rule,
        batch=arguments.batch,
        validation_envs=arguments.validation,
    )
    rule, eta = starting_rule(config)
    group = Agents(config.groups()[0], config, rule)
    begin = jax.jit(jax.vmap(group.begin, in_axes=(0, None)))
    step = jax.jit(jax.vmap(group.meta_step, in_axes=(None, 0)))
    agents = begin(jax.random.split(jax.random.key(5), AGENTS), jnp.int32(0))

    def mean(populations: list[AgentState]) -> float:
        return float(np.mean([cosine(step(eta, population)[0]) for population in populations]))

    rows = []
    for window in range(max(arguments.windows) + 1):
        gradients, later, _ = step(eta, agents)
        if window in arguments.windows:
            same = [copies(agents, i) for i in range(COPIED)]
            rows.append(
                {
                    "windows lived": window,
                    "other validation data": mean(same),
                    "other batches too": mean([with_other_batches(c) for c in same]),
                    "other agents": cosine(gradients),
                }
            )
        agents = later
    report(rows)


if __name__ == "__main__":
    main()
