"""Running a comparison: its directory and its cells. It can be stopped at any time.

config.json       the settings, the scales of scores
versions.json     the software, the device and the command it was started with
rule-NAME.npz     its copy of each learned rule
cells/            a run directory for each rule, environment, learning rate and block of seeds
report/           tables, figures and the page
"""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from discorl import rules
from discorl.comparison import cells, scales, sweeps
from discorl.comparison.cells import Cell
from discorl.comparison.config import ComparisonConfig, configure_comparison, read
from discorl.comparison.entries import RuleEntry, folder_name
from discorl.comparison.executors import make_executor, run_elsewhere
from discorl.comparison.results import Results, final_cells, sweep_cells
from discorl.comparison.scales import Scale
from discorl.runs import Run, schemas
from discorl.runs.files import (
    naming,
    read_bytes,
    sha256_of,
    write_bytes,
    write_errors_reported,
)
from discorl.runs.interrupts import Stopped
from discorl.runs.progress import doing, waiting
from discorl.runs.schemas import Each
from discorl.training.compiled.trainer import ProgramCache
from discorl.training.config import TrainConfig
from discorl.types import UserError

KIND = "compare"
_SCHEMA = {  # of a comparison's configuration
    "comparison": dict,
    "scales": Each({"random": float, "optimal": float, "known": bool}),
    "unavailable": Each(str),
    "sha256": Each(str),
}
Tell = Callable[[str], None]
Record = dict[str, Any]


@waiting("discorl.compare")
def compare(
    config: ComparisonConfig | None = None,
    *,
    suite: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    accept_changes: bool = False,
    tell: Tell | None = None,
    executor: Executor | str | None = None,
    **settings: Any,
) -> Results:
    """Trains several rules in several environments, with several seeds, and compares them.

    Args:
        config: all settings; alternatively, give a suite, single settings, or both.
        suite: name of a suite, or a TOML file.
        out: the directory to make.
        resume: the directory of a comparison to continue, instead of settings.
        accept_changes: whether to resume a comparison whose files were changed since it stopped.
        tell: called with a line of text for every cell.
        executor: where cells run, by default one after the other in this process: any
            `concurrent.futures.Executor` whose workers have discorl and see the directory, or a
            text such as "processes:4"; see `executors.KINDS`.
        **settings: arguments of `configure_comparison`, such as `rules` and `environments`.

    Returns:
        scores and their statistics; `report.write` makes a page of them.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once the current cell is saved.

    Example:
        ```python
        results = discorl.compare(rules=["ppo", "disco103"], suite="laptop", out="runs/laptop")
        print(results.aggregates["ppo"]["iqm"])
        ```
    """
    given = suite is not None or bool(settings)
    if (config is not None) + (resume is not None) + given != 1:
        raise UserError("give one of config, resume, and a suite or single settings")
    if (resume is None) == (out is None):
        raise UserError("give either out, a directory to make, or resume, one to continue")
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as workers:  # workers end first
        if isinstance(executor, str):  # first: a wrong name must not leave a directory behind
            jobs = Path(out or resume or "") / "jobs"
            executor = workers.enter_context(make_executor(executor, jobs))
        if resume is not None:
            run = stack.enter_context(Run.open(resume, accept_changes=accept_changes))
            _require_comparison(run)
            _look_again(run)
        else:
            assert out is not None
            config = config or configure_comparison(suite, **settings)
            run = stack.enter_context(create(Path(out), config))
        results = _Runner(run, tell or (lambda line: None), accept_changes, executor).run()
    if not results.finished:
        raise Stopped(results)
    return results


def _look_again(run: Run) -> None:
    """Adds environments that were unavailable before, if their suite is now installed."""
    environments = read(run.config["comparison"]).environments
    found: dict[str, Scale] = {}
    unavailable: dict[str, str] = {}
    for entry in environments:
        if entry.label in run.config["unavailable"]:
            try:
                found[entry.label] = scales.scale_of(entry, alone=len(environments) == 1)
            except UserError as error:  # without a scale, its cells run but do not count
                unavailable[entry.label] = str(error)
    if found:
        known = run.config["scales"] | _as_json(found)
        run.describe(run.config | {"scales": known, "unavailable": unavailable})


