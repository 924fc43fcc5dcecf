"""One trial of the campaign: a command in a process of its own, and what must never come of it.

The process that runs the campaign imports discorl once and forks for every trial, which costs
nothing of the seconds that an import takes. It never computes anything itself: a fork of a process
in which JAX has started its threads may hang.
"""

import contextlib
import dataclasses
import encodings.cp437  # noqa: F401  (of zip files; nobody may be unable to read the interpreter's)
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

UNEXPECTED = 70  # exit status of what is no mistake of the user's
_LONGEST_ERROR = 60  # lines; help and a parser's box are long, a traceback is longer
_NOBODY = 65534  # user and group
_MEMORY = 6 * 2**30  # bytes that a trial may map beyond this process


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    status: int  # negative: killed by a signal
    out: str
    err: str
    orphans: tuple[int, ...] = ()
    late: bool = False

    @property
    def said(self) -> str:
        return self.out + self.err


class Campaign:
    """Counts tries and failures by kind; trials happen in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tries: Counter[str] = Counter()
        self.failures: list[str] = []
        self._keepsake = folder / "keepsake"
        self._keepsake.mkdir()
        (self._keepsake / "mine.csv").write_text("update,b\n1,2\n")

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def count(self, kind: str, problem: str | None, what: object) -> None:
        """Notes a try, and the failure if there is a problem."""
        self.tries[kind] += 1
        kept = (self._keepsake / "mine.csv").read_text() == "update,b\n1,2\n"
        problem = problem if kept else "a file of the user's was changed"
        if problem:
            self.failures.append(f"{kind}: {what}: {problem}")
            print(self.failures[-1], flush=True)

    def command(self, kind: str, arguments: list[object], expect: str, **options) -> Outcome:
        """Tries a command line; see `problem_of` for what to expect.

        With `nobody`, it has no rights but everybody's.
        """
        texts = [str(argument) for argument in arguments]
        nobody = options.pop("nobody", False)

        def main() -> None:
            if nobody:
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
            _main(texts)

        outcome = run(main, options.pop("cwd", None) or self.new_folder(), **options)
        self.count(kind, problem_of(outcome, expect), " ".join(texts)[:200])
        return outcome


def problem_of(outcome: Outcome, expect: str) -> str | None:
    """What is wrong with an outcome, if anything is.

    `expect` is "accepted", "refused", "refused: WORD" with a word that must be in the message, or
    "anything" that ends in good order.
    """
    said = outcome.said.strip()
    tail = said[-300:]
    if outcome.late:
        return f"did not end: {tail}"
    if "Traceback (most recent call last)" in said or outcome.status == UNEXPECTED:
        return f"a traceback: {tail}"
    if outcome.status < 0:
        return f"killed by signal {-outcome.status}: {tail}"
    if outcome.orphans:
        return f"left the processes {outcome.orphans}"
    if outcome.status and not said:
        return f"ended with status {outcome.status} without a word"
    if len(outcome.err.splitlines()) > _LONGEST_ERROR:
        return f"said too much: {tail}"
    if expect == "accepted" and outcome.status:
        return f"was refused: {tail}"
    if expect.startswith("refused"):
        word = expect.removeprefix("refused").removeprefix(": ")
        if not outcome.status:
            return "was accepted"
        if word and word.lower() not in said.lower().replace("-", "_"):
            return f"did not name {word!r}: {tail}"
    return None


def run(
    function: Callable[[], object],
    cwd: Path,
    *,
    timeout: float = 300.0,
    meanwhile: Callable[[int], None] | None = None,
) -> Outcome:
    """Runs a function in a process of its own; its status is that of its `SystemExit`.

    Args:
        function: what to run.
        cwd: where.
        timeout: seconds after which the process is killed, and counts as hung.
        meanwhile: called with the process, once it has started.
    """
    out, err = cwd / ".out", cwd / ".err"
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks: nothing of JAX runs here
        child = os.fork()
    if not child:
        _become(function, cwd, out, err)
    try:
        if meanwhile is not None:
            meanwhile(child)
        status, late = _wait(child, timeout)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    orphans = () if late else _orphans(child)
    for orphan in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    for path in (out, err):
        path.unlink(missing_ok=True)
    return Outcome(status, *texts, orphans, late)


def _become(function: Callable[[], object], cwd: Path, out: Path, err: Path) -> None:
    status = 1
    try:
        os.setsid()
        os.chdir(cwd)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, resource.RLIM_INFINITY))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        function()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _main(arguments: list[str]) -> None:
    from discorl.cli import main

    main(arguments)


def _wait(child: int, timeout: float) -> tuple[int, bool]:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), False
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL, True


def _orphans(session: int, patience: float = 5.0) -> tuple[int, ...]:
    """Processes of a session whose leader has ended, if they stay."""
    deadline = time.monotonic() + patience
    while left := _of_session(session):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return ()


def _of_session(session: int) -> tuple[int, ...]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(path.parent.name))
    return tuple(found)
