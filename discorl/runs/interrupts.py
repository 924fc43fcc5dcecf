"""Stopping a long command."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, raised once everything is saved.

    Attributes:
        result: what the command would have returned; its `finished` is False.
    """

    def __init__(self, result: Any) -> None:
        where = f"; continue with resume={str(result.path)!r}" if result.path else ""
        super().__init__(f"stopped{where}")
        self.result = result


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Records the first Ctrl-C or SIGTERM, so that the current update is finished and saved.

    A second one stops the process as usual.
    """
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: Any) -> None:
        del frame
        noted.append(number)
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(noted)
    finally:
        restore()
