"""The command line: `discorl COMMAND ...`."""

import importlib
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

from discorl.cli.commands import Command
from discorl.types import UserError

# Each command's module is imported only when it is called for.
COMMANDS = {
    "train": ("discorl.cli.train", "Train agents on an environment with a rule."),
    "evaluate": ("discorl.cli.evaluate", "Play the agents of a training run."),
    "discover": ("discorl.cli.discover", "Discover a rule with a population of agents."),
    "compare": ("discorl.cli.compare", "Train several rules and tell which is better."),
    "envs": ("discorl.cli.envs", "List, show and check environments."),
    "inspect": ("discorl.cli.inspect", "Look inside a rule: what it reads and what it does."),
    "report": ("discorl.cli.report", "Make a page of runs or of a comparison."),
    "rules": ("discorl.cli.rules", "List, show, fetch, import and export rules."),
    "verify": ("discorl.cli.verify", "Recompute golden values on this machine."),
}
INTERRUPTED = 130  # exit status, as shells have it for Ctrl-C


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its status."""
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        print(f"discorl: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        # The reader has gone, as in `discorl ... | head`; nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"discorl {importlib.import_module('discorl').__version__}")
        return 0
    command, *rest = arguments
    _check(command, COMMANDS, "command")
    functions = importlib.import_module(COMMANDS[command][0]).COMMANDS
    program = f"discorl {command}"
    if "" in functions:
        function = functions[""]
    else:
        if not rest or rest[0] in ("-h", "--help"):
            print(_choices(program, functions))
            return 0 if rest else 2
        action, *rest = rest
        _check(action, functions, f"command of `{program}`")
        function, program = functions[action], f"{program} {action}"
    as_json = "--json" in rest
    result = function([a for a in rest if a != "--json"], program)
    print(json.dumps(_plain(result.data), indent=2) if as_json else result.text, flush=True)
    return 0 if result.ok else 1


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
        "Every command takes --help, and --json to print its result for programs."
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
