"""Calls to a host environment that may raise or never return."""

import queue
import threading
from collections.abc import Callable
from typing import Any, Self

from discorl.envs.host.base import EnvironmentFailure, seeds_from
from discorl.types.findings import raised


class Failed(Exception):
    """A call failed; the message says how, at which step and with which seed."""


class Caller:
    """Makes calls one after the other in its own thread, like training.

    A call counts as hung after `timeout` seconds.
    """

    def __init__(self, timeout: float, count: int, seed: int) -> None:
        self._timeout, self._seeds = timeout, seeds_from(seed, count)
        self._close: Callable[[], object] | None = None
        self._hung = False
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        # A daemon, so that a hanging environment cannot keep the process alive.
        threading.Thread(target=self._serve, daemon=True).start()

    def call(self, name: str, function: Callable[[], Any], step: int | None = None) -> Any:
        """Returns what the function returns.

        Raises:
            Failed: it raised, or did not return in time.
        """
        self._calls.put(function)
        where = "" if step is None else f" at step {step}"
        try:
            answer, error = self._answers.get(timeout=self._timeout)
        except queue.Empty:
            self._hung = True
            message = f"{name} did not answer within {self._timeout:g} s{where}, "
            raise Failed(message + self._seed(None)) from None
        if error is None:
            return answer
        if isinstance(error, EnvironmentFailure):
            raise Failed(f"{name} {error}{where}, {self._seed(error.index)}") from error
        raise Failed(f"{raised(name, error)}{where}, {self._seed(None)}") from error

    def at_end(self, close: Callable[[], object]) -> None:
        """Registers a function to call at the end."""
        self._close = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if self._close is not None and not self._hung:
                self.call("close", self._close)
        except Failed:
            if exception[0] is None:
                raise  # otherwise the earlier exception matters more
        finally:
            self._calls.put(None)

    def _seed(self, index: int | None) -> str:
        if index is not None:
            return f"seed {self._seeds[index]} (environment {index})"
        first, last = self._seeds[0], self._seeds[-1]
        return f"seed {first}" if first == last else f"one of the seeds {first} to {last}"

    def _serve(self) -> None:
        while (function := self._calls.get()) is not None:
            try:
                self._answers.put((function(), None))
            except Exception as error:
                self._answers.put((None, error))
