"""One meta-gradient with Disco103's sizes: time, temporaries, and updates' worth of work.

    python benchmarks/meta_gradient.py [--windows 2 5 20] [--repeats 3] [--mixed-mode]

The agent is that of the authors' demo: 5x5 observations, torso (512, 512), action LSTM 256, heads
256, 3 actions, 32 trajectories of 28 transitions. The cost of an inner update is set against a
plain training update on the same batch, measured in the same run, as is the matmul peak.
"""

import argparse

import jax
import jax.numpy as jnp
from measuring import flops, peak_probe, report, seconds

import discorl
from discorl.discovery.meta_gradient import MetaGradient
from discorl.discovery.meta_value import MetaValue
from discorl.rules import Disco
from discorl.types import Trajectory

LENGTH, BATCH, SIDE, ACTIONS = 28, 32, 5, 3


def batches(count: int) -> Trajectory:
    """Random batches, [count, T, B]."""
    keys = jax.random.split(jax.random.key(0), 5)
    shape = (count, LENGTH, BATCH)
    return Trajectory(
        observation=jax.random.uniform(keys[0], (count, LENGTH + 1, BATCH, SIDE, SIDE)),
        action=jax.random.randint(keys[1], shape, 0, ACTIONS),
        reward=jax.random.normal(keys[2], shape),
        terminated=jax.random.uniform(keys[3], shape) < 0.1,
        behaviour_logits=jax.random.normal(keys[4], (*shape, ACTIONS)),
    )


def first(tree: Trajectory) -> Trajectory:
    return jax.tree.map(lambda x: x[0], tree)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, nargs="+", default=[2, 5, 20])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mixed-mode", action="store_true")
    arguments = parser.parse_args()

    rule = Disco()
    eta = rule.init_params(jax.random.key(2))
    observation = jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)
    network = discorl.networks.standard(
        rule.outputs(ACTIONS), observation, action_lstm=256, action_hidden=(256,)
    )
    optimizer = discorl.make_optimiser(discorl.OptimiserConfig(learning_rate=5e-4))
    learner = discorl.Learner(rule, network, optimizer, ACTIONS, arguments.mixed_mode)
    meta_value = MetaValue(observation)
    agent = (learner.init(jax.random.key(0), observation, 1), meta_value.init(jax.random.key(1)))
    meta_gradient = MetaGradient(learner, meta_value)

    validation = first(batches(1))
    plain = jax.jit(learner.update).lower(agent[0], eta, validation).compile()
    whole, learner.PIECE_BYTES = learner.PIECE_BYTES, 2**60
    window_work = {n: flops(meta_gradient, eta, *agent, batches(n), validation) for n in (1, 2)}
    learner.PIECE_BYTES = whole
    peak = peak_probe()
    rows = []
    for window in arguments.windows:
        inputs = (eta, *agent, batches(window), validation)
        program = jax.jit(meta_gradient.__call__).lower(*inputs).compile()
        times, plain_times, peaks = [], [], []
        for _ in range(arguments.repeats):
            times.append(seconds(lambda p=program, i=inputs: p(*i)))
            plain_times.append(seconds(lambda: plain(agent[0], eta, validation)))
            peaks.append(peak())
        # Every further update adds the same work. Without loops, XLA finds that the backward pass
        # computes updates again and counts them once, so the true share of the peak is higher.
        work = window_work[1] + (window - 1) * (window_work[2] - window_work[1])
        rows.append(
            {
                "window": window,
                "seconds": min(times),
                "temporaries_mb": program.memory_analysis().temp_size_in_bytes / 1e6,
                "gflop_without_recomputation": work / 1e9,
                "share_of_peak": work / min(times) / max(peaks),
                "plain_update_seconds": min(plain_times),
                "plain_updates_per_inner_update": min(times) / window / min(plain_times),
            }
        )
    report(rows)


if __name__ == "__main__":
    main()
