"""The hand-made rules against the learning curves of another implementation, rejax.

    OTHER/python benchmarks/trusted_curves.py --theirs theirs.json
    python benchmarks/trusted_curves.py --ours runs/trusted --theirs theirs.json

The first command needs rejax 0.1.3, which runs with gymnax 0.0.9 only: a virtual environment apart,
without discorl. The second needs `discorl[gymnax]`. Either goes on where it was stopped. On both
sides a learning rate is chosen for each environment on seeds that count for nothing else; budgets,
sizes of networks and, for PPO, sizes of batches, epochs and discounts are the same. The result is
the mean return of the last tenth: of training here, of regular test episodes there.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LEARNING_RATES = (3e-4, 1e-3, 3e-3)
SEEDS, SWEEP_SEEDS, SWEEP_SEED = 6, 2, 1_000_000  # as many agents in the sweep as count
HIDDEN = (64, 64)
DISCOUNT = 0.99
RECENT = 0.1  # share of a curve, its end, that counts
TEST_POINTS, TEST_EPISODES = 20, 16  # of the other implementation
RESAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment and how long agents learn in it."""

    name: str
    steps: int


ENVIRONMENTS, UNROLL, EPOCHS, MINIBATCHES = 64, 32, 4, 8  # of PPO on both sides
# Whole updates of PPO, and whole numbers of them between two tests.
TASKS = (Task("CartPole-v1", 204_800), Task("Breakout-MinAtar", 1_024_000))

ON_POLICY = {"num_envs": ENVIRONMENTS, "num_steps": UNROLL, "num_minibatches": MINIBATCHES}
THEIRS: Mapping[str, Mapping[str, Any]] = {
    "ppo": ON_POLICY
    | {
        "num_epochs": EPOCHS,
        "agent_kwargs": {"activation": "relu", "hidden_layer_sizes": HIDDEN},
        "max_grad_norm": 0.5,
        "ent_coef": 0.01,
    },
    "pqn": ON_POLICY | {"num_epochs": EPOCHS, "max_grad_norm": 10.0, "td_lambda": 0.9},
}
REPLAY = {"environments": 8, "unroll": 16, "batch": 32, "replay_fraction": 0.75, "replay": 4096}
OURS: tuple[Mapping[str, Any], ...] = (
    {
        "rule": f"ppo:epochs={EPOCHS},minibatches={MINIBATCHES},entropy_cost=0.01",
        "settings": {
            "environments": ENVIRONMENTS,
            "batch": ENVIRONMENTS,
            "unroll": UNROLL,
            "adam_epsilon": 1e-8,
        },
    },
    {"rule": "q_lambda", "settings": REPLAY},
    {"rule": "actor_critic"},
    {"rule": "policy_gradient"},
    {"rule": "muesli", "settings": REPLAY},
)
SETTINGS = {
    "torso": "mlp",
    "hidden": HIDDEN,
    "discount": DISCOUNT,
    "log_every": 8,
    "checkpoint_every": 2048,
}
# What each rule is held against. Only the first two are the same kind of algorithm: the others are
# held against the level that PPO reaches, no more.
REFERENCES = {
    "ppo": "ppo",
    "q_lambda": "pqn",
    "actor_critic": "ppo",
    "policy_gradient": "ppo",
    "muesli": "ppo",
}


# --- theirs ---------------------------------------------------------------------------------------


def record_theirs(file: Path, tasks: Sequence[Task]) -> None:
    """Trains with rejax whatever the file lacks, which holds an entry by environment."""
    found = json.loads(file.read_text()) if file.exists() else {}
    for task in tasks:
        for name in THEIRS:
            entries = found.setdefault(task.name, {})
            if entries.get(name, {}).get("steps") == task.steps:
                continue
            start = time.perf_counter()
            entries[name] = _theirs(task, name)
            entries[name]["seconds"] = time.perf_counter() - start
            file.write_text(json.dumps(found, indent=1))
            print(
                task.name,
                name,
                {k: v for k, v in entries[name].items() if k != "curves"},
                flush=True,
            )


