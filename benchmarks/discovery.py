"""Whole lives of lean agents, by family: CPU time per update, and the share of a core's peak.

    python benchmarks/discovery.py [--families chain cliff ...] [--lives 32] [--updates 200]

Times are CPU times: lives are budgeted in core-hours. The matmul peak is measured in turns with
them, on the same clock. The best of the repeats counts.
"""

import argparse
import time

import jax
import jax.numpy as jnp
from measuring import flops, peak_probe, report

from discorl.agent.config import AgentConfig, NetworkConfig, OptimiserConfig
from discorl.discovery.lives import Lives
from discorl.envs import families
from discorl.rules.lean import Lean

FAMILIES = (
    "chain",
    "tabular",
    "grid:flat=true",
    "cliff",
    "river_swim:length=8",
    "deep_sea:size=9",
    "four_rooms",
    "key_door",
)
AGENT = AgentConfig(
    network=NetworkConfig(hidden=(32, 32)),
    optimiser=OptimiserConfig(adam_epsilon=1e-5, max_gradient_norm=1.0),
    num_envs=4,
    unroll=16,
    batch=16,
    replay=256,
    replay_fraction=0.75,
)


def measure(family: str, count: int, updates: int, repeats: int) -> dict:
    rule = Lean()
    lives = Lives(families.make(family), AGENT, rule, size=count)
    eta = lives.repeat(rule.init_params(jax.random.key(0)), count)
    tasks = lives.tasks(jax.random.split(jax.random.key(1), count), "train")
    keys = jax.random.split(jax.random.key(2), count)
    arguments = eta, tasks, keys, 1e-2

    def seconds(updates: int) -> float:
        start = time.process_time()
        lives.run(*arguments, updates)
        return time.process_time() - start

    compilation = seconds(1)
    # The loop over updates is counted once, whatever their number.
    work = flops(lives.program, *arguments[:3], jnp.full(count, 1e-2), jnp.int32(1)) / count
    peak = peak_probe(time.process_time)
    rounds = [(seconds(updates), peak()) for _ in range(repeats)]
    best, best_peak = min(r[0] for r in rounds) / updates / count, max(r[1] for r in rounds)
    return {
        "family": family,
        "compile_seconds": compilation,
        "cpu_ms_per_update": 1e3 * best,
        "mflop_per_update": work / 1e6,
        "peak_gflop_per_second": best_peak / 1e9,
        "share_of_peak": work / best / best_peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", default=FAMILIES)
    parser.add_argument("--lives", type=int, default=32, help="lives side by side")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    sizes = arguments.lives, arguments.updates, arguments.repeats
    report([measure(family, *sizes) for family in arguments.families])


if __name__ == "__main__":
    main()
