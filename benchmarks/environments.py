"""Acting in environments written in JAX, as a share of the bare compiled environment.

    python benchmarks/environments.py [NAME ...] [--environments 64] [--steps 100] [--rounds 20]

`steps` is the suite's step alone, with random actions and without resets: episodes go on beyond
their end. `resetting` is the bare environment as one would play it: every step makes a fresh start
as well, which is taken where an episode ended; it is left out where resets are too costly for
that (Craftax). Acting is what training does: a policy chooses
actions, ended episodes are reset, a trajectory is put together. All are timed in turns in one run,
and the best of all rounds is taken of each: of the time that passes, and of the processor time,
which is what to look at on a machine that is busy otherwise. The policy `linear` costs next to
nothing, `tiny` is a network with 32 hidden units. Suites that are not installed are left out.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from measuring import clocks, report

from discorl import envs, networks, rules
from discorl.agent import acting
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

    def policy(observation, recurrent_state, action_mask):
        leaf = jax.tree.leaves(observation)[0]
        return leaf.reshape(leaf.shape[0], -1)[:, :1] * weights, recurrent_state

    return policy


def tiny(environment: Environment) -> acting.Policy:
    rule, _ = rules.load("actor_critic")
    spec = rule.outputs(environment.num_actions)
    network = networks.standard(spec, environment.observation, torso="mlp", hidden=(32,))
    key = jax.random.key(0)
    _, observation = jax.vmap(environment.reset)(key[None])
    params = network.init(key, observation)
    return lambda observation, recurrent_state, action_mask: (
        network.apply(params, observation)["logits"],
        recurrent_state,
    )


NETWORKS = {"linear": linear, "tiny": tiny}


def measure(name: str, network: str, count: int, steps: int, rounds: int) -> dict:
    """Steps a second, in `count` environments at once."""
    environment = envs.make(name)
    policy = NETWORKS[network](environment)

    @jax.jit
    def act(actor, key):
        return acting.rollout(environment, policy, actor, key, steps)

    def bare(with_resets):
        """Random actions, and fresh starts where episodes end or not at all."""

        def advance(states, key):
            action_key, step_key, reset_key = jax.random.split(key, 3)
            actions = jax.random.randint(action_key, (count,), 0, environment.num_actions)
            keys = jax.random.split(step_key, count)
            states, step = jax.vmap(environment.step)(states, actions, keys)
            observation = step.observation
            if with_resets:
                fresh = jax.vmap(environment.reset)(jax.random.split(reset_key, count))
                pick = functools.partial(jax.vmap(jnp.where), step.terminated | step.truncated)
                states, observation = jax.tree.map(pick, fresh, (states, observation))
            return states, (observation, step.reward, step.terminated)

        return jax.jit(
            lambda actor, key: jax.lax.scan(
                advance, actor.environment, jax.random.split(key, steps)
            )
        )

    actor = jax.jit(lambda key: acting.init(environment, key, count))(jax.random.key(0))
    programs = {"steps": bare(False), "resetting": bare(True), "acting": act}
    if environment.resets_at_once is not None:  # dozens of times as costly as a step
        del programs["resetting"]
    times: dict[str, list[np.ndarray]] = {kind: [] for kind in programs}
    for i in range(rounds + 1):
        for kind, program in programs.items():
            before = clocks()
            result = jax.block_until_ready(program(actor, jax.random.key(i)))
            if i:  # the first round compiles
                times[kind].append(np.subtract(clocks(), before))
        actor = result[0]
    best = {kind: np.min(rows, axis=0) for kind, rows in times.items()}
    row = {"environment": name, "environments": count, "network": network}
    row |= {f"{kind}_per_second": round(count * steps / best[kind][0]) for kind in programs}
    for kind in (kind for kind in programs if kind != "acting"):
        row[f"of_{kind}_percent"], row[f"of_{kind}_processor_percent"] = (
            100 * best[kind] / best["acting"]
        )
    return row


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
    for name in options.names:
        report([measure(name, options.network, *sizes)])


if __name__ == "__main__":
    main()