def _theirs(task: Task, name: str) -> dict[str, Any]:
    """Tunes an algorithm of rejax on seeds of its own, then trains the agents that count."""
    import jax
    import jax.numpy as jnp
    import rejax
    from rejax.evaluate import evaluate

    config = {"env": task.name, "total_timesteps": task.steps, "gamma": DISCOUNT}
    config |= {"eval_freq": task.steps // TEST_POINTS, "skip_initial_evaluation": True}
    algorithm = rejax.get_algo(name).create(**config, **THEIRS[name])

    def test(algorithm: Any, state: Any, key: Any) -> Any:
        limit = algorithm.env_params.max_steps_in_episode
        act = algorithm.make_act(state)
        played = evaluate(act, key, algorithm.env, algorithm.env_params, TEST_EPISODES, limit)
        return played[1].mean()

    algorithm = algorithm.replace(eval_callback=test)

    def train(key: Any, rate: Any) -> Any:
        return algorithm.replace(learning_rate=rate).train(key)[1]

    train_all = jax.jit(jax.vmap(train))  # one program for the sweep and what counts

    def curves(seeds: Sequence[int], rates: Sequence[float]) -> np.ndarray:
        keys = jnp.stack([jax.random.PRNGKey(seed) for seed in seeds])
        return np.asarray(train_all(keys, jnp.array(rates)))

    tried = list(itertools.product(LEARNING_RATES, range(SWEEP_SEED, SWEEP_SEED + SWEEP_SEEDS)))
    sweep = final_returns(curves([seed for _, seed in tried], [rate for rate, _ in tried]))
    sweep = sweep.reshape(len(LEARNING_RATES), SWEEP_SEEDS).mean(axis=1)
    rate = LEARNING_RATES[int(np.argmax(sweep))]
    found = curves(range(SEEDS), [rate] * SEEDS)
    return {
        "steps": task.steps,
        "learning_rate": rate,
        "sweep": sweep.tolist(),
        "returns": final_returns(found).tolist(),
        "curves": found.tolist(),
    }


def final_returns(curves: np.ndarray) -> np.ndarray:
    """Mean of the end of each curve: [agents, points] -> [agents]."""
    return curves[:, -max(1, round(RECENT * curves.shape[1])) :].mean(axis=1)


# --- ours -----------------------------------------------------------------------------------------


def record_ours(
    folder: Path, tasks: Sequence[Task], rules: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Trains our rules, as far as it is not done, each in a comparison of its own."""
    import discorl

    tell = functools.partial(print, flush=True)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for task, rule in itertools.product(tasks, rules):
        path = folder / task.name / _label(rule)
        if path.exists():
            results = discorl.compare(resume=path, tell=tell)
        else:
            results = discorl.compare(
                rules=[rule],
                environments=[f"gymnax:{task.name}"],
                steps=task.steps,
                learning_rates=LEARNING_RATES,
                seeds=SEEDS,
                sweep_seeds=SWEEP_SEEDS,
                sweep_seed=SWEEP_SEED,
                seeds_at_once=SWEEP_SEEDS,  # one program for the sweep and what counts
                settings=SETTINGS,
                out=path,
                tell=tell,
            )
        for group in results.complete.values():
            found.setdefault(task.name, {})[_label(rule)] = {
                "learning_rate": group[0][1]["learning_rate"],
                "returns": [value for _, record in group for value in record["returns"]],
            }
    return found


def _label(rule: Mapping[str, Any]) -> str:
    return rule["rule"].partition(":")[0]


# --- side by side ---------------------------------------------------------------------------------


def interval(values: list[float]) -> tuple[float, float]:
    """95% percentile bootstrap of a mean over agents."""
    draws = np.random.default_rng(0).choice(values, (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def _with_interval(values: list[float]) -> str:
    low, high = interval(values)
    return f"{np.mean(values):.1f} [{low:.1f}, {high:.1f}]"


def _verdict(ours: list[float], theirs: list[float]) -> str:
    """Where our interval lies."""
    (low, high), (their_low, their_high) = interval(ours), interval(theirs)
    return "below" if high < their_low else "above" if low > their_high else "overlap"


def rows(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each rule and environment that both sides have."""
    found = []
    for task in TASKS:
        for rule, reference in REFERENCES.items():
            mine = ours.get(task.name, {}).get(rule)
            other = theirs.get(task.name, {}).get(reference)
            if mine is None or other is None:
                continue
            found.append(
                {
                    "environment": task.name,
                    "steps": task.steps,
                    "rule": rule,
                    "rate": mine["learning_rate"],
                    "ours": _with_interval(mine["returns"]),
                    "reference": f"rejax {reference}",
                    "their rate": other["learning_rate"],
                    "theirs": _with_interval(other["returns"]),
                    "verdict": _verdict(mine["returns"], other["returns"]),
                }
            )
    return found


def main() -> None:
    """Trains what is asked for, and prints the table if both sides are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--theirs", type=Path, help="JSON file of the other implementation")
    parser.add_argument("--ours", type=Path, help="folder of our comparisons")
    parser.add_argument("--only", help="name of the only environment")
    parser.add_argument("--rules", nargs="+", help="names of the only rules, of ours")
    arguments = parser.parse_args()
    tasks = [task for task in TASKS if arguments.only in (None, task.name)]
    if arguments.ours is None:
        record_theirs(arguments.theirs, tasks)
        return
    rules = [rule for rule in OURS if _label(rule) in (arguments.rules or REFERENCES)]
    ours = record_ours(arguments.ours, tasks, rules)
    theirs = json.loads(arguments.theirs.read_text()) if arguments.theirs else {}
    from measuring import report

    found = rows(ours, theirs)
    report(found) if found else print("no rule has a curve to be held against yet")


if __name__ == "__main__":
    main()
