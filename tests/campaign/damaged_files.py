"""Damage to every kind of file that runs, comparisons, rules, golden cases and caches hold."""

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from trials import Campaign, problem_of, run

from discorl.types import UserError

WORDS = (b"null", b"true", b"[]", b"{}", b'"x"', b"7", b"-1", b"1e400", b"NaN", b"[[[[[]]]]]")
PIECES = (b"\xff", b"\0", b"NaN", b"[" * 5000, b"\n", b",,,", b"-1e999", b"{", b'"')


def damage(content: bytes, generator: random.Random) -> bytes:
    """A content with some bytes or words changed, cut, exchanged or put in."""
    damaged = bytearray(content)
    at = generator.randrange(len(damaged) + 1)
    kind = generator.randrange(6)
    if kind == 0:
        damaged[at : at + 1] = bytes([generator.randrange(256)])
    elif kind == 1:
        del damaged[at:]
    elif kind == 2:
        damaged[at:at] = generator.choice(PIECES)
    elif kind == 3:
        del damaged[at : at + generator.randrange(1, 60)]
    elif kind == 4:
        start = damaged.find(b":", at)
        end = damaged.find(b"\n", start)
        if 0 <= start < end:
            damaged[start + 1 : end] = generator.choice(WORDS)
    else:
        other = generator.randrange(len(damaged) + 1)
        low, high = sorted((at, other))
        damaged = damaged[high:] + damaged[low:high] + damaged[:low]
    return bytes(damaged)


def damaged_files(campaign: Campaign, generator: random.Random, count: int) -> None:
    """Damages one file at a time, and reads the folder that it is in."""
    kinds = _kinds(campaign)
    for number in range(count):
        name, (folder, file, read) = list(kinds.items())[number % len(kinds)]
        copy = campaign.new_folder() / "it"
        shutil.copytree(folder, copy)
        found = damage((copy / file).read_bytes(), generator)
        (copy / file).write_bytes(found)
        outcome = run(lambda copy=copy, read=read: _reported(read, copy), copy.parent, timeout=120)
        problem = problem_of(outcome, "anything")
        if not problem and outcome.status and Path(file).name not in outcome.err:
            known = "is not as it was left" in outcome.err
            problem = None if known else f"did not name {file}: {outcome.err.strip()[-200:]}"
        campaign.count(f"damaged files: {name}", problem, found[:40])
        shutil.rmtree(copy.parent)


def _reported(read: Callable[[Path], object], folder: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(folder)
    except UserError as error:
        import sys

        print(error, file=sys.stderr)
        sys.exit(2)


def _kinds(campaign: Campaign) -> dict[str, tuple[Path, str, Callable[[Path], object]]]:
    """The folders to damage, made once in a process of their own."""
    home = campaign.folder / "whole"
    outcome = run(lambda: _make(home), campaign.folder, timeout=900)
    assert not outcome.status, outcome.err
    run_files = ("config.json", "versions.json", "manifest.json", "metrics.csv", "rule.npz")
    cell = str(next((home / "comparison").rglob("result.json")).relative_to(home / "comparison"))
    compared = ("config.json", "versions.json", cell)
    return (
        {f"run, {file}": (home / "run", file, read_run) for file in run_files}
        | {"run, checkpoint": (home / "run", "checkpoints/00000004.npz", read_run)}
        | {f"page, {file}": (home / "run", file, read_page) for file in run_files[:2]}
        | {"page, metrics.csv": (home / "run", "metrics.csv", read_page)}
        | {f"comparison, {x}": (home / "comparison", x, read_comparison) for x in compared}
        | {"rule": (home / "rules", "rule.npz", read_rule)}
        | {"golden case": (home / "golden", "case.npz", read_case)}
        | {"compiled program": (home / "programs", "key.program", read_program)}
    )  # fmt: skip


def _make(home: Path) -> None:
    from discorl import rules
    from discorl.comparison import configure_comparison, runner
    from discorl.comparison.cells import write_record
    from discorl.comparison.results import final_cells
    from discorl.rules.files import library
    from discorl.runs import Run, compilation, npz

    home.mkdir()
    rule = library.find("discorl5")
    for folder in ("rules", "golden", "programs"):
        (home / folder).mkdir()
    shutil.copy(rule, home / "rules" / "rule.npz")
    npz.write(home / "golden" / "case.npz", {"x": np.arange(3.0)}, {"left_out": ["y"]})
    compilation._CheckedCache(str(home / "programs")).put("key", b"a program" * 100)
    import discorl

    config = discorl.configure(rule="discorl5", env="catch:rows=3,columns=3", hidden=(4,))
    described = config.as_dict() | {"own": {}}
    with Run.create(home / "run", described, copies={"rule.npz": rule}) as made:
        for update in range(1, 5):
            made.log([{"update": update, "seed": 0, "global_step": update, "losses/total": 0.5}])
            if update % 2 == 0:
                made.save(update, {"w": np.full(5, float(update))})
    values = {"rules": ["ppo"], "environments": ["catch:rows=3,columns=3"], "seeds": 2}
    config = configure_comparison(**values)
    runner.create(home / "comparison", config).close()
    for cell in final_cells(config, {}):
        record = {
            "status": "finished", "message": "", "seeds": [0, 1], "returns": [0.5, 0.75],
            "learning_rate": 0.001, "updates": 4, "steps": 64, "seconds": 1.0,
            "flops_per_update": 100.0, "curve": {"steps": [32, 64], "returns": [[None, 0.5]] * 2},
        }  # fmt: skip
        write_record(home / "comparison" / cell.folder, record)
    assert rules


def read_run(folder: Path) -> None:
    """Resumes it, first as it is and then with the changes accepted; never gets wrong data."""
    from discorl.runs import Run
    from discorl.runs.versions import read_versions
    from discorl.training.assembly import load_trainer

    read_versions(folder)
    try:
        Run.open(folder).close()
    except UserError as error:
        if "is not as it was left" not in str(error):
            raise
    with Run.open(folder, accept_changes=True) as opened:
        update, state = opened.restore({"w": np.zeros(5)})
        assert (state["w"] == update).all(), "wrong data"
        list(opened.rows())
        load_trainer(opened)


def read_page(folder: Path) -> None:
    """Makes its page."""
    from discorl.reports import run as run_page

    run_page.write([folder], folder / "page.html")


def read_comparison(folder: Path) -> None:
    """Reads its results and makes its page."""
    from discorl.comparison import load
    from discorl.reports import comparison

    comparison.write(load(folder))


def read_rule(folder: Path) -> None:
    """Loads the rule, which must be the one that it was or be refused."""
    from discorl import rules

    rules.load(str(folder / "rule.npz"))


def read_case(folder: Path) -> None:
    """Opens a golden case."""
    from discorl.verification.cases import Case

    Case(folder / "case.npz", "float32").flat("x")


def read_program(folder: Path) -> None:
    """Gets a program from the cache, which is the one that was put there or none."""
    from discorl.runs import compilation

    found = compilation._CheckedCache(str(folder)).get("key")
    assert found in (None, b"a program" * 100), "another program"
