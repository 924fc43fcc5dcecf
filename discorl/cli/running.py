"""Running a command, whatever comes of it: its result, or one message and a status."""

import contextlib
import importlib
import itertools
import json
import math
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from discorl.cli import COMMANDS, HELP, INTERRUPTED, close_output
from discorl.cli.commands import Command, Result
from discorl.runs.files import standard_output_to
from discorl.runs.progress import Waiting
from discorl.types import UserError, specs

UNEXPECTED = 70  # exit status of what is no mistake of the user's: EX_SOFTWARE
_SHARED = ("--distributed", "--coordinator")  # options of one of several processes
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def main(arguments: Sequence[str]) -> int:
    """Runs a command and returns its status."""
    try:
        status = run(list(arguments))
    except UserError as error:
        status = _tell(str(error), 2)
    except KeyboardInterrupt:  # long commands save what they have and end normally
        status = _tell("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader has gone, as in `discorl ... | head`
        close_output()
        status = 1
    except OSError as error:
        if error.filename is None:  # of a stream
            close_output()
        where = error.filename or "the standard output"
        status = _tell(f"{where}: {error.strerror or error}", 1)
    except MemoryError as error:
        status = _tell(f"out of memory{f': {error}' if str(error) else ''}", 1)
    except Exception as error:
        status = _tell(*_unexpected(error))
    return status


def _tell(message: str, status: int) -> int:
    # What a name holds must not act on the terminal.
    shown = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in message)
    with contextlib.suppress(OSError):
        print(f"discorl: {shown}", file=sys.stderr)
    return status


def _unexpected(error: Exception) -> tuple[str, int]:
    """What went wrong where, in the user's own code if that raised it, and the status."""
    if os.environ.get("DISCORL_TRACEBACK"):
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parents[1])
    others = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")
    known = [frame for frame in frames if not frame.filename.startswith(others)]
    theirs = [frame for frame in known if not frame.filename.startswith(ours)]
    frame = (theirs or known or frames)[-1]
    if type(error).__name__ == "JaxRuntimeError":
        from discorl.runs.memory import runtime_reason

        return runtime_reason(error), 1
    reason = str(error).strip().splitlines()
    what = f"{type(error).__name__}{f': {reason[0][:300]}' if reason else ''}"
    where = f"{frame.filename}, line {frame.lineno}"
    message = f"{where}: {what} (DISCORL_TRACEBACK=1 shows the traceback)"
    return message, 2 if theirs else UNEXPECTED


def run(arguments: list[str]) -> int:
    """Runs a command; mistakes and failures are raised."""
    command, *rest = arguments
    specs.require_known("command", [command], COMMANDS)
    functions = importlib.import_module(COMMANDS[command][0]).COMMANDS
    program = f"discorl {command}"
    if "" not in functions:
        if not rest or rest[0] in HELP:
            print(_choices(program, functions), flush=True)
            return 0 if rest else 2
        specs.require_known(f"command of `{program}`", rest[:1], functions)
    action = rest.pop(0) if rest and rest[0] and rest[0] in functions else ""
    function, program = functions[action], f"{program} {action}".rstrip()
    as_json = "--json" in rest
    if "--deterministic" in rest:
        _make_deterministic()
    rest = [argument for argument in rest if argument not in ("--json", "--deterministic")]
    _refuse_unusable(rest, program)
    asked_for_help = bool(set(rest) & set(HELP))
    with (
        _output_kept(as_json and not asked_for_help),
        contextlib.nullcontext() if asked_for_help or not _may_draw(rest) else Waiting(program),
    ):
        result = _call(function, rest, program)
    if not result.silent:
        print(json.dumps(_plain(result.data), indent=2) if as_json else result.text, flush=True)
    return 0 if result.ok else 1


def _may_draw(arguments: list[str]) -> bool:
    """Whether this is the only process, or known to be the first of several."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    first = ("--process", "0") in itertools.pairwise(words)
    return first or not set(words) & set(_SHARED)


def _make_deterministic() -> None:
    """Asks XLA for deterministic operations on GPUs; before JAX has started a backend."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DETERMINISTIC}".strip()
    with contextlib.suppress(OSError):
        print(
            "deterministic: GPUs use slower kernels where a faster one adds in any order, and "
            "refuse operations that have no such kernel; CPUs and TPUs are not affected",
            file=sys.stderr,
        )


def _refuse_unusable(arguments: list[str], program: str) -> None:
    """Refuses empty texts, which as paths would be the current folder, and those with NUL."""
    for before, argument in zip([program, *arguments], arguments, strict=False):
        option, equals, value = argument.partition("=")
        if not argument or (option.startswith("--") and equals and not value):
            raise UserError(f"what follows `{option or before}` is empty; expected a value")
        if "\0" in argument:
            raise UserError(f"{argument!r} has the character NUL; expected none")


def _call(function: Command, arguments: list[str], program: str) -> Result:
    """Runs a command; the only ones to end it at once are the parser, and help."""
    try:
        return function(arguments, program)
    except SystemExit as error:
        if error.code in (0, None) and not set(arguments) & set(HELP):
            raise UserError(f"`{program}` was ended by a call of sys.exit") from error
        raise


@contextlib.contextmanager
def _output_kept(wanted: bool) -> Iterator[None]:
    """Sends what an environment prints meanwhile, in Python or C, to the standard error."""
    if not wanted:
        yield
        return
    with standard_output_to(2), contextlib.redirect_stdout(sys.stderr):
        yield


def _choices(program: str, functions: dict[str, Command]) -> str:
    rows = []
    for name, function in functions.items():
        summary = (function.__doc__ or "").strip().splitlines()[0]
        rows.append(f"  {name:<10} {summary}")
    return f"usage: {program} COMMAND ...\n\ncommands:\n" + "\n".join(rows)


def _plain(data: Any) -> Any:
    """Replaces what JSON cannot hold: NaN and infinities become null."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
