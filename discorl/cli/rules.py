"""The commands `discorl rules ...`: which rules there are, and moving their files."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import tyro

from discorl import rules
from discorl.cli.commands import Command, Result, command, contract_result
from discorl.cli.tables import paragraph, table
from discorl.rules import REGISTRY, Rule, conformance, registry
from discorl.rules.files import hub, library, trees, weights
from discorl.runs import npz
from discorl.runs.progress import doing, nothing_drawn
from discorl.types import UserError, imports, validation


def list_rules(rules_path: Path | None = None) -> Result:
    """List the rules for training and discovery.

    Args:
        rules_path: a folder or file to look in first.
    """
    rows = [
        _row(name, _kind_of(rule), "built in", _summary(rule)) for name, rule in REGISTRY.items()
    ]
    for entry in library.available(rules_path):
        rows.append(_row(entry.name, "learned", entry.state, _description(entry), entry.path))
    rows += [_plugin(plugin) for plugin in imports.plugins(registry.GROUP).values()]
    cells = [(row["name"], row["kind"], row["state"], _remark(row)) for row in rows]
    return Result({"rules": rows}, table(cells, ("NAME", "KIND", "STATE", "DESCRIPTION")))


def _description(entry: library.Entry) -> str:
    if entry.name in library.PUBLISHED:
        return library.PUBLISHED[entry.name].description
    if entry.state != "bundled" or entry.path is None:
        return ""
    found = library.read(entry.path).metadata
    config = found["config"]
    # Files that were written before populations were tables name environments alone.
    envs = config["envs"] if "envs" in config else [each["env"] for each in config["population"]]
    families = ", ".join(env.partition(":")[0] for env in envs)
    if found["meta_steps"] == 0:
        return f"Imitates {config['start'].partition(':')[2]}; trained on {families}."
    return f"Discovered by discorl on {families}; {found['meta_steps']} meta-steps."


def show(rule: tyro.conf.Positional[str], rules_path: Path | None = None) -> Result:
    """Show a rule: its settings and recipe, or the origin and sizes of a learned one.

    Args:
        rule: name of a rule, or path of a rule file.
        rules_path: a folder or file to look in first.
    """
    code = registry.code(rule)
    if code is not None:
        kind = _kind_of(code) if isinstance(code, type) else "of your own"
        description = inspect.getdoc(code) or ""
        settings = _settings_of(code)
        recipe = dict(getattr(code, "recipe", {}))
        data = {"name": rule, "kind": kind, "description": description}
        lines = [f"{rule} ({kind})", "", *map(paragraph, description.splitlines())]
        for title, values in (
            (f"settings, as in `{rule}:NAME=VALUE`, and their defaults", settings),
            ("recipe, the training settings that suit it", recipe),
        ):
            if values:
                rows = [(f"  {name}", str(value)) for name, value in values.items()]
                lines += ["", f"{title}:", table(rows)]
        return Result(data | {"settings": settings, "recipe": recipe}, "\n".join(lines))
    path = library.find(rule, rules_path)
    archive = library.read(path)
    head = {"name": rule, "kind": "learned", "path": str(path), "sha256": archive.sha256}
    for name, published in library.PUBLISHED.items():
        if published.sha256 == archive.sha256:  # whatever name it goes by here
            head |= {"published_as": name, "source": published.address}
            head |= {"licence": published.licence}
    if "kind" in archive.metadata:
        sizes = trees.describe(archive.arrays)
    else:
        sizes = weights.describe(weights.unflatten(archive.arrays))  # as published
    shown = dict(archive.metadata)
    if "config" in shown:
        shown["config"] = "the settings of its discovery; --json prints them"
    text = table(_pairs(head) + _pairs(sizes) + _pairs(shown, "metadata: "))
    return Result({**head, "sizes": sizes, "metadata": archive.metadata}, text)


def check(rule: tyro.conf.Positional[str], rules_path: Path | None = None, seed: int = 0) -> Result:
    """Check that a rule keeps its contract.

    Args:
        rule: the rule, such as `ppo`, `package.module:MyRule` or a rule file.
        rules_path: a folder or file to look in first.
        seed: seed of the synthetic experience.
    """
    validation.integer("seed", seed, least=0, most=validation.MOST_SEED)
    found = rules.load(rule, rules_path=rules_path)
    return contract_result(rule, conformance.check(*found, seed=seed))


def fetch(name: tyro.conf.Positional[str] = "disco103", address: str | None = None) -> Result:
    """Download a published rule into the user's cache folder.

    Args:
        name: the rule to download.
        address: download it from here instead; the SHA-256 must match.
    """
    doing("connecting")
    path = library.fetch(
        name, address, lambda done, total: doing(f"{done / total:.0%} of {total / 1e6:.1f} MB")
    )
    return Result({"name": name, "path": str(path)}, f"{name} is at {path}")


def import_file(file: tyro.conf.Positional[Path], name: str, force: bool = False) -> Result:
    """Check a rule file and copy it into the user's cache folder under a name.

    Args:
        file: the rule file, in the published naming.
        name: the name to use it by.
        force: replace another rule of that name.
    """
    if name in REGISTRY:
        raise UserError(f"name {name!r} is taken by a built-in rule: choose another name")
    path = library.install(file, name, force)
    return Result({"name": name, "path": str(path)}, f"{name} is at {path}")


def export(
    rule: tyro.conf.Positional[str],
    file: tyro.conf.Positional[Path],
    bare: bool = False,
    rules_path: Path | None = None,
) -> Result:
    """Write a learned rule to a file; Disco rules use the published names.

    Args:
        rule: name of a rule, or path of a rule file.
        file: the file to write; one that exists is replaced.
        bare: write the arrays only, without metadata.
        rules_path: a folder or file to look in first.
    """
    archive = library.read(library.find(rule, rules_path))
    if bare and "kind" in archive.metadata:
        raise UserError(
            f"{rule}: without metadata, nothing would say that it is of the kind "
            f"{archive.metadata['kind']!r}; expected a Disco rule for --bare"
        )
    arrays = dict(sorted(archive.arrays.items()))
    npz.write(file, arrays, None if bare else archive.metadata)
    data = {"name": rule, "path": str(file), "sha256": library.read(file).sha256}
    return Result(data, f"{rule} is written to {file}")


def push(
    rule: tyro.conf.Positional[str],
    address: tyro.conf.Positional[str],
    private: bool = False,
    rules_path: Path | None = None,
) -> Result:
    """Upload a learned rule and a card to the Hugging Face Hub.

    Args:
        rule: name of a rule, or path of a rule file.
        address: `hf:USER/REPOSITORY`; a repository that does not exist is created.
        private: make a new repository private.
        rules_path: a folder or file to look in first.
    """
    with nothing_drawn():  # huggingface_hub has bars of its own
        commit = hub.push(library.find(rule, rules_path), address, private=private)
    return Result({"name": rule, "commit": commit}, f"{rule} is at {commit}")


def pull(
    address: tyro.conf.Positional[str],
    name: str | None = None,
    revision: str | None = None,
    force: bool = False,
) -> Result:
    """Download a rule from the Hugging Face Hub into the user's cache folder.

    Args:
        address: `hf:USER/REPOSITORY`.
        name: the name to find it by from now on; by default that of the repository.
        revision: branch, tag or commit; by default the newest.
        force: replace another rule of that name.
    """
    if name is not None:
        library.require_name(name)  # before a download
    with nothing_drawn():
        file = hub.pull(address, revision)
    return import_file(file, name or address.rpartition("/")[2], force)


COMMANDS: dict[str, Command] = {
    "list": command(list_rules),
    "show": command(show),
    "check": command(check),
    "fetch": command(fetch),
    "import": command(import_file),
    "export": command(export),
    "push": command(push),
    "pull": command(pull),
}


def _kind_of(rule: type[Rule]) -> str:
    return "untrained" if registry.is_learned(rule) else "hand-designed"


def _summary(rule: Any) -> str:
    return (inspect.getdoc(rule) or "").partition("\n")[0]


def _plugin(plugin: imports.Plugin) -> dict[str, Any]:
    """A rule of another package; a broken one is listed and does not affect the others."""
    state = "name taken" if plugin.name in REGISTRY else "installed"
    try:
        description = _summary(plugin.load())
    except UserError as error:
        state, description = "broken", str(error)
    return _row(plugin.name, "plugin", state, f"{description} (package {plugin.package})")


def _row(
    name: str, kind: str, state: str, description: str, path: Path | None = None
) -> dict[str, Any]:
    where = None if path is None else str(path)
    return {"name": name, "kind": kind, "state": state, "path": where, "description": description}


def _settings_of(code: Any) -> dict[str, Any]:
    """The settings that a rule's name may carry, with their defaults."""
    if not dataclasses.is_dataclass(code):
        return {}
    return {
        field.name: field.default
        for field in dataclasses.fields(code)
        if field.init and field.default is not dataclasses.MISSING
    }


def _remark(row: dict[str, Any]) -> str:
    advice = {
        "not fetched": f"run `discorl rules fetch {row['name']}`",
        "damaged": f"not the published file: {row['path']}",
        "bundled": "",
    }
    remark = advice.get(row["state"], row["path"])
    return " - ".join(text for text in (row["description"], remark) if text)


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
