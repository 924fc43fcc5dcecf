"""One live line on the terminal that tells how far a long command is."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Self, TextIO

_REDRAW_SECONDS = 0.2
_WINDOW_SECONDS = 30.0


class Progress:
    """A line such as `updates 350/1000  35%  12.3 updates/s  return 0.42  ETA 0:53`.

    It is rewritten in place and left standing at the end. On anything that is not a terminal, such
    as a log file, nothing is written at all.

        with Progress(1000) as progress:
            for update in range(1000):
                ...
                progress.update(update + 1, {"return": 0.42})
    """

    def __init__(
        self,
        total: int,
        unit: str = "updates",
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts at nothing done.

        Args:
            total: how many units there are in all.
            unit: what is counted, in the plural.
            stream: the terminal; by default the standard error.
            clock: tells the seconds.
        """
        self._total = total
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._live = self._stream.isatty()
        self._done = 0
        self._values: dict[str, float] = {}
        # (seconds, done) of the lines drawn lately. The first is of the first update: what was
        # before it, compilation above all, says nothing about the pace to expect.
        self._samples: deque[tuple[float, int]] = deque()
        self._drawn_at = -float("inf")
        self._drawn = ""

    def update(self, done: int, values: Mapping[str, float] | None = None) -> None:
        """Tells how much is done, and numbers to show with it; cheap enough for every update."""
        if not self._live:
            return
        self._done = done
        self._values.update(values or {})
        now = self._clock()
        if now - self._drawn_at >= _REDRAW_SECONDS:
            self._draw(now)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._draw(self._clock())
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self, now: float) -> None:
        self._samples.append((now, self._done))
        # Two at least remain, or slow updates would never have a rate.
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()
        line = self._line(self._columns() - 1)  # the last column makes some terminals wrap
        self._stream.write("\r" + line.ljust(len(self._drawn)))
        self._stream.flush()
        self._drawn_at, self._drawn = now, line

    def _line(self, width: int) -> str:
        percent = 100 * self._done // self._total if self._total else 100
        head = [f"{self._unit} {self._done}/{self._total}", f"{percent}%"]
        tail = []
        rate = self._rate()
        if rate is not None:
            head.append(f"{_rate_text(rate)} {self._unit}/s")
            tail.append(f"ETA {_duration(max(0, self._total - self._done) / rate)}")
        values = [f"{name} {value:.3g}" for name, value in self._values.items()]
        while values and len("  ".join(head + values + tail)) > width:
            values.pop()
        return "  ".join(head + values + tail)[:width]

    def _rate(self) -> float | None:
        (start, done_at_start), (end, done_at_end) = self._samples[0], self._samples[-1]
        if end <= start or done_at_end <= done_at_start:
            return None
        return (done_at_end - done_at_start) / (end - start)

    def _columns(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except OSError:
            columns = 0
        return columns or 80  # some terminals do not know their width


def _rate_text(rate: float) -> str:
    if rate >= 100:
        return f"{rate:.0f}"
    return f"{rate:.1f}" if rate >= 10 else f"{rate:.2g}"


def _duration(seconds: float) -> str:
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes_left:02d}:{seconds_left:02d}"
    return f"{minutes}:{seconds_left:02d}"