def load(path: str | os.PathLike[str]) -> Results:
    """Reads a comparison, finished or not; another process may be writing it."""
    with Run.open(path, read_only=True) as run:
        _require_comparison(run)
        return _results(run)


def _require_comparison(run: Run) -> None:
    """Rejects a run of another command, and a damaged configuration."""
    run.require_kind(KIND)
    with naming(run.path / "config.json"):
        schemas.check(run.config, _SCHEMA)


class _Runner:
    def __init__(
        self, run: Run, tell: Tell, accept_changes: bool, executor: Executor | None
    ) -> None:
        self._run = run
        self._executor = executor
        self._path = run.path.resolve() if executor else run.path  # workers have other folders
        self._tell = tell
        self._accept_changes = accept_changes
        found = _results(run)
        self._config, self._scales = found.config, found.scales
        self._programs = ProgramCache()
        self._done = 0
        self._untuned: Mapping[tuple[str, str], str] = {}

    def run(self) -> Results:
        config = self._config
        for label, message in self._run.config["unavailable"].items():
            self._tell(f"{label} cannot be made: {message}")
        sweep = list(sweep_cells(config))
        blocks = len(list(final_cells(config, {})))
        if config.search is not None:  # only the first trials are known
            blocks = blocks // len(config.rules) * config.search.trials
        total = len(sweep) + blocks
        try:
            if self._go_through(sweep, total):
                swept = _results(self._run)
                self._untuned = swept.untuned
                self._tell_rates(swept)
                planned = list(final_cells(config, swept.chosen))
                while self._go_through(planned, total) and (added := self._add_trials()):
                    cells_now = final_cells(self._config, {})
                    planned = [cell for cell in cells_now if cell.rule in added]
        except KeyboardInterrupt:  # outside of a cell's training
            self._tell("stopped")
        return _results(self._run)

    def _tell_rates(self, swept: Results) -> None:
        for rule in self._config.rules:
            if len(self._config.rates(rule)) > 1:
                rates = dict.fromkeys(
                    "none, because all failed" if rate is None else f"{rate:g}"
                    for (label, _), rate in swept.chosen.items()
                    if label == rule.label
                )
                self._tell(f"learning rate of {rule.label}: {', '.join(rates)}")

    def _go_through(self, planned: list[Cell], total: int) -> bool:
        """Runs the cells that are not finished; False if the user stopped it."""
        unfinished = []
        for cell in planned:
            record = cells.read_record(self._path / cell.folder)
            if record is None or record["status"] == "failed":
                unfinished.append(cell)
        self._done += len(planned) - len(unfinished)
        start = time.perf_counter()
        for cell, record in self._records(unfinished):
            if record is None:
                return False
            self._done += 1
            outcome = self._outcome(cell, record)
            seconds = time.perf_counter() - start
            self._tell(f"[{self._done}/{total}] {cell}: {outcome} ({seconds:.0f} s)")
            start = time.perf_counter()
        return True

    def _add_trials(self) -> tuple[RuleEntry, ...]:
        """Adds further trials to an adaptive sweep; empty if there are none."""
        config = self._config
        if config.search is None or len(config.rules) >= config.search.trials:
            return ()
        doing("proposing settings")
        added = sweeps.next_trials(_results(self._run))
        sums = self._copy_rules(added)
        if added:
            self._config = dataclasses.replace(config, rules=(*config.rules, *added))
        else:
            self._tell("TPE finds no further settings")
            ended = dataclasses.replace(config.search, trials=len(config.rules))
            self._config = dataclasses.replace(config, search=ended)
        described = {"comparison": self._config.as_dict(), "sha256": sums}
        self._run.describe(self._run.config | described)
        return added

    def _copy_rules(self, added: tuple[RuleEntry, ...]) -> dict[str, str]:
        """Copies the learned rules of further trials; returns the checksums of all rules."""
        config, sums = self._config, dict(self._run.config["sha256"])
        copies = {entry.rule: self._path / _copy_name(entry) for entry in config.rules}
        earlier = {rule: copy for rule, copy in copies.items() if copy.exists()}
        for entry in added:
            name = _copy_name(entry)
            source = earlier.get(entry.rule) or rules.find(entry.rule, config.rules_path(entry))
            if source is not None:
                with write_errors_reported(self._path):
                    write_bytes(self._path / name, read_bytes(source, 2**30))
                self._run.note_file(name)
                sums[entry.label] = sha256_of(self._path / name)
        return sums

    def _records(self, planned: list[Cell]) -> Iterator[tuple[Cell, Record | None]]:
        """Runs cells, in order, or in the order in which workers finish them.

        The record is None if the user stopped the cell.
        """
        runnable = []
        for cell in planned:
            reason = self._untuned.get((cell.rule.label, cell.environment.label))
            if cell.kind == "final" and reason is not None:  # no learning rate was found
                record = {"status": "failed", "message": reason}
                cells.write_record(self._path / cell.folder, record)
                yield cell, record
            else:
                runnable.append(cell)
        if self._executor is None:
            for cell in runnable:
                yield cell, self._call(cell)(programs=self._programs)
        else:
            doing("waiting for workers")
            yield from run_elsewhere(self._executor, {cell: self._call(cell) for cell in runnable})

    def _call(self, cell: Cell) -> functools.partial[Record | None]:
        return functools.partial(
            cells.run,
            cell,
            self._path / cell.folder,
            self._training(cell),
            self._config.steps,
            keep_checkpoints=self._config.keep_checkpoints,
            accept_changes=self._accept_changes,
        )

    def _training(self, cell: Cell) -> TrainConfig:
        config = self._config.training(cell.rule, cell.environment, cell.learning_rate)
        config = dataclasses.replace(config, seed=cell.seed, seeds=cell.seeds)
        copy = self._path / _copy_name(cell.rule)
        if not copy.exists():
            return config
        _, ending, rule_settings = cell.rule.rule.rpartition(".npz")
        if ending:
            return dataclasses.replace(config, rule=f"{copy}{rule_settings}")
        return dataclasses.replace(config, rules_path=str(copy))

    def _outcome(self, cell: Cell, record: Mapping[str, Any]) -> str:
        if record["status"] == "failed":
            return f"failed: {record['message'].splitlines()[0]}"
        scale = self._scales.get(cell.environment.label, scales.AS_THEY_ARE)
        scores = [scale.score(value) for value in record["returns"]]
        mean = sum(scores) / len(scores)
        kind = "score" if scale.known else "return"
        return f"mean {kind} {mean:.3f}" + (", diverged" if record["status"] == "diverged" else "")


