"""The command line: `discorl COMMAND ...`."""

import contextlib
import importlib
import itertools
import os
import sys
import threading
from collections.abc import Iterator, Sequence

# Each command's module is imported only when it is called for.
COMMANDS = {
    "train": ("discorl.cli.train", "Train agents on an environment with a rule."),
    "evaluate": ("discorl.cli.evaluate", "Measure the mean return of a training run's agents."),
    "play": ("discorl.cli.play", "Watch an episode of a training run."),
    "discover": ("discorl.cli.discover", "Discover a rule with a population of agents."),
    "launch": ("discorl.cli.launch", "Discover or train in several processes on this machine."),
    "compare": ("discorl.cli.compare", "Train several rules and compare them."),
    "sweep": ("discorl.cli.sweep", "Train a rule with different settings: which of them matter?"),
    "envs": ("discorl.cli.envs", "List, show and check environments."),
    "inspect": ("discorl.cli.inspect", "Look inside a rule: what it reads and what it does."),
    "report": ("discorl.cli.report", "Make a page of runs or of a comparison."),
    "rules": ("discorl.cli.rules", "List, show, check and share rules."),
    "verify": ("discorl.cli.verify", "Recompute golden values on this machine."),
}
HELP = ("-h", "--help")
INTERRUPTED = 130  # exit status, as shells have it for Ctrl-C


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] not in (*HELP, "--version"):
        # XLA calls a compilation of two minutes an error ("Very slow compile?").
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        try:
            with _starting(given[0]):
                from discorl.cli import running  # only now: it needs JAX, and help should be quick

                if given[0] in COMMANDS:
                    importlib.import_module(COMMANDS[given[0]][0])
        except KeyboardInterrupt:
            print("discorl: interrupted before there was anything to save", file=sys.stderr)
            sys.exit(INTERRUPTED)
        sys.exit(running.main(given))
    from discorl import __version__

    text = f"discorl {__version__}" if given[:1] == ["--version"] else _overview()
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has gone, as in `discorl --help | head`
        close_output()
    except OSError as error:
        close_output()
        print(f"discorl: the standard output: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0 if given else 2)


@contextlib.contextmanager
def _starting(command: str) -> Iterator[None]:
    """Counts seconds on a terminal while modules are imported; a busy machine takes several."""
    stream, imported = sys.stderr, threading.Event()
    if command not in COMMANDS or stream is None or not stream.isatty():
        yield
        return

    def count() -> None:
        with contextlib.suppress(OSError):
            for seconds in itertools.count():
                clock = f"{seconds // 60}:{seconds % 60:02d}"
                print(f"\rdiscorl {command}: starting  {clock}", end="", file=stream, flush=True)
                if imported.wait(1):
                    break

    counting = threading.Thread(target=count, daemon=True)
    counting.start()
    try:
        yield
    finally:
        imported.set()
        counting.join()
        print("\r\x1b[2K", end="", file=stream, flush=True)


def close_output() -> None:
    """Lets nothing be flushed at exit to an output that takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _overview() -> str:
    rows = "\n".join(f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items())
    return (
        "usage: discorl COMMAND ...\n\n"
        "Train agents with discovered reinforcement-learning rules.\n\n"
        f"commands:\n{rows}\n\n"
        "Every command takes --help, --json to print its result for programs, and --deterministic\n"
        "for results that repeat bit for bit on GPUs, at the cost of speed."
    )
