"""What a command takes and hands back, and what commands that make runs share."""

import argparse
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tyro

from discorl.types import UserError

RUNS = Path("runs")


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a command, for people and for programs."""

    data: dict[str, Any]  # printed with --json
    text: str = ""  # printed otherwise
    ok: bool = True  # False: the command exits with status 1


# Takes the arguments after the command's name, and the program's name for messages.
Command = Callable[[list[str], str], Result]


def command(function: Callable[..., Result]) -> Command:
    """Makes a command of a function, whose signature and docstring say what it accepts."""

    @functools.wraps(function)
    def run(arguments: list[str], program: str) -> Result:
        return tyro.cli(function, prog=program, args=arguments)

    return run


# --- commands that make runs ----------------------------------------------------------------------


def peek(arguments: list[str], program: str, *names: str) -> dict[str, str]:
    """Those of the named options that are given: they decide the defaults of all others."""
    return vars(_split(arguments, program, *names)[0])


def refuse_other_settings(resume: Path, arguments: list[str], program: str) -> None:
    """Raises a `UserError` if anything besides `--resume` is given, be it a default."""
    _, others = _split(arguments, program, "resume")
    if others:
        raise UserError(
            f"--resume goes on with the run's own settings and takes no others, got "
            f"{' '.join(others)}: run `{program} --resume {resume}`"
        )


def free_directory(name: str) -> Path:
    """`runs/NAME-N`, N being the first that is free."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-")
    return next(p for i in itertools.count() if not (p := RUNS / f"{name}-{i}").exists())


def _split(arguments: list[str], program: str, *names: str) -> tuple[argparse.Namespace, list[str]]:
    """The named options that are given, and all other arguments."""
    parser = argparse.ArgumentParser(
        prog=program, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    for name in names:
        parser.add_argument(f"--{name}")
    return parser.parse_known_args(arguments)
