"""Acting in environments written in JAX, as a share of the bare compiled environment.

    python benchmarks/environments.py [NAME ...] [--environments 64] [--steps 100] [--rounds 20]

Bare is the suite's step alone, with random actions and without resets. Acting is what training
does: a network chooses actions, ended episodes are reset, a trajectory is put together. Both are
timed in turns in one run, and the best of all rounds is taken of each: of the time that passes, and
of the processor time, which is what to look at on a machine that is busy otherwise. `linear` is a
policy that costs next to nothing: what is left is what discorl adds to the environment, resets
included. `tiny` is a network with 32 hidden units. Suites that are not installed are left out.
"""

import argparse

import jax
import numpy as np
from measuring import clocks, report

from discorl import acting, envs, networks, rules
from discorl.envs.base import Environment

NAMES = (
    "catch",
    "gymnax:Breakout-MinAtar",
    "gymnax:SpaceInvaders-MinAtar",
    "minigrid:Empty-8x8",
    "minigrid:DoorKey-8x8",
    "sokoban:toy",
    "craftax:Craftax-Classic-Symbolic-v1",
)


def linear(environment: Environment) -> acting.Policy:
    """Logits from the first number of an observation."""
    weights = np.zeros(environment.num_actions, np.float32)

    def policy(observation, core):
        leaf = jax.tree.leaves(observation)[0]
        return leaf.reshape(leaf.shape[0], -1)[:, :1] * weights, core

    return policy


def tiny(environment: Environment) -> acting.Policy:
    rule, _ = rules.load("actor_critic")
    spec = rule.outputs(environment.num_actions)
    network = networks.standard(spec, environment.observation, torso="mlp", hidden=(32,))
    key = jax.random.key(0)
    _, observation = jax.vmap(environment.reset)(key[None])
    params = network.init(key, observation)
    return lambda observation, core: (network.apply(params, observation)["logits"], core)


NETWORKS = {"linear": linear, "tiny": tiny}


def measure(name: str, network: str, count: int, steps: int, rounds: int) -> dict:
    """Steps a second, in `count` environments at once."""
    environment = envs.make(name)
    policy = NETWORKS[network](environment)

    @jax.jit
    def act(actor, key):
        return acting.rollout(environment, policy, actor, key, steps)

    @jax.jit
    def bare(actor, key):
        def advance(states, key):
            action_key, step_key = jax.random.split(key)
            actions = jax.random.randint(action_key, (count,), 0, environment.num_actions)
            keys = jax.random.split(step_key, count)
            states, step = jax.vmap(environment.step)(states, actions, keys)
            return states, (step.observation, step.reward)

        return jax.lax.scan(advance, actor.environment, jax.random.split(key, steps))

    actor = jax.jit(lambda key: acting.init(environment, key, count))(jax.random.key(0))
    times: dict[str, list[np.ndarray]] = {"bare": [], "acting": []}
    for i in range(rounds + 1):
        key = jax.random.key(i)
        moments = [clocks()]
        jax.block_until_ready(bare(actor, key))
        moments.append(clocks())
        actor, *_ = jax.block_until_ready(act(actor, key))
        moments.append(clocks())
        if i:  # the first round compiles
            for kind, taken in zip(times, np.diff(moments, axis=0), strict=True):
                times[kind].append(taken)
    best = {kind: np.min(rows, axis=0) for kind, rows in times.items()}
    share, processor_share = 100 * best["bare"] / best["acting"]
    row = {"environment": name, "environments": count, "network": network}
    row |= {f"{kind}_per_second": round(count * steps / best[kind][0]) for kind in times}
    return row | {"of_bare_percent": share, "of_bare_processor_percent": processor_share}


def available(name: str) -> bool:
    suite = envs.SUITES.get(name.partition(":")[0])
    return suite is None or not suite.missing()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=[*filter(available, NAMES)])
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--network", choices=NETWORKS, default="linear")
    options = parser.parse_args()
    sizes = options.environments, options.steps, options.rounds
    report([measure(name, options.network, *sizes) for name in options.names])


if __name__ == "__main__":
    main()
