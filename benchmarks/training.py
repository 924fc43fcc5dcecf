"""A whole training run against its bare updates, and how long a second start takes.

    python benchmarks/training.py [--rule disco103] [--updates 40] [--repeats 3]

The Catch recipe is run as `discorl train` runs it, and the same updates alone on one batch, in
turns in one run. Then the command is started twice with a fresh cache of compiled programs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from measuring import report, seconds

from discorl.training import configure, make_trainer
from discorl.training.compiled.trainer import CompiledTrainer


def overhead(rule: str, updates: int, repeats: int) -> dict:
    """Seconds an update of the whole loop, and of learning alone."""
    config = configure(rule=rule, env="catch")
    trainer = make_trainer(config)
    assert isinstance(trainer, CompiledTrainer)
    agent, eta, state = trainer.agent, trainer.eta, trainer.init()
    run = jax.jit(agent.run)
    learn = jax.jit(trainer.learner.update)
    state, _ = run(state, eta, jnp.int32(2))
    _, batch, _ = jax.jit(agent.collect)(state)

    def updates_alone() -> object:
        learner = state.learner
        for _ in range(updates):
            learner, _ = learn(learner, eta, batch)
        return learner

    jax.block_until_ready(updates_alone())
    whole, alone = [], []
    for _ in range(repeats):
        whole.append(seconds(lambda: run(state, eta, jnp.int32(updates))) / updates)
        alone.append(seconds(updates_alone) / updates)
    return {
        "seconds_per_update_of_a_run": min(whole),
        "seconds_per_update_alone": min(alone),
        "overhead_percent": 100 * (min(whole) / min(alone) - 1),
    }


def second_start(rule: str) -> dict:
    """Seconds from the command to the end of its first update, with a cold and a warm cache."""
    with tempfile.TemporaryDirectory() as folder:
        times = []
        for name in ("first", "second"):
            command = [sys.executable, "-m", "discorl.cli", "train", "--rule", rule]
            command += ["--updates", "1", "--out", str(Path(folder, name))]
            environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/programs"}
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            times.append(time.perf_counter() - start)
    return {"first_start_seconds": times[0], "second_start_seconds": times[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rule", default="disco103", help="name or file of a discovered rule")
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    report([overhead(arguments.rule, arguments.updates, arguments.repeats)])
    report([second_start(arguments.rule)])


if __name__ == "__main__":
    main()
