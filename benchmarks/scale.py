"""What several processes cost and bring: the combine of meta-gradients, weak scaling, memory.

    python benchmarks/scale.py --processes 1 2 4                  # on this machine
    python benchmarks/scale.py --processes 1 2 --meta-steps 0     # the combine alone
    python benchmarks/scale.py --sizes paper                      # memory and exchange, on paper

Weak scaling: every process has `--agents` agents of each environment, in one block. Times are those
of process 0, by the clock and in CPU seconds (`_cpu`). CPU seconds leave out waiting for the other
processes, and still mean something on a busy machine.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp

import discorl
from discorl.discovery.agents import Agents
from discorl.discovery.population import Population
from discorl.discovery.start import starting_rule
from discorl.runs import processes
from discorl.runs.memory import size_of
from discorl.runs.processes import Cluster

REPEATS = 20


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Seconds of the combine, median, and of a meta-step, mean, in this process."""
    config = discorl.configure_discovery(
        preset=options.preset,
        start="scratch",
        agents=options.agents * processes.count(),
        block_size=options.agents,
    )
    rule, eta = starting_rule(config)
    population = Population(config, rule)
    found = {"agents": sum(population.counts), "eta": sum(x.size for x in jax.tree.leaves(eta))}
    own = [processes.owns(device) for device in population.devices]
    counts = [block.count * mine for block, mine in zip(population.blocks, own, strict=True)]
    adams = population._combination.init(eta, counts)
    gradients = {
        i: jax.tree.map(lambda x, n=n: jnp.ones((n, *x.shape)), eta)
        for i, n in enumerate(counts)
        if n
    }
    clocks = {"": time.perf_counter, "_cpu": time.process_time}
    times: dict[str, list[float]] = {name: [] for name in clocks}
    for _ in range(REPEATS):
        processes.exchange(None)  # waiting for the slower one is not the combine's
        start = {name: clock() for name, clock in clocks.items()}
        moved, adams, _, _ = population._combination(eta, adams, gradients)
        jax.block_until_ready(moved)
        for name, clock in clocks.items():
            times[name].append(clock() - start[name])
    for name in clocks:
        found[f"combine{name}"] = statistics.median(times[name][2:])
    if options.meta_steps:
        state = population.init(eta, jax.random.key(0))
        state, _, _ = population.meta_step(state)
        start = {name: clock() for name, clock in clocks.items()}
        for _ in range(options.meta_steps):
            state, _, _ = population.meta_step(state)
        for name, clock in clocks.items():
            found[f"meta_step{name}"] = (clock() - start[name]) / options.meta_steps
            found[f"share{name}"] = found[f"combine{name}"] / found[f"meta_step{name}"]
    return found


def run(count: int, arguments: list[str]) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    children = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, "--worker", where, str(count), str(i)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    answers = [child.communicate()[0] for child in children]
    return json.loads(answers[0])


def sizes(preset: str) -> None:
    """Memory of an agent of each group and what it exchanges, in MB, without making any."""
    config = discorl.configure_discovery(preset=preset, start="scratch")
    rules = []

    def init() -> object:
        rule, eta = starting_rule(config)
        rules.append(rule)
        return eta

    eta = jax.eval_shape(init)
    for group in {group.name: group for group in config.groups()}.values():
        agents = Agents(group, config, rules[0])
        agent = jax.eval_shape(agents.begin, jax.random.key(0), jnp.int32(0))
        start = agent.training, agent.meta_value
        records = jax.eval_shape(
            lambda e, state, task, agents=agents: agents._updates(e, task, state, config.window)[1],
            eta,
            start,
            agent.task,
        )
        row = 4 * (2 * sum(x.size for x in jax.tree.leaves(eta)) + 2)
        parts = {
            "learner": size_of(agent.training.learner),
            "meta-value": size_of(agent.meta_value),
            "replay": size_of(agent.training.replay),
            f"window of {config.window}": size_of(records),
            "meta-Adam": 2 * size_of(eta),
            "exchange": row,
        }
        print(group.name, {name: round(size / 1e6, 2) for name, size in parts.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--preset", default="laptop")
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--meta-steps", type=int, default=5)
    parser.add_argument("--sizes", metavar="PRESET")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sizes:
        sizes(options.sizes)
    elif options.worker:
        where, count, number = options.worker
        cluster = Cluster(where, int(count), int(number)) if int(count) > 1 else False
        with processes.joined(cluster):
            found = measure(options)
        print(json.dumps(found))
    else:
        for count in options.processes:
            print(count, run(count, sys.argv[1:]), flush=True)


if __name__ == "__main__":
    main()
