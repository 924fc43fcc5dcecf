"""Recipes for a kind of task: equally many random settings of every rule, on seeds set apart.

    python benchmarks/recipe_search.py --kind minatar --out runs/recipes

Each rule gets eight settings. Two keep the rule's own recipe and differ in the learning rate; the
others draw their data, discount, reward scale and, where the rule has them, epochs, entropy bonus
or epsilon. What changes a program is drawn for three settings at once, since compiling takes about
as long as training; learning rates are drawn for each. All train in the environments of their kind,
one or two, with the network of its preset, and are ranked by their mean score.

The search is a comparison. The same command continues one that was stopped, and `discorl report
OUT` shows it. OUT/recipes.json has every setting with its score and returns, the best of each rule
first, and OUT/recipes.toml the best ones for a comparison: `discorl compare --suite
OUT/recipes.toml`.
"""

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import discorl
from discorl.comparison import ComparisonConfig, Results, load, suite_files
from discorl.comparison.entries import RuleEntry, read_entries

RULES = ("lean2", "ppo", "q_lambda", "actor_critic", "muesli", "disco103")
SETTINGS, OWN, TOGETHER = 8, 2, 3
FIRST_SEED = 3_000_000  # apart from those that are compared, and from those of learning-rate sweeps
LEARNING_RATES = (2e-4, 1e-2)
FRESH = ("ppo", "actor_critic")  # rules that learn from fresh data only
# Environments and transitions of a rollout; for rules with replay also the batch. The preset's own,
# 32 environments and a batch of 64, learns from every step twice; these do so four or eight times.
ROLLOUTS = ((8, 14), (16, 14), (16, 28), (32, 28), (64, 28))
REPLAYED = ((16, 28, 64), (8, 28, 32), (8, 28, 64), (4, 28, 32))


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of task: where to search, and what depends on its rewards."""

    envs: tuple[str, ...]
    steps: int
    discounts: tuple[float, float, float]
    reward_scales: tuple[float, float, float]
    disco_scales: tuple[float, float, float]  # Disco rules learn poorly from small rewards


KINDS = {
    "minatar": Kind(
        envs=("gymnax:Breakout-MinAtar",),
        steps=150_000,
        discounts=(0.95, 0.99, 0.997),
        reward_scales=(1.0, 3.0, 10.0),
        disco_scales=(1.0, 3.0, 10.0),
    ),
    # Rewards of 1 or -1 at each of up to 500 steps.
    "classic": Kind(
        envs=("gymnax:CartPole-v1", "gymnax:Acrobot-v1"),
        steps=100_000,
        discounts=(0.97, 0.99, 0.997),
        reward_scales=(0.1, 0.3, 1.0),
        disco_scales=(1.0, 3.0, 10.0),
    ),
    # A single reward of at most 1, at the end.
    "minigrid": Kind(
        envs=("minigrid:DoorKey-5x5",),
        steps=200_000,
        discounts=(0.95, 0.99, 0.997),
        reward_scales=(3.0, 10.0, 30.0),
        disco_scales=(30.0, 100.0, 300.0),
    ),
}


def draw(rule: str, number: int, kind: Kind = KINDS["minatar"]) -> dict[str, Any]:
    """A random setting of a rule, as an entry of a comparison.

    Draws are stratified: learning rates of a group lie in different parts of the range, and the
    groups have different values of everything else.
    """
    group = (number - OWN) // TOGETHER  # -1: the rule's own recipe
    member, members = (number, OWN) if group < 0 else ((number - OWN) % TOGETHER, TOGETHER)
    place = np.random.default_rng([number, *rule.encode()]).uniform(member, member + 1) / members
    rate = LEARNING_RATES[0] * (LEARNING_RATES[1] / LEARNING_RATES[0]) ** place
    settings: dict[str, Any] = {"learning_rate": float(f"{rate:.2g}")}
    if group < 0:
        return {"rule": rule, "label": f"{rule} {number}", "settings": settings}
    generator = np.random.default_rng([*rule.encode()])

    def pick(values: Sequence[Any]) -> Any:
        return values[generator.permutation(len(values))[group]]

    scales = kind.disco_scales if rule.startswith("disco") else kind.reward_scales
    settings |= {"discount": pick(kind.discounts), "reward_scale": pick(scales)}
    if rule in FRESH:
        num_envs, unroll = pick(ROLLOUTS)
        settings |= {"num_envs": num_envs, "unroll": unroll, "batch": num_envs}
        text = f"{rule}:entropy_cost={pick([0.003, 0.01, 0.03])}"
        text += f",epochs={pick([2, 4, 8])}" if rule == "ppo" else ""
    else:
        num_envs, unroll, batch = pick(REPLAYED)
        settings |= {"num_envs": num_envs, "unroll": unroll, "batch": batch}
        settings["replay_fraction"] = 1 - num_envs / batch
        text = f"{rule}:epsilon={pick([0.02, 0.05, 0.1])}" if rule == "q_lambda" else rule
    return {"rule": text, "label": f"{rule} {number}", "settings": settings}


def ranking(results: Results, rules: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The settings of each rule with their scores and returns, the best first."""
    returns: dict[RuleEntry, dict[str, float | None]] = {}
    for cell, record in results.final.items():
        if record is not None:
            found = record.get("returns")  # none of a setting that failed
            mean = None if found is None else float(np.mean(found))
            returns.setdefault(cell.rule, {})[cell.environment.label] = mean
    rows: dict[str, list[dict[str, Any]]] = {rule: [] for rule in rules}
    for entry, means in returns.items():
        scores = [None if x is None else results.scales[env].score(x) for env, x in means.items()]
        score = None if None in scores else float(np.mean(scores))
        row = {"rule": entry.rule, **entry.settings, "score": score, "returns": means}
        rows[entry.label.split()[0]].append(row)

    def rank(row: Mapping[str, Any]) -> float:
        return np.inf if row["score"] is None else -row["score"]

    return {rule: sorted(tried, key=rank) for rule, tried in rows.items()}


