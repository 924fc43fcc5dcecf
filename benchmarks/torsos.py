"""Whole training with different torsos for images: steps for each second of CPU time, in one run.

    python benchmarks/torsos.py [--env atari:Pong] [--preset atari_small] [--rule actor_critic]

Emulation, acting and learning are included; compilation is not. Emulation and acting are measured
by themselves, too. Pin it to one core with `taskset`
and `XLA_FLAGS=--xla_cpu_multi_thread_eigen=false`, as threads that wait cost CPU time, too.
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
    steps = sum(actor.rollout(params, key).steps for _ in range(rollouts))
    seconds = time.process_time() - start
    actor.close()
    return seconds / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="atari:Pong")
    parser.add_argument("--preset", default="atari_small")
    parser.add_argument("--rule", default="actor_critic")
    parser.add_argument("--updates", type=int, default=4)
    arguments = parser.parse_args()
    rows = []
    for name, network in TORSOS.items():
        preset, updates = arguments.preset, arguments.updates
        config = configure(arguments.rule, arguments.env, preset, updates=1 + updates, **network)
        trainer = make_trainer(config)
        assert isinstance(trainer, HostTrainer)
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
