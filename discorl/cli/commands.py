"""What a command takes and hands back."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tyro


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