def create(path: Path, config: ComparisonConfig) -> Run:
    """Makes the directory of a comparison, with everything that it depends on."""
    found, unavailable = scales.find(config)
    files = {rule.label: rules.find(rule.rule, config.rules_path(rule)) for rule in config.rules}
    described = {
        "comparison": config.as_dict(),
        "scales": _as_json(found),
        "unavailable": unavailable,
        "sha256": {label: sha256_of(file) for label, file in files.items() if file is not None},
    }
    copies = {_copy_name(rule): files[rule.label] for rule in config.rules}
    run = Run.create(path, described, kind=KIND, copies=copies)
    with contextlib.suppress(OSError):
        (path / "checkpoints").rmdir()  # only cells have checkpoints
    return run


def _copy_name(rule: RuleEntry) -> str:
    return f"rule-{folder_name(rule.label)}.npz"


def _results(run: Run) -> Results:
    with naming(run.path / "config.json"):
        config = read(run.config["comparison"])  # without looking up rules, which may have moved
    found = {label: Scale(**scale) for label, scale in run.config["scales"].items()}
    return Results(run.path, config, found, run.config["sha256"])


def _as_json(found: Mapping[str, Scale]) -> dict[str, dict[str, Any]]:
    return {label: dataclasses.asdict(scale) for label, scale in found.items()}