def suite(rows: Mapping[str, list[dict[str, Any]]], extends: str) -> str:
    """The best setting of each rule, as a suite in TOML that extends another.

    A rule has as many seeds as there. One whose settings all failed is left out.
    """
    entries = read_entries(suite_files.load(extends)["rules"], RuleEntry)
    seeds = {entry.label: entry.seeds for entry in entries if entry.seeds is not None}
    lines = [f"extends = {json.dumps(extends)}", "rules = ["]
    for label, tried in rows.items():
        if not tried or tried[0]["score"] is None:
            continue
        best = {name: x for name, x in tried[0].items() if name not in ("score", "returns")}
        entry = {"rule": best.pop("rule"), "label": label}
        rates = {"learning_rates": [best.pop("learning_rate")]}
        fewer = {"seeds": seeds[label]} if label in seeds else {}
        pairs = [f"{name} = {json.dumps(x)}" for name, x in (entry | rates | fewer).items()]
        settings = ", ".join(f"{name} = {json.dumps(x)}" for name, x in best.items())
        lines.append(f"    {{ {', '.join(pairs)}, settings = {{ {settings} }} }},")
    return "\n".join([*lines, "]", ""])


def configure(rules: Sequence[str], kind: Kind) -> ComparisonConfig:
    """The search as a comparison."""
    return discorl.configure_comparison(
        rules=[draw(rule, n, kind) for rule in rules for n in range(SETTINGS)],
        environments=list(kind.envs),
        steps=kind.steps,
        seeds=1,
        seed=FIRST_SEED,
        sweep_seed=FIRST_SEED + 1,
        settings={"log_every": 10, "checkpoint_every": 1000},
        name="recipes",
    )


def search(config: ComparisonConfig, folder: Path) -> Results:
    """Makes or continues a search."""
    if not folder.exists():
        return discorl.compare(config, out=folder, tell=print)
    if load(folder).config != config:
        raise discorl.UserError(
            f"{folder} holds a search with other rules, another environment or other steps; "
            "expected the same ones, or another --out"
        )
    return discorl.compare(resume=folder, tell=print)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--kind", choices=KINDS, default="minatar")
    parser.add_argument("--envs", nargs="+", help="by default those of the kind")
    parser.add_argument("--steps", type=int, help="by default those of the kind")
    parser.add_argument("--suite", help="suite that recipes.toml extends, by default the kind's")
    parser.add_argument("--out", default="runs/recipes")
    arguments = parser.parse_args()
    folder, kind = Path(arguments.out), KINDS[arguments.kind]
    kind = dataclasses.replace(
        kind, envs=tuple(arguments.envs or kind.envs), steps=arguments.steps or kind.steps
    )
    try:
        results = search(configure(arguments.rules, kind), folder)
    except discorl.UserError as error:
        parser.error(str(error))
    rows = ranking(results, arguments.rules)
    (folder / "recipes.json").write_text(json.dumps(rows, indent=1))
    (folder / "recipes.toml").write_text(suite(rows, arguments.suite or arguments.kind))
    for rule, tried in rows.items():
        print(rule, *tried[:1])


if __name__ == "__main__":
    main()
