"""The commands `discorl rules ...`: which rules there are, and moving their files."""

import inspect
import sys
from pathlib import Path
from typing import Any

import tyro

from discorl.cli.commands import Command, Result, aligned, command
from discorl.rules import HAND_MADE
from discorl.rules.files import library, weights
from discorl.types import UserError


def list_rules(rules_path: Path | None = None) -> Result:
    """List the rules that can be trained with, hand-made and learned.

    Args:
        rules_path: a folder or file to look in first.
    """
    rows = [
        _row(name, "hand-made", "bundled", description.splitlines()[0])
        for name, description in _hand_made().items()
    ]
    for entry in library.available(rules_path):
        rows.append(_row(entry.name, "learned", entry.state, _description(entry), entry.path))
    table = [("NAME", "KIND", "STATE", "DESCRIPTION")]
    table += [(row["name"], row["kind"], row["state"], _remark(row)) for row in rows]
    return Result({"rules": rows}, aligned(table))


def _description(entry: library.Entry) -> str:
    if entry.name in library.PUBLISHED:
        return library.PUBLISHED[entry.name].description
    if entry.state != "bundled" or entry.path is None:
        return ""
    found = weights.load(entry.path).metadata
    families = ", ".join(env.partition(":")[0] for env in found["config"]["envs"])
    return f"Discovered by discorl on {families}; {found['meta_steps']} meta-steps."


def show(rule: tyro.conf.Positional[str], rules_path: Path | None = None) -> Result:
    """Show what a rule is: its origin and sizes.

    Args:
        rule: name of a rule, or path of a rule file.
        rules_path: a folder or file to look in first.
    """
    hand_made = _hand_made()
    if rule in hand_made:
        data = {"name": rule, "kind": "hand-made", "description": hand_made[rule]}
        return Result(data, f"{rule} (hand-made)\n\n{hand_made[rule]}")
    file = weights.load(library.find(rule, rules_path))
    head = {
        "name": rule,
        "kind": "learned",
        "path": str(file.path),
        "sha256": file.sha256,
        **_origin(file.sha256),
    }
    sizes = weights.describe(file.eta)
    text = aligned(_pairs(head) + _pairs(sizes) + _pairs(file.metadata, "metadata: "))
    return Result({**head, "sizes": sizes, "metadata": file.metadata}, text)


def fetch(name: tyro.conf.Positional[str] = "disco103", address: str | None = None) -> Result:
    """Download a published rule into the user's cache folder.

    Args:
        name: the rule to download.
        address: where to download it from instead of its source; the hash must be the same.
    """
    path = library.fetch(name, address, _report_progress if sys.stderr.isatty() else None)
    return Result({"name": name, "path": str(path)}, f"{name} is at {path}")


def import_file(file: tyro.conf.Positional[Path], name: str, force: bool = False) -> Result:
    """Check a rule file and copy it into the user's cache folder under a name.

    Args:
        file: the rule file, in the published naming.
        name: the name to find it by from now on.
        force: replace a different rule of that name.
    """
    if name in _hand_made():
        raise UserError(f"name {name!r} is that of a hand-made rule: choose another name")
    path = library.install(file, name, force)
    return Result({"name": name, "path": str(path)}, f"{name} is at {path}")


def export(
    rule: tyro.conf.Positional[str],
    file: tyro.conf.Positional[Path],
    bare: bool = False,
    rules_path: Path | None = None,
) -> Result:
    """Write a rule to a file in the published naming.

    Args:
        rule: name of a rule, or path of a rule file.
        file: the file to write; one that exists is replaced.
        bare: leave the metadata out, so that the file holds the published arrays alone.
        rules_path: a folder or file to look in first.
    """
    loaded = weights.load(library.find(rule, rules_path))
    weights.save(file, loaded.eta, None if bare else loaded.metadata)
    data = {"name": rule, "path": str(file), "sha256": weights.load(file).sha256}
    return Result(data, f"{rule} is written to {file}")


COMMANDS: dict[str, Command] = {
    "list": command(list_rules),
    "show": command(show),
    "fetch": command(fetch),
    "import": command(import_file),
    "export": command(export),
}


def _hand_made() -> dict[str, str]:
    """Descriptions of the rules that are code, by name."""
    return {name: inspect.getdoc(rule) or "" for name, rule in HAND_MADE.items()}


def _row(
    name: str, kind: str, state: str, description: str, path: Path | None = None
) -> dict[str, Any]:
    where = None if path is None else str(path)
    return {
        "name": name,
        "kind": kind,
        "state": state,
        "path": where,
        "description": description,
    }


def _remark(row: dict[str, Any]) -> str:
    advice = {
        "not fetched": f"run `discorl rules fetch {row['name']}`",
        "damaged": f"not the published file: {row['path']}",
    }
    remark = advice.get(row["state"], row["path"])
    return " - ".join(text for text in (row["description"], remark) if text)


def _origin(sha256: str) -> dict[str, str]:
    """Where a published file comes from, whatever name it goes by here."""
    for name, rule in library.PUBLISHED.items():
        if rule.sha256 == sha256:
            return {"published_as": name, "source": rule.address, "licence": rule.licence}
    return {}


def _pairs(data: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested data as lines of a label and a value."""
    pairs: list[tuple[str, str]] = []
    for key, value in data.items():
        if isinstance(value, dict):
            pairs += _pairs(value, f"{prefix}{key}: ")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            pairs.append((prefix + key, text))
    return pairs


def _report_progress(done: int, total: int) -> None:
    end = "\n" if done >= total else ""
    print(f"\r{done / total:4.0%} of {total / 1e6:.1f} MB", end=end, file=sys.stderr, flush=True)
