"""Rules against one another on the same members of families: whole lives, paired by task.

    python benchmarks/paired_lives.py contenders.json --first start --split held_out \
        --seeds 1000 150 --updates 300 1000 --out scores.json

`contenders.json` holds a rule and settings of its agents by name:

    {"start": {"rule": "lean"}, "ppo": {"rule": "ppo", "settings": {"learning_rate": 0.003}}}

Budgets are environment steps: 64 for each of the updates named, however long a contender's own
rollouts are. Scores are kept as they come, and a run that is stopped goes on where it was.
"""

import argparse
import json
from pathlib import Path

from discovery import FAMILIES

from discorl.discovery.trials import Contender, Tasks, Trials, difference

STEPS_PER_UPDATE = 64


def scores_of(contenders: dict[str, Contender], arguments: argparse.Namespace) -> dict:
    """Scores by "contender/updates/family", each {"end": [...], "area": [...]}."""
    out = Path(arguments.out)
    scores = json.loads(out.read_text()) if out.exists() else {}
    first, count = arguments.seeds
    trials = Trials()
    for family in arguments.families:
        for name, contender in contenders.items():
            for updates in arguments.updates:
                cell = f"{name}/{updates}/{family}"
                if len(scores.get(cell, {"end": ()})["end"]) >= count:
                    continue
                tasks = Tasks(family, range(first, first + count), arguments.split)
                found = trials.scores(contender, tasks, STEPS_PER_UPDATE * updates)
                scores[cell] = {measure: x.tolist() for measure, x in found.items()}
                out.write_text(json.dumps(scores))
    return scores


def report(scores: dict, contenders: dict[str, Contender], arguments: argparse.Namespace) -> None:
    for updates in arguments.updates:
        for measure in ("end", "area"):

            def by_family(name: str, families: list[str]) -> dict:
                return {f: scores[f"{name}/{updates}/{f}"][measure] for f in families}  # noqa: B023

            print(f"\n{measure} of lives of {updates} updates, minus {arguments.first}")
            for name in contenders:
                if name == arguments.first:
                    continue
                for families in [*([f] for f in arguments.families), arguments.families]:
                    both = by_family(name, families), by_family(arguments.first, families)
                    means = [sum(sum(x) / len(x) for x in s.values()) / len(s) for s in both]
                    label = families[0] if len(families) == 1 else "all"
                    print(
                        f"{name:24s} {label:16s} {means[1]:.3f} -> {means[0]:.3f}  "
                        f"{difference(*both)}"
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contenders", help="JSON file")
    parser.add_argument("--first", default="start", help="with which the others are compared")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES))
    parser.add_argument("--split", choices=("train", "held_out"), default="train")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 64), help="first, and how many")
    parser.add_argument("--updates", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--out", default="scores.json")
    arguments = parser.parse_args()
    texts = json.loads(Path(arguments.contenders).read_text())
    contenders = {name: Contender(**text) for name, text in texts.items()}
    report(scores_of(contenders, arguments), contenders, arguments)


if __name__ == "__main__":
    main()
