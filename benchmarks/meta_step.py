"""Meta-steps of a preset's population, by group: CPU time per differentiated update.

    python benchmarks/meta_step.py [--preset laptop] [--groups 0 1]

An update is counted with all that belongs to it: acting, the agent's and the meta-value function's
update, its share of the validation rollout, and its derivative. Work is that of the matrix
products, including those of updates that the backward pass computes again. Times are CPU times; the
matmul peak is measured in turns with them, on the same clock. The best of the repeats counts.
"""

import argparse
import time

import jax
import jax.numpy as jnp
from measuring import peak_probe, report

from discorl.discovery.agents import Agents
from discorl.discovery.config import DiscoverConfig, Group
from discorl.discovery.presets import configure_discovery
from discorl.discovery.start import starting_rule
from discorl.training.flops import flops


def measure(group: Group, config: DiscoverConfig, repeats: int) -> dict:
    rule, eta = starting_rule(config)
    agents = Agents(group, config, rule)
    step = jax.vmap(agents.meta_step, in_axes=(None, 0))
    keys = jax.random.split(jax.random.key(0), group.count)
    state = jax.jit(jax.vmap(agents.begin, in_axes=(0, None)))(keys, jnp.int32(0))
    start = time.process_time()
    program = jax.jit(step, donate_argnums=1).lower(eta, state).compile()
    compilation = time.process_time() - start
    work = flops(step, eta, state)
    peak, rounds = peak_probe(time.process_time), []
    for _ in range(repeats):
        start = time.process_time()
        gradient, state, _ = program(eta, state)
        jax.block_until_ready(gradient)
        rounds.append((time.process_time() - start, peak()))
    best, best_peak = min(r[0] for r in rounds), max(r[1] for r in rounds)
    updates = group.count * config.window
    return {
        "group": group.name,
        "compile_seconds": compilation,
        "temporaries_mb": program.memory_analysis().temp_size_in_bytes / 1e6,
        "cpu_ms_per_update": 1e3 * best / updates,
        "mflop_per_update": work / updates / 1e6,
        "peak_gflop_per_second": best_peak / 1e9,
        "share_of_peak": work / best / best_peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="laptop")
    parser.add_argument("--groups", type=int, nargs="+", help="by their place; by default all")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    config = configure_discovery(preset=arguments.preset, start="scratch")
    groups = config.groups()
    chosen = [groups[i] for i in arguments.groups] if arguments.groups else groups
    report([measure(group, config, arguments.repeats) for group in chosen])


if __name__ == "__main__":
    main()
