"""What random play earns: the lower end of a scale of scores.

    python benchmarks/random_play.py gymnax:CartPole-v1 gymnax:Breakout-MinAtar [--episodes 2000]

Every environment plays that many first episodes at once, with uniformly random actions.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from measuring import report

from discorl import envs
from discorl.envs import Environment
from discorl.runs import statistics

MAX_STEPS = 10_000


def play(environment: Environment, episodes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns of first episodes, and whether they came to their end by themselves."""
    reset_key, key = jax.random.split(jax.random.key(seed))

    def advance(carry: tuple) -> tuple:
        state, total, ended, step = carry
        act_key, step_key = jax.random.split(jax.random.fold_in(key, step))
        action = jax.random.randint(act_key, (episodes,), 0, environment.num_actions)
        keys = jax.random.split(step_key, episodes)
        state, result = jax.vmap(environment.step)(state, action, keys)
        total = total + jnp.where(ended, 0, result.reward)
        return state, total, ended | result.terminated | result.truncated, step + 1

    def goes_on(carry: tuple) -> jax.Array:
        return ~jnp.all(carry[2]) & (carry[3] < MAX_STEPS)

    def run() -> tuple:
        state, _ = jax.vmap(environment.reset)(jax.random.split(reset_key, episodes))
        start = (state, jnp.zeros(episodes), jnp.zeros(episodes, bool), 0)
        return jax.lax.while_loop(goes_on, advance, start)

    _, total, ended, _ = jax.jit(run)()
    return np.asarray(total), np.asarray(ended)


def main() -> None:
    """Prints a row for each environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environments", nargs="+")
    parser.add_argument("--episodes", type=int, default=2000)
    arguments = parser.parse_args()
    rows = []
    for text in arguments.environments:
        returns, ended = play(envs.make(text), arguments.episodes)
        found = statistics.estimate(statistics.mean, returns.reshape(-1, 1))
        row = {"environment": text, "mean": found.value, "low": found.low, "high": found.high}
        rows.append(row | {"largest": float(returns.max()), "unfinished": int((~ended).sum())})
    report(rows)


if __name__ == "__main__":
    main()
