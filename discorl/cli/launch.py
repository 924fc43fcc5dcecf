"""The command `discorl launch`: several processes on this machine, started again if they fail."""

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from discorl.cli import HELP
from discorl.cli.commands import JSON_HINT, Command, Result
from discorl.runs import memory
from discorl.runs.interrupts import interrupts
from discorl.runs.progress import nothing_drawn
from discorl.types import UserError, validation

HOST = "127.0.0.1"
PATIENCE = 24.0  # seconds in which the others notice that one has ended; a heartbeat takes 20
# Has Linux kill a process together with the one that started it, then becomes the command.
_START = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
USAGE_ERROR = 2  # exit status of a command that would fail again in the same way


def launch_command(arguments: list[str], program: str) -> Result:
    """Run `discover` or `train` in several processes on this machine; restart them if they fail.

    A restarted run continues from its last checkpoint. Ctrl-C and SIGTERM save the run and stop all
    processes.
    """
    about = f"{launch_command.__doc__} {JSON_HINT}"
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument(
        "-n", "--processes", type=int, required=True, metavar="N", help="processes to start"
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=100,
        metavar="N",
        help="how often to restart them; by default 100",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="discover or train, --out FOLDER, ..."
    )
    given = parser.parse_args(arguments)
    validation.integer("processes", given.processes, least=1)
    validation.integer("restarts", given.restarts, least=0)
    memory.check_processes("processes", given.processes)
    if given.command[:1] not in (["discover"], ["train"]):
        raise UserError(
            f"cannot launch {' '.join(given.command)!r}; expected `discover` or `train` with its "
            "options"
        )
    names = {option.partition("=")[0] for option in given.command}
    if own := sorted(names & {"--coordinator", "--processes", "--process", "--distributed"}):
        raise UserError(f"{own[0]} is given; `{program}` sets it for each process")
    if not names & {"--out", "--resume", *HELP}:
        raise UserError("out is not given; expected a folder, the same for every start")
    options = [] if "--resume" in names else ["--resume-if-exists"]
    command = [sys.executable, "-m", "discorl.cli", *given.command, *options]
    count = 1 if names & set(HELP) else given.processes
    with nothing_drawn():  # process 0 draws
        status, restarts = supervise(command, count, given.restarts)
    data = {"processes": given.processes, "restarts": restarts, "status": status}
    return Result(data, f"restarts: {restarts}", ok=status == 0)


def supervise(command: Sequence[str], count: int, restarts: int) -> tuple[int, int]:
    """Runs a command in processes that find each other, until they succeed or the user stops them.

    Returns:
        the exit status, and how often all were started again.
    """
    with interrupts() as interrupted:
        for attempt in range(restarts + 1):
            status = _run(command, count, interrupted)
            if status in (0, USAGE_ERROR) or interrupted():
                break
            if attempt < restarts:
                # A process that was killed leaves its line on the terminal.
                clear = "\r\x1b[2K" if sys.stderr.isatty() else ""
                print(
                    f"{clear}a process ended with status {status}: restarting all "
                    f"({attempt + 1} of at most {restarts})",
                    file=sys.stderr,
                )
        return status, attempt


def _run(command: Sequence[str], count: int, interrupted: Callable[[], bool]) -> int:
    """Starts all processes once; returns 0 or the status of the first that failed."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        where = f"{HOST}:{free.getsockname()[1]}"
    if sys.platform == "linux":
        command = [sys.executable, "-c", _START, str(os.getpid()), *command]
    command = [*command, "--coordinator", where, "--processes", str(count)]
    children = [
        # In sessions of their own: Ctrl-C comes to us, who pass it on once.
        subprocess.Popen([*command, "--process", str(i)], start_new_session=True)
        for i in range(count)
    ]
    told, deadline, first = False, float("inf"), 0
    try:
        while None in [child.poll() for child in children]:  # asks all of them, each time
            if interrupted() and not told:
                told = True
                for child in children:
                    child.terminate()
            if not first:
                first = next((child.returncode for child in children if child.returncode), 0)
                deadline = time.monotonic() + PATIENCE if first else deadline
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    finally:
        for child in children:
            child.kill()
            child.wait()
    return first or next((child.returncode for child in children if child.returncode), 0)


COMMANDS: dict[str, Command] = {"": launch_command}
