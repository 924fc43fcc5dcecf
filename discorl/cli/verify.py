"""The command `discorl verify`."""

import dataclasses
from pathlib import Path

import tyro

from discorl.cli.commands import Command, Result, command
from discorl.cli.tables import table
from discorl.verification import Check, verify


def verify_command(directory: tyro.conf.Positional[Path], rule: str | None = None) -> Result:
    """Recompute golden cases: inputs and outputs that were recorded with the authors' code.

    Args:
        directory: directory of the cases, as npz files; subdirectories are searched, too.
        rule: rule of cases that come without a `meta_network.npz`: a name or a file.
    """
    checks = verify(directory, rule)
    wrong = [check for check in checks if not check.ok]
    data = {
        "ok": not wrong,
        "checks": [dataclasses.asdict(check) | {"ok": check.ok} for check in checks],
    }
    judged = [check for check in checks if check.tolerance is not None or check.missing]
    agreeing = sum(check.ok for check in judged)
    verdict = f"{agreeing} of {len(judged)} quantities agree"
    if len(judged) < len(checks):
        verdict += f"; {len(checks) - len(judged)} more are shown and not judged"
    return Result(data, f"{_table(checks)}\n\n{verdict}", ok=not wrong)


def _table(checks: list[Check]) -> str:
    """One row a quantity, with both precisions side by side."""
    rows: dict[tuple[str, str], dict[str, Check]] = {}
    for check in checks:
        rows.setdefault((check.file, check.quantity), {})[check.dtype] = check
    cells = [
        (file, quantity, *(_cell(by_dtype.get(d)) for d in ("float64", "float32")))
        for (file, quantity), by_dtype in rows.items()
    ]
    legend = "Largest error relative to each array's largest value; (in brackets: not judged)."
    listed = table(cells, ("FILE", "QUANTITY", "FLOAT64", "FLOAT32"), wrap=(0, 1))
    return f"{listed}\n\n{legend}"


def _cell(check: Check | None) -> str:
    if check is None:
        return ""
    if check.missing:
        more = f" and {len(check.missing) - 1} more" if len(check.missing) > 1 else ""
        return f"MISSING {check.missing[0]}{more}"
    error = f"{check.error:.1e}"
    if check.tolerance is None:
        return f"({error})"
    return f"{error} ok" if check.ok else f"{error} WRONG, at most {check.tolerance:.0e}"


COMMANDS: dict[str, Command] = {"": command(verify_command)}
