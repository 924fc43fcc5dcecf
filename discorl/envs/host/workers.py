"""A vector that steps its environments in several processes.

It is for slow environments that hold the GIL while they step. discorl has its own because the
experience is the same as in `SerialVector` for any number of processes, and a failure names its
environment.
"""

import contextlib
import dataclasses
import json
import mmap
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

import numpy as np

from discorl.envs.host import worker
from discorl.envs.host.base import EnvironmentFailure, HostStep, HostVector, Reader
from discorl.envs.host.serial import SerialVector, Single
from discorl.envs.host.worker import Job
from discorl.runs import memory
from discorl.types import PyTree, UserError

_CLOSING_SECONDS = 5.0  # until a worker is killed
# Linux kills the worker with the thread that started it. A worker that is stuck in C or in an
# import, holding the GIL, could not check whether its parent lives.
_COMMAND = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == {parent}:
    from discorl.envs.host.worker import main
    main({pipe}, {memory}, {parent})
"""
# A worker computes little; the accelerator belongs to the learner.
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}


def vector_of(
    make: Callable[[], Single],
    seeds: Sequence[int],
    *,
    observation: PyTree,
    workers: int,
    timeout: float = 120.0,
    read: Reader | None = None,
    mask: int | None = None,
) -> HostVector:
    """A vector of single environments, one per seed.

    `workers` is capped at the number of environments; 0 or 1 steps them in this process. A worker
    counts as hung after `timeout` seconds. `read` maps the stacked observations of environments
    that step together, [n, ...], to those that agents see. `mask` is the number of actions if the
    environments have an action mask (`MaskedSingle`).
    """
    workers = min(workers, len(seeds))
    memory.check_processes("workers", workers)
    if workers <= 1:
        return SerialVector(make, seeds, observation=observation, read=read)
    return WorkerVector(
        make, seeds, observation=observation, workers=workers, timeout=timeout, read=read, mask=mask
    )


@dataclasses.dataclass(frozen=True)
class _Worker:
    """A worker process, seen from the parent."""

    process: subprocess.Popen
    connection: Connection
    indices: range  # of its environments

    def send(self, message: bytes) -> None:
        """Sends a message; a dead process is noticed when its answer is awaited."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(message)

    def answer(self, deadline: float, timeout: float) -> dict[str, Any]:
        only = self.indices[0] if len(self.indices) == 1 else None
        try:
            if not self.connection.poll(max(0.0, deadline - time.monotonic())):
                raise EnvironmentFailure(f"did not answer within {timeout:g} s", only)
            message = self.connection.recv_bytes()
        except (EOFError, OSError):
            code = self.process.wait(_CLOSING_SECONDS)
            raise EnvironmentFailure(f"ended its process, with exit code {code}", only) from None
        answer = json.loads(message) if message else {}
        if "failure" in answer:
            raise EnvironmentFailure(answer["failure"], answer["index"])
        return answer


class WorkerVector(HostVector):
    """Steps environments in worker processes, each of which has a contiguous block."""

    def __init__(
        self,
        make: Callable[[], Single],
        seeds: Sequence[int],
        *,
        observation: PyTree,
        workers: int,
        timeout: float = 120.0,
        read: Reader | None = None,
        mask: int | None = None,
    ) -> None:
        """Starts the processes; see `vector_of`."""
        self._timeout = timeout
        self._workers: list[_Worker] = []
        pickled = _pickle((make, read))
        with _shared_file(worker.board_size(observation, len(seeds), mask)) as file:
            memory = mmap.mmap(file.fileno(), 0)
            self._board = worker.board_on(memory, observation, len(seeds), mask)
            try:
                for part in np.array_split(np.arange(len(seeds)), workers):
                    indices = range(int(part[0]), int(part[-1]) + 1)
                    self._workers.append(_start(indices, file.fileno()))
                for each in self._workers:
                    own = [seeds[i] for i in each.indices]
                    job = Job(pickled, own, each.indices.start, len(seeds), observation, mask)
                    each.send(job.encode())
                self._answers()
            except BaseException:
                self.close()
                raise

    def reset(self) -> PyTree:
        self._ask(worker.RESET)
        return self._board.observation

    def step(self, action: np.ndarray) -> HostStep:
        board = self._board
        board.action[...] = action
        metrics: dict[str, np.ndarray] = {}
        for each, answer in zip(self._workers, self._ask(worker.STEP), strict=True):
            for name, values in answer.get("metrics", {}).items():
                column = metrics.setdefault(name, np.full(len(action), np.nan))
                column[each.indices.start : each.indices.stop] = values
        return HostStep(
            board.observation, board.reward, board.terminated, board.truncated, board.first, metrics
        )

    def action_mask(self) -> np.ndarray | None:
        return self._board.action_mask

    def render(self) -> np.ndarray | None:
        first = self._workers[0]
        first.send(worker.RENDER)
        picture = first.answer(time.monotonic() + self._timeout, self._timeout).get("picture")
        return None if picture is None else np.asarray(picture, np.uint8)

    def close(self) -> None:
        workers, self._workers = self._workers, []
        for each in workers:
            each.connection.close()
        deadline = time.monotonic() + _CLOSING_SECONDS
        for each in workers:
            try:
                each.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()

    def _ask(self, command: bytes) -> list[dict[str, Any]]:
        for each in self._workers:
            each.send(command)
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        """One answer per worker; raises the first failure, if any."""
        deadline = time.monotonic() + self._timeout
        answers: list[dict[str, Any]] = []
        failures: list[EnvironmentFailure] = []
        for each in self._workers:
            try:
                answers.append(each.answer(deadline, self._timeout))
            except EnvironmentFailure as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        return answers


def _start(indices: range, memory: int) -> _Worker:
    ours, theirs = Pipe()
    command = _COMMAND.format(pipe=theirs.fileno(), memory=memory, parent=os.getpid())
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", command],
            pass_fds=(theirs.fileno(), memory),
            stdin=subprocess.DEVNULL,
            stdout=2,  # standard output is for the command's results
            env=os.environ | _ENVIRONMENT,
            process_group=0,  # only the parent gets Ctrl-C
        )
    return _Worker(process, ours, indices)


def _shared_file(size: int) -> IO[bytes]:
    """An anonymous file, which leaves nothing behind; in memory if there is room.

    Its space is allocated at once. Running out of space later would kill a worker by SIGBUS.
    """
    folders = ["/dev/shm"] if os.access("/dev/shm", os.W_OK) else []
    for folder in [*folders, tempfile.gettempdir()]:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the caller closes it
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:  # as on macOS
                file.truncate(size)
            return file
        except OSError as error:
            file.close()
            reason = error.strerror
    raise UserError(
        f"there is no room for {size:,} bytes of observations in {folder} ({reason}): expected "
        "fewer environments, or workers=0"
    )


def _pickle(functions: tuple[Callable[[], Single], Reader | None]) -> bytes:
    try:
        import cloudpickle  # comes with Gymnasium, and pickles nested functions
    except ImportError:
        dumps = pickle.dumps
    else:
        dumps = cloudpickle.dumps
    try:
        return dumps(functions)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"the environment cannot be sent to another process: {error}; expected one that can "
            "be pickled, or workers=0"
        ) from error
