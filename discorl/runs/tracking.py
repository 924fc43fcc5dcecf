"""Following a run with trackers: Weights & Biases, trackio, or any function.

A run's own record is its tables in CSV files, which a resumed run reads back: `Run.log` writes them
and has the signature of a tracker's `log`. Trackers receive the same rows and are never read.
"""

import abc
import contextlib
import importlib
import math
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from discorl.runs import versions
from discorl.runs.directory import Run
from discorl.runs.files import sha256_of
from discorl.runs.metrics import PLACES, STEP, Row
from discorl.runs.trackers import Subject, Tracker
from discorl.types import UserError, specs

PROJECT = "discorl"  # where the runs of services go unless told otherwise
_KEYS = ("update", "seed", "agent")  # of a row: a service has other places for them

Log = Callable[..., None]  # takes rows and the name of their table, as `Tracker.log` does
Given = str | Tracker | Callable[[list[dict[str, float]]], None]
Track = Given | Iterable[Given] | None  # what users give


def make(track: Track) -> list[Tracker]:
    """The trackers that a user asks for: names, functions and trackers, or one of these."""
    single = isinstance(track, str | Tracker) or callable(track)
    wanted = [] if track is None else [track] if single else list(track)  # type: ignore[arg-type]
    return [_one(given) for given in wanted]


def _one(given: Any) -> Tracker:
    if isinstance(given, Tracker):
        return given
    if isinstance(given, str):
        spec = specs.parse(given)
        specs.require_known("tracker", [spec.name], SERVICES)
        if spec.item is not None:
            expected = f"KEY=VALUE after the colon, such as {spec.name}:project={spec.item}"
            raise UserError(f"track is {given!r}; expected {expected}")
        return SERVICES[spec.name](spec.parameters)
    if callable(given):
        return Callback(given)
    raise UserError(
        f"track is {given!r}; expected one of {', '.join(SERVICES)}, a function of rows or a "
        "Tracker"
    )


@contextlib.contextmanager
def following(
    trackers: Sequence[Tracker],
    run: Run | None,
    config: Mapping[str, Any],
    name: str,
    seeds: Sequence[int] = (),
) -> Iterator[Log]:
    """Starts trackers; yields the function that logs to the run directory, if any, and to them.

    Of several processes, the one that writes the run directory has the trackers.
    """
    subject = Subject(name, secrets.token_hex(6), config, seeds, None)
    if run is not None:
        # Of a file that has the time at which the run was created, so no two runs share it.
        identity = sha256_of(run.path / versions.NAME)[:12]
        subject = Subject(run.path.resolve().name, identity, config, seeds, run.path)
    started = trackers if run is None or run.writes else ()
    writers = [*([] if run is None else [run.log]), *(tracker.log for tracker in started)]

    def log(rows: Sequence[Row], table: str = "metrics") -> None:
        for write in writers:
            write(rows, table)

    with contextlib.ExitStack() as stack:
        for tracker in started:
            tracker.start(subject)
            stack.callback(tracker.close)
        yield log


class Callback(Tracker):
    """Calls a function with the rows of the main table."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        self._function = function

    def log(self, rows: Sequence[Row], table: str = "metrics") -> None:
        if table == "metrics":
            self._function(rows)


class Service(Tracker):
    """Weights & Biases or trackio, whose interfaces agree.

    Each seed is a run of its own, and the seeds of a training run form a group. A failure of the
    service, such as a lost connection, ends the tracking and not the training.
    """

    package: str
    advice: str  # for a service that does not start

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Imports the package; `settings` are further arguments of its `init`."""
        try:
            self._module = importlib.import_module(self.package)
        except ImportError as error:
            extra = f'pip install "discorl[{self.package}]"'
            raise UserError(f"tracker {self.package!r} needs `{extra}`") from error
        self._settings = settings
        self._runs: dict[float | None, Any] = {}  # by seed

    def start(self, subject: Subject) -> None:
        try:
            for seed in subject.seeds or (None,):
                self._runs[seed] = self._open(subject, seed)
        except Exception as error:  # whatever a service has to say
            self.close()
            again = f"; continue with `--resume {subject.folder}`" if subject.folder else ""
            raise UserError(
                f"tracker {self.package!r}: {str(error).rstrip('.')}. {self.advice}{again}"
            ) from error

    def _open(self, subject: Subject, seed: int | None) -> Any:
        """Starts a run of the service."""
        own = {} if seed is None else {"seed": seed}
        common = {
            "project": os.environ.get(f"{self.package.upper()}_PROJECT", PROJECT),
            "group": subject.name,
            "config": {**subject.config, **own},
            "resume": "allow",
        }
        ending = f"-seed{seed}" if len(subject.seeds) > 1 else ""
        return self._module.init(**common | self._arguments(subject, ending) | dict(self._settings))

    @abc.abstractmethod
    def _arguments(self, subject: Subject, ending: str) -> dict[str, Any]:
        """The arguments of `init` that only this service has; `ending` tells seeds apart."""

    def log(self, rows: Sequence[Row], table: str = "metrics") -> None:
        try:
            for row in rows:
                if self._runs:
                    self._log_row(self._runs[row.get("seed")], row, table)
        except Exception as error:  # likewise
            print(f"{self.package} failed and is no longer used: {error}", file=sys.stderr)
            self._runs = {}

    def _log_row(self, run: Any, row: Row, table: str) -> None:
        whose = f"agent_{row['agent']}/" if "agent" in row else ""
        prefix = "" if table == "metrics" else f"{table}/{whose}"
        run.log(
            {
                name if name in PLACES else prefix + name: float(value)
                for name, value in row.items()
                if name not in _KEYS and not math.isnan(value)
            },
            step=int(row["update"]),
        )

    def close(self) -> None:
        runs, self._runs = self._runs, {}
        for run in runs.values():
            with contextlib.suppress(Exception):  # nothing more can be done about it
                run.finish()


class Wandb(Service):
    """Weights & Biases. Its files are kept in the run directory."""

    package = "wandb"
    advice = "Log in with `wandb login`, or set WANDB_MODE=offline"

    def _arguments(self, subject: Subject, ending: str) -> dict[str, Any]:
        folder = {} if "WANDB_DIR" in os.environ else {"dir": subject.folder}
        return folder | {
            "id": f"{subject.identity}{ending}",
            "name": f"{subject.name}{ending}",
            "reinit": "create_new",  # a script may have a run of its own
            "settings": self._module.Settings(console="off"),  # the progress bar is no log
        }

    def _open(self, subject: Subject, seed: int | None) -> Any:
        run = super()._open(subject, seed)
        if subject.seeds:
            run.define_metric("*", step_metric=STEP)
        return run

    def _log_row(self, run: Any, row: Row, table: str) -> None:
        if row["update"] >= run.step:  # else a resumed run makes again what was logged before
            super()._log_row(run, row, table)


class Trackio(Service):
    """trackio, which keeps its runs on this machine or in a Space of the Hugging Face Hub."""

    package = "trackio"
    advice = "See its documentation"

    def _arguments(self, subject: Subject, ending: str) -> dict[str, Any]:
        # It tells runs apart by their names, and resumes the one that has the name.
        return {"name": f"{subject.name}-{subject.identity}{ending}", "embed": False}


SERVICES = {service.package: service for service in (Wandb, Trackio)}
