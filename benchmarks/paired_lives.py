"""One rule against others on the same tasks: whole lives, paired by task and key.

    python benchmarks/paired_lives.py contenders.json --first found --split held_out \
        --seeds 1000 64 --updates 300 1000 --out scores.json

`contenders.json` holds a rule and settings of its agents by name; one whose name ends in `@300`
takes part at that budget only:

    {"found": {"rule": "lean1"}, "ppo@300": {"rule": "ppo", "settings": {"learning_rate": 0.003}}}

Budgets are environment steps: 64 for each of the updates named, however long a contender's own
rollouts are. Scores are kept as they come, and a run that is stopped goes on where it was.
"""

import argparse
import json
from pathlib import Path

from discovery import FAMILIES
from trials import Contender, Tasks, Trials, difference

STEPS_PER_UPDATE = 64


def taking_part(contenders: dict[str, Contender], updates: int) -> dict[str, Contender]:
    """Those that live at a budget."""
    return {n: c for n, c in contenders.items() if "@" not in n or n.endswith(f"@{updates}")}


def scores_of(contenders: dict[str, Contender], arguments: argparse.Namespace) -> dict:
    """Scores by "contender/updates/family", each as `Trials.scores` has them."""
    out = Path(arguments.out)
    scores = json.loads(out.read_text()) if out.exists() else {}
    first, count = arguments.seeds
    for family in arguments.families:
        trials = Trials()
        for updates in arguments.updates:
            for name, contender in taking_part(contenders, updates).items():
                cell = f"{name}/{updates}/{family}"
                if len(scores.get(cell, {"end": ()})["end"]) >= count:
                    continue
                tasks = Tasks(family, range(first, first + count), arguments.split)
                found = trials.scores(contender, tasks, STEPS_PER_UPDATE * updates)
                scores[cell] = {measure: x.tolist() for measure, x in found.items()}
                out.write_text(json.dumps(scores))
    return scores


def report(scores: dict, contenders: dict[str, Contender], arguments: argparse.Namespace) -> None:
    """Prints the mean scores, other -> first, and the paired differences, first - other."""
    for updates in arguments.updates:
        for measure in ("end", "area"):
            print(f"\n{measure} of lives of {updates} updates: {arguments.first} minus the others")
            for name in taking_part(contenders, updates):
                if name == arguments.first:
                    continue
                for families in [*([f] for f in arguments.families), arguments.families]:
                    both = [
                        {f: scores[f"{n}/{updates}/{f}"][measure] for f in families}
                        for n in (arguments.first, name)
                    ]
                    means = [sum(sum(x) / len(x) for x in s.values()) / len(s) for s in both]
                    label = families[0] if len(families) == 1 else "all"
                    print(
                        f"{name:16s} {label:20s} {means[1]:.3f} -> {means[0]:.3f}  "
                        f"{difference(*both)}"
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contenders", help="JSON file")
    parser.add_argument("--first", required=True, help="with which the others are compared")
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
