"""The lean rule evolved over whole lives: one recipe, any seed.

    python benchmarks/evolve_lean.py OUT --seed 0 [--generations 380]

A generation is 128 pairs of lives, 16 in each of eight families, and takes about 35 s of one core.
Coefficients and outputs of the network evolve; its hidden layer stays random. OUT/state.npz is
saved every five generations, and a run that is stopped goes on from there, bit for bit.
OUT/metrics.jsonl has a line per generation. OUT/rule.npz is the average of the iterates.
"""

import argparse
import json
import time
from pathlib import Path

import jax
from discovery import FAMILIES

from discorl.discovery.evolution import Evolution, EvolutionState, Settings
from discorl.discovery.lives import Lives
from discorl.discovery.trials import SMALL_AGENT, Contender
from discorl.envs import families
from discorl.rules.lean import Lean
from discorl.runs import checkpoints

LIVES = 32  # of each family in a generation
SAVE_EVERY = 5
FIRST_SEED = 1_000_000  # of the run's keys, apart from those of members in trials


def recipe(generations: int) -> Settings:
    """The settings; until steps decay, at 30% of the generations, their number does not matter."""
    return Settings(
        generations=generations,
        noise=0.25,
        step=0.06,
        cooldown=0.7,
        shortest=150,
        longest=1000,
        learning_rate=SMALL_AGENT["learning_rate"],
        scales={"hidden": 0.0, "output": 0.3},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--generations", type=int, default=380)
    arguments = parser.parse_args()
    folder, rule = arguments.out, Lean()
    folder.mkdir(parents=True, exist_ok=True)
    # Learning rates are data: whatever the agent's own, the program is the same.
    agent = Contender("lean", {"learning_rate": 1.0}).agent
    groups = [Lives(families.make(family), agent, rule, size=LIVES) for family in FAMILIES]
    evolution = Evolution(groups, recipe(arguments.generations))
    state = evolution.init(
        rule.init_params(jax.random.key(0)), jax.random.key(FIRST_SEED + arguments.seed)
    )
    if (folder / "state.npz").exists():
        state = checkpoints.restore(folder / "state.npz", state)

    def save(state: EvolutionState) -> None:
        checkpoints.save(folder / "state.npz", state)
        rule.save(folder / "rule.npz", state.average, {"generation": int(state.generation)})

    while (done := int(state.generation)) < arguments.generations:
        start = time.process_time()
        state, metrics = evolution.step(state)
        row = {"generation": done + 1, "cpu_seconds": time.process_time() - start, **metrics}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if (done + 1) % SAVE_EVERY == 0:
            save(state)
    save(state)


if __name__ == "__main__":
    main()
