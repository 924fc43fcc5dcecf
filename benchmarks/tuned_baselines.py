"""Hand-designed rules tuned alike: random settings, chosen by whole lives on train members.

    python benchmarks/tuned_baselines.py ppo actor_critic muesli q_lambda lean \
        --updates 300 1000 --out tuned

Each rule gets 24 random settings, of which six keep the rule's own coefficients. All live on a few
members of every family, the best quarter on more, and the best of those wins, once for each budget.
What changes a program is drawn for six settings at once, since compiling takes longer than living;
learning rates are drawn for each.
`lean` is Muesli without its model, here with constant coefficients of its own.

Results are kept as they come in OUT/scores.json, and a run that is stopped goes on where it was.
OUT/contenders.json names the winners, for `paired_lives.py`.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np
from discovery import FAMILIES
from paired_lives import STEPS_PER_UPDATE
from trials import Contender, Tasks, Trials

from discorl.rules.lean import GAINS, Lean

SETTINGS, TOGETHER = 24, 6
FIRST_SEED = 500_000  # apart from the members that rules are discovered and tested on
ON_POLICY = {"batch": 4, "replay_fraction": 0.0}  # the batch is the rollout


def draw(rule: str, number: int, folder: Path) -> Contender:
    """A random setting of a rule: what is compiled, and then the rest."""
    shared = np.random.default_rng([number // TOGETHER, *rule.encode()])
    own = np.random.default_rng([1000 + number, *rule.encode()])
    low, high = (1e-3, 3e-2) if rule in ("ppo", "actor_critic") else (2e-3, 3e-2)
    settings: dict = {
        "learning_rate": float(np.exp(own.uniform(np.log(low), np.log(high)))),
        "schedule": ("constant", "cosine")[number // TOGETHER % 2],
    }
    if rule == "lean":  # its coefficients are data
        if number < TOGETHER:
            return Contender("lean", settings)
        return Contender(_lean(own, folder / f"lean-{number}.npz"), settings)
    if number < TOGETHER:  # the rule's own settings
        return Contender(rule, settings | (ON_POLICY if rule in ("ppo", "actor_critic") else {}))
    num_envs, unroll = ((4, 16), (8, 16), (4, 32), (2, 32))[shared.integers(4)]
    settings |= {"num_envs": num_envs, "unroll": unroll}
    settings["reward_scale"] = float(shared.choice([1.0, 1.0, 10.0]))
    lambda_ = float(shared.choice([0.9, 0.95, 0.98]))
    if rule in ("ppo", "actor_critic"):
        settings |= ON_POLICY | {"batch": num_envs}
        entropy = float(shared.choice([0.001, 0.003, 0.01, 0.03, 0.1]))
        text = f"{rule}:lambda_={lambda_},entropy_cost={entropy}"
        if rule == "ppo":
            epochs, minibatches = shared.choice([2, 4, 8]), shared.choice([1, 2])
            text += f",epochs={epochs},minibatches={minibatches}"
        return Contender(text, settings)
    settings["replay_fraction"] = float(1 - num_envs / 16)
    if rule == "q_lambda":
        return Contender(
            f"q_lambda:lambda_={lambda_},epsilon={shared.choice([0.02, 0.05, 0.1])}", settings
        )
    names = ("clip", "cmpo_cost", "model_cost", "q_cost")
    values = np.exp(shared.normal(size=len(names)) * 0.7)
    coefficients = ",".join(f"{n}={v:.3g}" for n, v in zip(names, values, strict=True))
    return Contender(f"muesli:lambda_={lambda_},{coefficients}", settings)


def _lean(generator: np.random.Generator, file: Path) -> str:
    """Muesli's own coefficients, around their hand-designed values, constant over a life."""
    if not file.exists():
        rule = Lean()
        eta = rule.init_params(jax.random.key(0))
        constants = generator.normal(size=len(GAINS)) * 0.7
        constants[list(GAINS).index("learning_rate")] = 0  # drawn already
        rule.save(file, eta | {"coefficients": eta["coefficients"].at[:, 0].set(constants)})
    return str(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", nargs="+")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES))
    parser.add_argument("--updates", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--tasks", type=int, nargs=2, default=(4, 16), help="of all, of the best")
    parser.add_argument("--out", default="tuned")
    arguments = parser.parse_args()
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "scores.json"
    scores = json.loads(kept.read_text()) if kept.exists() else {}

    def mean_score(rule: str, number: int, updates: int, count: int) -> float:
        contender = draw(rule, number, folder)
        means = []
        for family in arguments.families:
            cell = f"{rule}/{number}/{updates}/{family}/{count}"
            if cell not in scores:
                tasks = Tasks(family, range(FIRST_SEED, FIRST_SEED + count), "train")
                found = trials.scores(contender, tasks, STEPS_PER_UPDATE * updates)
                scores[cell] = {m: float(found[m].mean()) for m in ("end", "area")}
                kept.write_text(json.dumps(scores))
            means.append(scores[cell]["end"])
        return float(np.mean(means))

    winners = {}
    for rule in arguments.rules:
        trials = Trials(size=arguments.tasks[0])
        for updates in arguments.updates:
            first = [mean_score(rule, i, updates, arguments.tasks[0]) for i in range(SETTINGS)]
            best = np.argsort(first)[::-1][: SETTINGS // 4]
            second = {i: mean_score(rule, int(i), updates, arguments.tasks[1]) for i in best}
            winner = max(second, key=lambda i: second[i])
            contender = draw(rule, int(winner), folder)
            winners[f"{rule}@{updates}"] = {"rule": contender.rule, "settings": contender.settings}
            print(rule, updates, f"{second[winner]:.3f}", contender, flush=True)
    (folder / "contenders.json").write_text(json.dumps(winners, indent=2))


if __name__ == "__main__":
    main()
