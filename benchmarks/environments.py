"""Acting in environments written in JAX, against the bare compiled environment.

    python benchmarks/environments.py [NAME ...] [--environments 64] [--steps 100] [--repeats 5]

Bare is the suite's step alone, with random actions and without resets. Acting is what training
does: a tiny network chooses actions, ended episodes are reset, a trajectory is put together. Both
are timed in turns in one run; suites that are not installed are left out.
"""

import argparse
import statistics

import jax
from measuring import report, seconds

from discorl import acting, envs, networks, rules

NAMES = (
    "catch",
    "gymnax:Breakout-MinAtar",
    "gymnax:SpaceInvaders-MinAtar",
    "minigrid:Empty-8x8",
    "minigrid:DoorKey-8x8",
    "sokoban:toy",
    "craftax:Craftax-Classic-Symbolic-v1",
)


def measure(name: str, count: int, steps: int, repeats: int) -> dict:
    """Steps a second, in `count` environments at once."""
    environment = envs.make(name)
    rule, _ = rules.load("actor_critic")
    spec = rule.outputs(environment.num_actions)
    network = networks.standard(spec, environment.observation, torso="mlp", hidden=(32,))
    key = jax.random.key(0)
    actor = jax.jit(lambda key: acting.init(environment, key, count))(key)
    params = network.init(key, actor.observation)

    @jax.jit
    def act(actor, key):
        policy = lambda x, core: (network.apply(params, x)["logits"], core)  # noqa: E731
        return acting.rollout(environment, policy, actor, key, steps)

    @jax.jit
    def bare(states, key):
        def advance(states, key):
            actions = jax.random.randint(key, (count,), 0, environment.num_actions)
            states, step = jax.vmap(environment.step)(states, actions, jax.random.split(key, count))
            return states, (step.observation, step.reward)

        return jax.lax.scan(advance, states, jax.random.split(key, steps))

    actor, *_ = jax.block_until_ready(act(actor, key))
    jax.block_until_ready(bare(actor.environment, key))
    acted, bared = [], []
    for repeat in range(repeats):
        key = jax.random.key(repeat + 1)
        acted.append(seconds(lambda key=key: act(actor, key)))
        bared.append(seconds(lambda key=key: bare(actor.environment, key)))
    total = count * steps
    fastest = total / statistics.median(bared)
    speed = total / statistics.median(acted)
    return {"environment": name, "acting": speed, "bare": fastest, "share": speed / fastest}


def available(name: str) -> bool:
    suite = envs.SUITES.get(name.partition(":")[0])
    return suite is None or not suite.missing()


arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("names", nargs="*", default=[name for name in NAMES if available(name)])
arguments.add_argument("--environments", type=int, default=64)
arguments.add_argument("--steps", type=int, default=100)
arguments.add_argument("--repeats", type=int, default=5)
options = arguments.parse_args()
report(
    [measure(name, options.environments, options.steps, options.repeats) for name in options.names]
)
