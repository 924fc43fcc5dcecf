"""Settings from files: hand-written TOML, or the config of an earlier run."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from discorl.runs.directory import Run
from discorl.runs.files import read_text
from discorl.runs.folders import CONFIG_SCHEMA
from discorl.runs.schemas import MAX_BYTES, read_json
from discorl.types import UserError, settings

Config = TypeVar("Config")


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The table of a TOML file."""
    try:
        return tomllib.loads(read_text(path, MAX_BYTES))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path}: is not TOML: {error}") from error


def read_settings(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Settings for a run of the given kind, such as "train".

    The path is a TOML file, a run directory, or its config.json.
    """
    file = Path(path)
    if file.suffix == ".toml":
        return read_toml(file)
    if file.is_dir():
        file /= "config.json"
    if file.suffix != ".json":
        raise UserError(f"{path}: expected a TOML file, a run directory or its config.json")
    described = read_json(file, CONFIG_SCHEMA)
    if described["kind"] != kind:
        raise UserError(
            f"{file}: describes a run of `{described['kind']}`; expected one of `{kind}`"
        )
    return described["config"]


def check_source(
    config: Any, given: Mapping[str, Any], *, out: Any, resume: Any, shared: bool
) -> None:
    """Rejects a run with several sources of settings, or several processes without a directory."""
    for name, place in (("out", out), ("resume", resume)):
        if place is not None and not os.fspath(place):
            raise UserError(f"{name} is {place!r}; expected a directory")
    if sum(x is not None for x in (config, resume, given or None)) > 1:
        raise UserError("give only one of config, resume and single settings")
    if resume is not None and out is not None:
        raise UserError("a resumed run continues in its own directory: give either resume or out")
    if shared and out is None and resume is None:
        raise UserError("out is None; expected a folder that all processes share")


def config_of(run: Run, kind: type[Config], values: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a run, by default from all of its settings.

    Settings that did not exist in the run's version of discorl get their defaults. The default of a
    new setting must therefore keep the old behaviour.
    """
    try:
        return settings.build(kind, run.config if values is None else values)
    except UserError as error:
        raise UserError(
            f"{run.path}/config.json was edited, or is from another version of discorl (see "
            f"versions.json): {error}"
        ) from error
