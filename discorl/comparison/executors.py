"""Executors for the cells of a comparison: local processes, a Dask cluster, or a Slurm queue.

Any `concurrent.futures.Executor` works. Workers need discorl, and the comparison's directory at the
same path.
"""

import contextlib
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from pathlib import Path
from typing import Any, TypeVar

from discorl.comparison.cells import Cell
from discorl.runs import memory
from discorl.training.compiled.trainer import ProgramCache
from discorl.types import UserError, specs, validation

KINDS = ("processes:N", "dask:tcp://HOST:PORT", "slurm:partition=NAME,timeout_min=60")
MOST_LOSSES = 3  # of workers in one cell, which may be the cause
_PROGRAMS = ProgramCache()  # of this worker

Answer = TypeVar("Answer")


def make_executor(text: str, folder: Path) -> contextlib.AbstractContextManager[Executor]:
    """Makes an executor from a text, see `KINDS`; Slurm keeps its files in the folder."""
    kind, _, rest = text.partition(":")
    if kind == "processes":
        count = int(rest) if rest.isdecimal() else rest
        count = validation.integer("executor processes", count, least=1)
        memory.check_processes("executor processes", count)
        # Not forks, which would share JAX's threads.
        return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
    if kind == "dask":
        return _dask(rest)
    if kind == "slurm":
        spec = specs.parse(text)
        if spec.item is not None:
            raise UserError(f"executor is {text!r}; expected KEY=VALUE after the colon")
        return _Slurm(spec.parameters, folder)
    raise UserError(f"executor is {text!r}; expected one of {', '.join(KINDS)}")


def run_elsewhere(
    executor: Executor, calls: Mapping[Cell, Callable[..., Answer]]
) -> Iterator[tuple[Cell, Answer]]:
    """Runs calls on workers; yields their answers as they arrive.

    If a worker is lost, its call is repeated, at most `MOST_LOSSES` times.
    """
    losses: Counter[Cell] = Counter()
    waiting: dict[Future, Cell] = {}
    try:
        for cell, call in calls.items():
            waiting[executor.submit(_call, call)] = cell
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                cell = waiting.pop(future)
                error = future.exception()
                if error is None:
                    yield cell, future.result()
                    continue
                if isinstance(error, UserError):  # a retry would fail, too
                    raise error
                losses[cell] += 1
                if losses[cell] > MOST_LOSSES:
                    raise _lost(cell, error) from error
                waiting[executor.submit(_call, calls[cell])] = cell
    except BrokenExecutor as error:
        raise _lost(cell, error) from error
    finally:
        for future in waiting:
            future.cancel()


def _call(call: Callable[..., Answer]) -> Answer:
    """Runs in a worker, whose cells share compiled programs."""
    return call(programs=_PROGRAMS)


def _lost(cell: Cell, error: BaseException) -> UserError:
    why = f"{type(error).__name__}: {error}".rstrip(": ")
    return UserError(f"{cell}: workers were lost ({why}); `--resume` runs the missing cells")


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError as error:
        raise UserError("executor 'dask' needs `pip install discorl[dask]`") from error
    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise UserError(f"executor: no Dask scheduler answers at {address!r}: {error}") from error
    # Not pure, because cells write files. Closing the executor does not close the client.
    with client, client.get_executor(pure=False) as executor:
        yield executor


class _Slurm(Executor):
    """Jobs in a Slurm queue, started by submitit."""

    def __init__(self, options: dict[str, Any], folder: Path) -> None:
        try:
            import submitit
        except ImportError as error:
            raise UserError("executor 'slurm' needs `pip install discorl[slurm]`") from error
        cluster = options.pop("cluster", "slurm")
        own = ("timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node")
        named = {name if name in own else f"slurm_{name}": x for name, x in options.items()}
        try:
            self._jobs = submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._jobs.update_parameters(**named)
        except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"executor 'slurm': {error}") from error
        self._queued: list[Any] = []
        self._waiting = ThreadPoolExecutor(1000)  # one thread per job

    def submit(self, function: Callable, /, *arguments: Any, **options: Any) -> Future:
        """Queues a call; the future completes with its job."""
        job = self._jobs.submit(function, *arguments, **options)
        self._queued.append(job)
        return self._waiting.submit(job.result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancels the jobs that have not ended; nobody waits for their results."""
        for job in self._queued:
            if not job.done():
                job.cancel()
        self._waiting.shutdown(wait, cancel_futures=cancel_futures)
