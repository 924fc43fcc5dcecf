"""The command line: `discorl COMMAND ...`."""

import contextlib
import importlib
import json
import math
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from discorl.cli.commands import Command, Result
from discorl.types import UserError

# Each command's module is imported only when it is called for.
COMMANDS = {
    "train": ("discorl.cli.train", "Train agents on an environment with a rule."),
    "evaluate": ("discorl.cli.evaluate", "Play the agents of a training run."),
    "play": ("discorl.cli.play", "Play an episode of a training run in the terminal."),
    "discover": ("discorl.cli.discover", "Discover a rule with a population of agents."),
    "launch": ("discorl.cli.launch", "Discover in several processes on this machine."),
    "compare": ("discorl.cli.compare", "Train several rules and compare them."),
    "sweep": ("discorl.cli.sweep", "Train a rule with different settings: which of them matter?"),
    "envs": ("discorl.cli.envs", "List, show and check environments."),
    "inspect": ("discorl.cli.inspect", "Look inside a rule: what it reads and what it does."),
    "report": ("discorl.cli.report", "Make a page of runs or of a comparison."),
    "rules": ("discorl.cli.rules", "List, show, fetch, import and export rules."),
    "verify": ("discorl.cli.verify", "Recompute golden values on this machine."),
}
INTERRUPTED = 130  # exit status, as shells have it for Ctrl-C
UNEXPECTED = 70  # exit status of what is no mistake of the user's: EX_SOFTWARE
_HELP = ("-h", "--help")
_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its status."""
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        status = _tell(str(error), 2)
    except KeyboardInterrupt:  # long commands save what they have, and end in good order
        status = _tell("interrupted before there was anything to save", INTERRUPTED)
    except BrokenPipeError:  # the reader has gone, as in `discorl ... | head`
        _close_output()
        status = 1
    except OSError as error:
        if error.filename is None:  # of a stream
            _close_output()
        where = error.filename or "the standard output"
        status = _tell(f"{where}: {error.strerror or error}", 1)
    except MemoryError as error:
        status = _tell(f"the memory is exhausted{f': {error}' if str(error) else ''}", 1)
    except Exception as error:
        status = _tell(*_unexpected(error))
    sys.exit(status)


def _tell(message: str, status: int) -> int:
    # What a name holds must not act on the terminal.
    shown = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in message)
    with contextlib.suppress(OSError):
        print(f"discorl: {shown}", file=sys.stderr)
    return status


def _close_output() -> None:
    """Lets nothing be flushed at exit to an output that takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(error: Exception) -> tuple[str, int]:
    """What went wrong where, in somebody's own code if that is where it was, and the status."""
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


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in _HELP:
        print(_overview(), flush=True)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"discorl {importlib.import_module('discorl').__version__}", flush=True)
        return 0
    command, *rest = arguments
    _check(command, COMMANDS, "command")
    functions = importlib.import_module(COMMANDS[command][0]).COMMANDS
    program = f"discorl {command}"
    if "" in functions:
        function = functions[""]
    else:
        if not rest or rest[0] in _HELP:
            print(_choices(program, functions), flush=True)
            return 0 if rest else 2
        action, *rest = rest
        _check(action, functions, f"command of `{program}`")
        function, program = functions[action], f"{program} {action}"
    as_json = "--json" in rest
    if "--deterministic" in rest:
        _make_deterministic()
    rest = [argument for argument in rest if argument not in ("--json", "--deterministic")]
    _refuse_unusable(rest, program)
    with _output_kept(as_json and not set(rest) & set(_HELP)):
        result = _call(function, rest, program)
    if not result.silent:
        print(json.dumps(_plain(result.data), indent=2) if as_json else result.text, flush=True)
    return 0 if result.ok else 1


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
        if error.code in (0, None) and not set(arguments) & set(_HELP):
            raise UserError(f"`{program}` was ended by a call of sys.exit") from error
        raise


@contextlib.contextmanager
def _output_kept(wanted: bool) -> Iterator[None]:
    """Sends what an environment prints meanwhile, in Python or C, to the standard error."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _check(name: str, known: Any, what: str) -> None:
    from discorl.types import specs

    if name not in known:
        raise UserError(f"no {what} {name!r}; {specs.nearest(name, known)}")


def _overview() -> str:
    rows = "\n".join(f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items())
    return (
        "usage: discorl COMMAND ...\n\n"
        "Train agents with discovered reinforcement-learning rules.\n\n"
        f"commands:\n{rows}\n\n"
        "Every command takes --help, --json to print its result for programs, and --deterministic\n"
        "for results that repeat bit for bit on GPUs, at the cost of speed."
    )


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
