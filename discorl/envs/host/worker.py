"""A process that steps some of a vector's environments; see `discorl.envs.host.workers`.

It reads commands from a pipe and actions from memory that it shares with its parent process, and
writes the results to that memory. It exits when the pipe closes or the parent dies.
"""

import dataclasses
import json
import math
import mmap
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import jax
import numpy as np

from discorl.envs.host.base import EnvironmentFailure, check_observation
from discorl.envs.host.serial import SerialVector
from discorl.types import PyTree

RESET, STEP, RENDER = b"reset", b"step", b"render"
_ALIGNMENT = 64  # bytes, so that arrays do not share cache lines
_LOOK_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Board:
    """The shared memory: arrays over all environments of the vector, [E, ...]."""

    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    first: np.ndarray
    observation: PyTree
    action_mask: np.ndarray | None  # if environments have one


def board_size(observation: PyTree, count: int, mask: int | None) -> int:
    """Bytes of a board for `count` environments with action masks of length `mask`, if any."""
    return sum(map(_padded, jax.tree.leaves(_description(observation, count, mask))))


def board_on(memory: mmap.mmap, observation: PyTree, count: int, mask: int | None) -> Board:
    """Maps the board of `count` environments onto memory of `board_size` bytes."""
    offset = 0

    def place(like: jax.ShapeDtypeStruct) -> np.ndarray:
        nonlocal offset
        array = np.ndarray(like.shape, like.dtype, memory, offset)
        offset += _padded(like)
        return array

    return Board(*jax.tree.map(place, _description(observation, count, mask)))


def _description(observation: PyTree, count: int, mask: int | None) -> tuple[PyTree, ...]:
    """Shapes and dtypes of a board, in the order of its fields."""
    numbers = [jax.ShapeDtypeStruct((count,), kind) for kind in (np.int32, np.float32)]
    flags = [jax.ShapeDtypeStruct((count,), np.bool_)] * 3
    seen = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), observation)
    legal = None if mask is None else jax.ShapeDtypeStruct((count, mask), np.bool_)
    return (*numbers, *flags, seen, legal)


def _padded(like: jax.ShapeDtypeStruct) -> int:
    size = math.prod(like.shape) * np.dtype(like.dtype).itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@dataclasses.dataclass(frozen=True)
class Job:
    """The assignment of a worker."""

    functions: bytes  # pickled: makes one environment, and reads observations; see `SerialVector`
    seeds: list[int]  # of its environments
    start: int  # index of its first environment in the vector
    count: int  # environments of the vector
    observation: PyTree  # shapes and dtypes of one
    mask: int | None = None  # length of an action mask, if environments have one

    def encode(self) -> bytes:
        """Encodes the job together with this process's `sys.path`."""
        return pickle.dumps((sys.path, pickle.dumps(self)))

    @staticmethod
    def decode(text: bytes) -> "Job":
        path, job = pickle.loads(text)
        sys.path[:] = path
        return pickle.loads(job)


def main(pipe: int, memory: int, parent: int) -> None:
    """Runs a worker until the pipe is closed; pipe and memory are file descriptors."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection = Connection(pipe)
    try:
        job = Job.decode(connection.recv_bytes())
        sizes = job.observation, job.count, job.mask
        shared = mmap.mmap(memory, board_size(*sizes))
        _Server(connection, job, board_on(shared, *sizes)).serve()
    except (EOFError, ConnectionError):
        return  # the parent has closed the pipe


def _end_with(parent: int) -> None:
    """Exits when the parent does, even during a step that hangs."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


class _Server:
    _vector: SerialVector  # from `_start` on

    def __init__(self, connection: Connection, job: Job, board: Board) -> None:
        self._connection, self._job = connection, job
        mine = slice(job.start, job.start + len(job.seeds))
        self._board = Board(*jax.tree.map(lambda x: x[mine], tuple(vars(board).values())))

    def serve(self) -> None:
        self._answer(self._start)
        commands = {RESET: self._reset, STEP: self._step, RENDER: self._render}
        try:
            while True:
                self._answer(commands[self._connection.recv_bytes()])
        finally:
            if hasattr(self, "_vector"):
                self._vector.close()

    def _answer(self, action: Callable[[], dict[str, Any] | None]) -> None:
        try:
            answer = action()
        except EnvironmentFailure as error:
            index = None if error.index is None else error.index + self._job.start
            answer = {"failure": str(error), "index": index}
        except BaseException as error:  # workers get no Ctrl-C, so it is the environment's
            answer = {"failure": f"raised {type(error).__name__}: {error}", "index": None}
        self._connection.send_bytes(b"" if answer is None else json.dumps(answer).encode())

    def _start(self) -> None:
        make, read = pickle.loads(self._job.functions)
        expected = self._job.observation
        self._vector = SerialVector(make, self._job.seeds, observation=expected, read=read)

    def _reset(self) -> None:
        self._show(self._vector.reset())

    def _step(self) -> dict[str, Any] | None:
        step = self._vector.step(self._board.action)
        self._show(step.observation)
        for name in ("reward", "terminated", "truncated", "first"):
            getattr(self._board, name)[...] = getattr(step, name)
        metrics = {name: column.tolist() for name, column in step.metrics.items()}
        return {"metrics": metrics} if metrics else None

    def _render(self) -> dict[str, Any] | None:
        picture = self._vector.render()
        return None if picture is None else {"picture": np.asarray(picture, np.uint8).tolist()}

    def _show(self, found: PyTree) -> None:
        seen = check_observation(found, self._job.observation, len(self._job.seeds))
        jax.tree.map(np.copyto, self._board.observation, seen)
        if self._board.action_mask is not None:
            self._board.action_mask[...] = self._vector.action_mask()
