"""The hand-designed rules against the learning curves of another implementation, rejax.

    OTHER/python benchmarks/trusted_curves.py --theirs theirs.json
    python benchmarks/trusted_curves.py --ours ours.json --theirs theirs.json

The first command needs rejax 0.1.3, which runs with gymnax 0.0.9 only: a virtual environment apart,
without discorl. The second needs `discorl[gymnax]`. Either goes on where it was stopped. On both
sides a learning rate is chosen for each environment on seeds that count for nothing else; budgets,
discounts and sizes of networks are the same and, where the algorithm is, sizes of batches, passes
and the entropy bonus, too. The result is the mean return of the last tenth: of training here, of
regular test episodes there.
"""

import argparse
import copy
import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
SEEDS, SWEEP_SEEDS, SWEEP_SEED = 8, 2, 1_000_000  # as many agents in the sweep as count
HIDDEN = (64, 64)  # of the network of each output
DISCOUNT = 0.99
ENTROPY_COST = 0.01
RECENT = 0.1  # share of a curve, its end, that counts
TEST_POINTS, TEST_EPISODES = 20, 16  # of the other implementation
RESAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment and how long agents learn in it."""

    name: str
    steps: int


TASKS = (Task("CartPole-v1", 204_800), Task("Breakout-MinAtar", 512_000))

ENVIRONMENTS, UNROLL, EPOCHS, MINIBATCHES = 16, 32, 4, 4  # of PPO and PQN
SHORT = 16  # unroll of what makes one pass over its data

_PASSES = {"num_envs": ENVIRONMENTS, "num_steps": UNROLL, "num_epochs": EPOCHS}
_PASSES |= {"num_minibatches": MINIBATCHES}
_POLICY = {
    "agent_kwargs": {"activation": "relu", "hidden_layer_sizes": HIDDEN},
    "max_grad_norm": 0.5,
    "ent_coef": ENTROPY_COST,
}
# With one pass over the data in one piece nothing is clipped, and PPO is advantage actor-critic;
# without decay of the errors it is REINFORCE with a baseline.
_ONE_PASS = _POLICY | {"num_envs": ENVIRONMENTS, "num_steps": SHORT}
_ONE_PASS |= {"num_epochs": 1, "num_minibatches": 1}
THEIRS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ppo": ("ppo", _PASSES | _POLICY),
    "a2c": ("ppo", _ONE_PASS),
    "reinforce": ("ppo", _ONE_PASS | {"gae_lambda": 1.0}),
    "pqn": ("pqn", _PASSES | {"max_grad_norm": 10.0, "td_lambda": 0.9}),
}
_FRESH = {"num_envs": ENVIRONMENTS, "batch": ENVIRONMENTS, "unroll": SHORT}
_FRESH |= {"max_gradient_norm": 0.5, "adam_epsilon": 1e-8, "reward_scale": 1.0}
_REPLAY = {"num_envs": 4, "unroll": SHORT, "batch": 32, "replay_fraction": 0.875}
_REPLAY |= {"replay": 2048, "reward_scale": 1.0}
_BONUS = f"entropy_cost={ENTROPY_COST}"


@dataclasses.dataclass(frozen=True)
class Ours:
    """One of our rules, and how it is trained."""

    rule: str
    settings: Mapping[str, Any]


OURS = {
    "ppo": Ours(
        f"ppo:epochs={EPOCHS},minibatches={MINIBATCHES},{_BONUS}", _FRESH | {"unroll": UNROLL}
    ),
    "actor_critic": Ours(f"actor_critic:{_BONUS}", _FRESH),
    "policy_gradient": Ours(f"policy_gradient:{_BONUS}", _FRESH),
    "q_lambda": Ours("q_lambda", _REPLAY),
    "muesli": Ours("muesli", _REPLAY),
}
# What each rule is held against. The first three are the same algorithm; Q(lambda) learns from
# replay and PQN does not; Muesli is held against the level that PPO reaches, no more.
REFERENCES = {
    "ppo": "ppo",
    "actor_critic": "a2c",
    "policy_gradient": "reinforce",
    "q_lambda": "pqn",
    "muesli": "ppo",
}


def _record(
    file: Path,
    tasks: Sequence[Task],
    names: Iterable[str],
    train: Callable[[Task, str], dict[str, Any]],
) -> dict[str, Any]:
    """Adds what a file of entries, by environment and name, lacks."""
    found = json.loads(file.read_text()) if file.exists() else {}
    for task, name in itertools.product(tasks, names):
        entries = found.setdefault(task.name, {})
        if entries.get(name, {}).get("steps") == task.steps:
            continue
        start = time.perf_counter()
        entries[name] = train(task, name)
        entries[name]["seconds"] = time.perf_counter() - start
        file.write_text(json.dumps(found, indent=1))
        shown = {key: value for key, value in entries[name].items() if key != "curves"}
        print(task.name, name, shown, flush=True)
    return found


# --- theirs ---------------------------------------------------------------------------------------


def record_theirs(file: Path, tasks: Sequence[Task]) -> None:
    """Trains with rejax whatever the file lacks."""
    _record(file, tasks, THEIRS, _theirs)


def _theirs(task: Task, name: str) -> dict[str, Any]:
    """Tunes an algorithm of rejax on seeds of its own, then trains the agents that count."""
    import jax
    import jax.numpy as jnp
    import rejax
    from rejax.evaluate import evaluate

    config = {"env": task.name, "total_timesteps": task.steps, "gamma": DISCOUNT}
    config |= {"eval_freq": task.steps // TEST_POINTS, "skip_initial_evaluation": True}
    kind, settings = THEIRS[name]
    # A copy, for rejax takes its own out of what it is given.
    algorithm = rejax.get_algo(kind).create(**config, **copy.deepcopy(settings))

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


def record_ours(file: Path, tasks: Sequence[Task], rules: Mapping[str, Ours]) -> dict[str, Any]:
    """Trains by our rules whatever the file lacks; see `record_theirs`."""
    return _record(file, tasks, rules, lambda task, name: _ours(task, rules[name]))


def _ours(task: Task, ours: Ours) -> dict[str, Any]:
    """Tunes one of our rules on seeds of its own, then trains the agents that count."""
    import discorl

    steps_per_update = ours.settings["num_envs"] * ours.settings["unroll"]

    def returns(rate: float, seed: int, seeds: int) -> np.ndarray:
        return discorl.train(
            rule=ours.rule,
            env=f"gymnax:{task.name}",
            network=towers,
            updates=task.steps // steps_per_update,
            learning_rate=rate,
            seed=seed,
            seeds=seeds,
            discount=DISCOUNT,
            log_every=8,
            **ours.settings,
        ).recent_return()

    sweep = [float(np.mean(returns(rate, SWEEP_SEED, SWEEP_SEEDS))) for rate in LEARNING_RATES]
    rate = LEARNING_RATES[int(np.argmax(sweep))]
    return {
        "steps": task.steps,
        "learning_rate": rate,
        "sweep": sweep,
        "returns": returns(rate, 0, SEEDS).tolist(),
    }


def towers(spec: Any, observation: Any) -> Any:
    """An MLP for each output, as the other implementation has it: nothing is shared."""
    import jax
    import jax.numpy as jnp

    from discorl.networks import Network
    from discorl.networks.layers import init_mlp, mlp

    of_actions = {name: (spec.num_actions, *shape) for name, shape in spec.action.items()}
    shapes = dict(spec.state) | of_actions

    def init(key: Any, observations: Any) -> Any:
        inputs = observations[0].size
        keys = jax.random.split(key, len(shapes))
        return {
            name: init_mlp(k, inputs, (*HIDDEN, math.prod(shapes[name])))
            for name, k in zip(sorted(shapes), keys, strict=True)
        }

    def apply(params: Any, observations: Any) -> Any:
        flat = observations.reshape(observations.shape[0], -1).astype(jnp.float32)
        return {name: mlp(params[name], flat).reshape(-1, *shape) for name, shape in shapes.items()}

    return Network(init, apply)


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
    parser.add_argument("--ours", type=Path, help="JSON file of ours")
    parser.add_argument("--only", help="name of the only environment")
    parser.add_argument("--rules", nargs="+", choices=OURS, help="the only rules, of ours")
    arguments = parser.parse_args()
    if arguments.ours is None and arguments.theirs is None:
        parser.error("give --theirs, --ours or both")
    tasks = [task for task in TASKS if arguments.only in (None, task.name)]
    if arguments.ours is None:
        record_theirs(arguments.theirs, tasks)
        return
    rules = {name: OURS[name] for name in arguments.rules or OURS}
    ours = record_ours(arguments.ours, tasks, rules)
    theirs = json.loads(arguments.theirs.read_text()) if arguments.theirs else {}
    from measuring import report

    found = rows(ours, theirs)
    if found:
        report(found)
    else:
        print("no rule has a curve to be held against yet")


if __name__ == "__main__":
    main()
