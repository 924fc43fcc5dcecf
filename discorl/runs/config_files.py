"""Settings from files: TOML that a person wrote, or the config of an earlier run."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from discorl.types import UserError


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The table of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"{path}: cannot be read: {reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: is not TOML: {error}") from error


def read_settings(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Settings for a run of a kind, such as "train".

    They come from a TOML file, a run directory, or the config.json of one.
    """
    file = Path(path)
    if file.suffix == ".toml":
        return read_toml(file)
    if file.is_dir():
        file /= "config.json"
    if file.suffix != ".json":
        raise UserError(f"{path}: expected a TOML file, a run directory or its config.json")
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
        made, config = described["kind"], described["config"]
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: does not describe a run: {error!r}") from error
    if made != kind:
        raise UserError(f"{file}: describes a run of `{made}`; expected one of `{kind}`")
    return config
