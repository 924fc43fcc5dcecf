"""Long commands that are killed or stopped again and again, and must end as if they never were."""

import contextlib
import csv
import json
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from trials import Campaign, Outcome, problem_of, run

AGENT = """
    --num-envs 2 --unroll 4 --batch 2 --replay-fraction 0.5 --replay 8 --hidden 8
"""
TASK = "catch:rows=3,columns=3"
TRAIN = f"""
    train --rule actor_critic --env {TASK} {AGENT} --updates 400 --log-every 4
    --checkpoint-every 40 --seeds 2
"""
DISCOVER = f"""
    discover --preset demo --meta-steps 6 --checkpoint-every 1 --agents 1 --window 2
    --prediction-size 5 --bins 5 --trajectory-lstm 4 --meta-lstm 4 --net-width 4 --value-hidden 8
    --validation-envs 4 --validation-unroll 4 --evaluate-every 3 --evaluate-updates 4
    --evaluate-seeds 1 {AGENT} --envs {TASK} --evaluate-on {TASK}
"""
COMPARE = f"""
    compare --rules actor_critic policy_gradient --seeds 1 --envs {TASK} --steps 20000
"""
COMMANDS = {
    "train": TRAIN.split(),
    "discover": DISCOVER.split(),
    "compare": COMPARE.split(),
}
PATIENCE = 3600.0  # seconds; a busy machine compiles for minutes
TIMES = ("wall_time", "charts/SPS", "seconds")


def kills(command: str) -> Callable[[Campaign, random.Random, int], None]:
    """A part of the campaign: kill -9 of a command at random moments."""
    return lambda *options: _interrupted(*options, command, (signal.SIGKILL,))


def signals(campaign: Campaign, generator: random.Random, count: int) -> None:
    """Ctrl-C, SIGTERM and SIGHUP at random moments."""
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    _interrupted(campaign, generator, count, "train", kinds)


def _interrupted(
    campaign: Campaign,
    generator: random.Random,
    count: int,
    command: str,
    numbers: tuple[signal.Signals, ...],
) -> None:
    """Interrupts a command so often, then lets it end and compares it with one that was not."""
    home = campaign.new_folder()
    start = _children_seconds()
    whole = _run(home, [*COMMANDS[command], "--out", "whole"])
    seconds = _children_seconds() - start
    assert not whole.status, whole.said
    kind = f"kill -9 of {command}" if numbers == (signal.SIGKILL,) else "signals"
    done, rounds = 0, 0
    while done < count:
        name = f"run{rounds}"
        rounds += 1
        for _ in range(generator.randrange(2, 8)):
            if done == count:
                break
            number = generator.choice(numbers)
            after = generator.uniform(0.1, 0.9) * seconds
            start = _children_seconds()
            outcome = _run(home, _continued(command, home, name), number, after)
            if outcome.status == 0:  # it ended before: unlike the first, it had nothing to compile
                seconds = min(seconds, _children_seconds() - start)
                break
            done += 1
            problem = None if outcome.status == -number else problem_of(outcome, "anything")
            campaign.count(kind, problem, name)
        last = _run(home, _continued(command, home, name))
        problem = problem_of(last, "accepted") or _difference(home / "whole", home / name)
        campaign.count(f"{kind}, resumed to the end", problem, name)
        shutil.rmtree(home / name, ignore_errors=True)


def _continued(command: str, home: Path, name: str) -> list[str]:
    if (home / name / "config.json").exists():
        return [command, "--resume", name]
    return [*COMMANDS[command], "--out", name]


def _children_seconds() -> float:
    """Processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(
    home: Path, arguments: list[str], number: int | None = None, after: float = 0.0
) -> Outcome:
    """Runs a command; sends it a signal after so many processor seconds, whatever else runs."""

    def interrupt(child: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            if fields[0] == "Z":
                return
            if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= after:
                break
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    def main() -> None:
        from discorl.cli import main

        main(arguments)

    return run(main, home, timeout=PATIENCE, meanwhile=None if number is None else interrupt)


def _difference(whole: Path, other: Path) -> str | None:
    """In what a run differs from another, times apart."""
    for path in sorted(whole.rglob("*")):
        file = path.relative_to(whole)
        if not path.is_file() or not (file.suffix == ".csv" or file.name == "result.json"):
            continue
        if "report" in file.parts:
            continue
        if not (other / file).exists():
            return f"has no {file}"
        read = _table if file.suffix == ".csv" else _record
        if read(path) != read(other / file):
            return f"has another {file}"
    left = [path for path in other.rglob(".*") if path.name.endswith(".partial")]
    return f"left {left[0]}" if left else None


def _table(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        names, *rows = csv.reader(file)  # names of columns may have commas
    kept = [i for i, name in enumerate(names) if name not in TIMES]
    return [[row[i] for i in kept] for row in [names, *rows]]


def _record(path: Path) -> dict:
    return {name: x for name, x in json.loads(path.read_text()).items() if name not in TIMES}
