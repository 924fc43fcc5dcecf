"""One update of the Catch agent with Disco103: FLOPs, temporaries, time, share of the peak.

    python benchmarks/update.py [--rule disco103] [--actions 3 18] [--repeats 15]

Times and the matmul peak are measured in turns in one run, so that their ratio holds on a noisy
machine; the best of the repeats counts.
"""

import argparse

import jax
import jax.numpy as jnp
from measuring import flops, peak_probe, report, seconds

import discorl
from discorl.agent import learner as learner_module
from discorl.types import Trajectory

LENGTH, BATCH, SIDE = 28, 64, 8


def example_batch(num_actions: int) -> Trajectory:
    keys = jax.random.split(jax.random.key(0), 5)
    shape = (LENGTH, BATCH)
    return Trajectory(
        observation=jax.random.uniform(keys[0], (LENGTH + 1, BATCH, SIDE, SIDE)),
        action=jax.random.randint(keys[1], shape, 0, num_actions),
        reward=jax.random.normal(keys[2], shape),
        terminated=jax.random.uniform(keys[3], shape) < 0.1,
        behaviour_logits=jax.random.normal(keys[4], (*shape, num_actions)),
    )


def measure(rule_name: str, num_actions: int, repeats: int) -> dict:
    rule, eta = discorl.load_rule(rule_name)
    observation = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
    network = discorl.networks.standard(rule.outputs(num_actions), observation)
    optimizer = discorl.make_optimiser(discorl.OptimiserConfig(learning_rate=1e-2))
    learner = discorl.Learner(rule, network, optimizer, num_actions)
    state = learner.init(jax.random.key(1), observation, 1)
    eta = jax.tree.map(jnp.asarray, eta)
    arguments = (state, eta, example_batch(num_actions))
    update = jax.jit(learner.update).lower(*arguments).compile()
    # In one piece, for the count only: pieces are a loop too.
    whole, learner_module.PIECE_BYTES = learner_module.PIECE_BYTES, 2**60
    work = flops(learner.update, *arguments)
    learner_module.PIECE_BYTES = whole
    peak = peak_probe()
    rounds = [(seconds(lambda: update(*arguments)), peak()) for _ in range(repeats)]
    best, best_peak = min(r[0] for r in rounds), max(r[1] for r in rounds)
    return {
        "actions": num_actions,
        "gflop": work / 1e9,
        "temporaries_mb": update.memory_analysis().temp_size_in_bytes / 1e6,
        "seconds": best,
        "gflop_per_second": work / best / 1e9,
        "peak_gflop_per_second": best_peak / 1e9,
        "share_of_peak": work / best / best_peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", default="disco103", help="name or file of a discovered rule")
    parser.add_argument("--actions", type=int, nargs="+", default=[3, 18])
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    report([measure(arguments.rule, n, arguments.repeats) for n in arguments.actions])


if __name__ == "__main__":
    main()
