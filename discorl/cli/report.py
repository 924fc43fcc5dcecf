"""The command `discorl report`."""

from pathlib import Path

import tyro

from discorl.cli.commands import Command, Result, command
from discorl.comparison import load
from discorl.comparison.runner import KIND
from discorl.reports import comparison, sweep
from discorl.reports import run as run_page
from discorl.reports.page import PAGE
from discorl.runs import Run
from discorl.runs.progress import doing
from discorl.types import UserError


def report_command(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    out: Path | None = None,
) -> Result:
    """Make a self-contained HTML page of training runs, discovery runs, a comparison or a sweep.

    Args:
        runs: run directories, shown side by side; or the directory of one comparison or sweep.
        out: folder to write to; by default `report` in the first of the directories.
    """
    if not runs:
        raise UserError("no run to report; give one or more run directories")
    kinds = []
    for path in runs:
        with Run.open(path, read_only=True) as run:
            kinds.append(run.kind)
    doing("statistics and figures")
    folder = out or runs[0] / "report"
    if kinds == [KIND]:
        results = load(runs[0])
        written = (sweep if results.config.over else comparison).write(results, folder)
    elif KIND in kinds:
        raise UserError(f"{runs[kinds.index(KIND)]} holds a comparison: give it alone")
    else:
        written = run_page.write(runs, folder / PAGE)
    return Result({"report": str(written)}, f"report: {written}")


COMMANDS: dict[str, Command] = {"": command(report_command)}
