"""Whole training with different torsos for images: steps for each second of CPU time, in one run.

    python benchmarks/torsos.py [--env atari:Pong] [--preset atari_small] [--rule actor_critic]

Times include emulation in this process, acting and learning, but not compilation. The last column
has emulation and acting alone. Pin the process to one core with `taskset` and set
`XLA_FLAGS=--xla_cpu_multi_thread_eigen=false`: waiting threads also cost CPU time.
"""

import argparse
import time

import jax
from measuring import report

from discorl.training import configure, make_trainer
from discorl.training.host.trainer import HostTrainer
from discorl.types import Params

TORSOS = {
    "residual": {"torso": "residual", "filters": (16, 32, 32), "hidden": (256,)},
    "nature": {"torso": "nature", "filters": (32, 64, 64), "hidden": (512, 128)},
    "small": {"torso": "nature", "filters": (16, 32, 32), "hidden": (256, 128)},
}


def acting(trainer: HostTrainer, params: Params, rollouts: int) -> float:
    """Seconds of CPU time for each step of rollouts alone."""
    actor, key = trainer.agent.actor(0), jax.random.key(0)
    actor.start(params)
    actor.rollout(params, key)
    start = time.process_time()
    steps = sum(actor.rollout(params, jax.random.fold_in(key, i)).steps for i in range(rollouts))
    seconds = time.process_time() - start
    actor.close()
    return seconds / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="atari:Pong")
    parser.add_argument("--preset", default="atari_small")
    parser.add_argument("--rule", default="actor_critic")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--torsos", nargs="+", default=tuple(TORSOS), choices=tuple(TORSOS))
    arguments = parser.parse_args()
    rows = []
    for name in arguments.torsos:
        preset, updates, network = arguments.preset, arguments.updates, TORSOS[name]
        # Each update requests the next rollout, also the last one that is timed.
        config = configure(arguments.rule, arguments.env, preset, updates=2 + updates, **network)
        trainer = make_trainer(config)
        if not isinstance(trainer, HostTrainer):
            parser.error(f"--env is {arguments.env}; expected one on the host, such as atari:Pong")
        state = trainer.init()
        trainer.start(state)
        state, _, _ = trainer.run(state, 1)
        start = time.process_time()
        state, _, _ = trainer.run(state, updates)
        jax.block_until_ready(state)
        seconds = (time.process_time() - start) / (config.agent.steps_per_update * updates)
        trainer.close()
        row = {"torso": name, "steps_per_cpu_second": 1 / seconds, "ms_a_step": 1e3 * seconds}
        rows.append(
            row | {"acting_ms_a_step": 1e3 * acting(trainer, state.learner.params, updates)}
        )
    report(rows)


if __name__ == "__main__":
    main()
