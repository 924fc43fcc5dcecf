"""Progress of a long command: a bar on a terminal, occasional lines elsewhere.

Displays may be nested, as when an inspection trains agents: only the innermost is drawn.
"""

import abc
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Self, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment

_REFRESHES_PER_SECOND = 4
_QUICK_SECONDS = 1.0  # a command that takes longer says what it is doing
_WINDOW_SECONDS = 30.0  # that the rate is taken over
_BAR = (8, 40)  # columns: with less room there is no bar, and it takes no more
# Off a terminal: a line for each tenth, but not more often nor more rarely than this.
_LEAST_SECONDS, _MOST_SECONDS = 60.0, 600.0


_displays: list["_Display"] = []  # on the terminal, outermost first


class _Display(abc.ABC):
    """A line at the bottom of a terminal, drawn again several times a second."""

    def __init__(self, stream: TextIO | None, clock: Callable[[], float]) -> None:
        self._given = stream
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._start = clock()
        self._live: Live | None = None

    @abc.abstractmethod
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The line as it is now."""

    def _begin(self, transient: bool) -> None:
        """Draws this display in place of the one around it."""
        if _displays:
            _displays[-1]._pause()
        if self._given is None:
            self._stream = sys.stderr  # which the display around it had replaced
        _displays.append(self)
        self._transient = transient
        self._draw()

    def _end(self) -> None:
        self._pause(self._transient)
        _displays.remove(self)
        if _displays:
            _displays[-1]._draw()

    def _pause(self, transient: bool = True) -> None:
        assert self._live is not None
        self._live.transient = transient
        self._live.stop()
        self._live = None

    def _draw(self) -> None:
        console = Console(file=self._stream)
        self._live = Live(
            get_renderable=lambda: self._fitted(console),
            console=console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            # What others print meanwhile goes above the line. The output may be a file.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start(refresh=True)

    def _fitted(self, console: Console) -> Self:
        """Fits the console to the current width of the terminal."""
        with contextlib.suppress(OSError):
            # Some terminals do not know their width.
            console.width = os.get_terminal_size(self._stream.fileno()).columns or 80
        return self


class Waiting(_Display):
    """A line such as `discorl verify: small.npz in float64  0:12`, while nothing else is drawn.

    Quick commands end before it appears. On anything that is not a terminal there is none.
    """

    def __init__(
        self,
        what: str,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Waits for a command."""
        super().__init__(stream, clock)
        self._what = what
        self.doing = "working"

    def __enter__(self) -> Self:
        if self._stream.isatty():
            self._begin(transient=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self in _displays:
            self._end()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What is waited for, and for how long."""
        seconds = self._clock() - self._start
        line = f"{self._what}: {self.doing}  {_duration(seconds)}"
        yield Segment("" if seconds < _QUICK_SECONDS else line[: options.max_width - 1])


def doing(what: str) -> None:
    """Says what the command is doing, if a `Waiting` line is shown."""
    for display in _displays:
        if isinstance(display, Waiting):
            display.doing = what


@contextlib.contextmanager
def nothing_drawn() -> Iterator[None]:
    """Leaves the terminal to the caller."""
    paused = _displays[-1:]
    for display in paused:
        display._pause()
    try:
        yield
    finally:
        for display in paused:
            display._draw()


class Progress(_Display):
    """A bar such as `updates ━━━━━━ 350/1000 35%  0:28  ETA 0:53  12.3 updates/s  return 0.420`.

    It is left standing at the end. On anything that is not a terminal, such as a log file, a plain
    line is written for every tenth of the whole, at most one a minute, so that a log is neither
    flooded nor silent for long.

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
        """Starts at nothing done."""
        super().__init__(stream, clock)
        self._total = total
        self._unit = unit
        self._done = 0
        self._values: dict[str, float] = {}
        self._told_at = self._start
        self._told = 0  # tenths
        self._worked = 0.0, self._start  # seconds of work, and when that was told
        # (seconds, done) of the latest updates. The first is of the first update: what was before
        # it, compilation above all, says nothing about the pace to expect.
        self._samples: deque[tuple[float, int]] = deque()

    def update(
        self, done: int, values: Mapping[str, float] | None = None, seconds: float | None = None
    ) -> None:
        """Reports how much is done, over all stretches of a run; cheap enough for every update.

        `seconds` are those of work if the run counts them, by default those since the start.
        """
        now = self._clock()
        self._done = done
        self._worked = (now - self._start if seconds is None else seconds), now
        self._values = self._values | dict(values or {})  # another thread may be drawing the old
        self._samples.append((now, done))
        # Two at least remain, or slow updates would never have a rate.
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()
        if self not in _displays:
            waited, tenths = now - self._told_at, self._tenths()
            if waited >= _MOST_SECONDS or (waited >= _LEAST_SECONDS and tenths > self._told):
                self._tell(now)

    def __enter__(self) -> Self:
        self._start = self._told_at = self._clock()
        self._worked = 0.0, self._start
        if self._stream.isatty() and self._total:
            self._begin(transient=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self in _displays:
            self._end()
        elif self._samples and self._clock() - self._told_at >= _LEAST_SECONDS:
            self._tell(self._clock())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar and the numbers, as they are now."""
        width = options.max_width - 1  # the last column makes some terminals wrap
        name, numbers = f"{self._unit} ", self._numbers(self._clock(), width - len(self._unit) - 1)
        room = min(width - len(name) - len(numbers) - 1, _BAR[1])
        yield Segment(name)
        if room >= _BAR[0]:
            bar = ProgressBar(total=self._total, completed=self._done, width=room)
            yield from console.render(bar, options)
            yield Segment(" ")
        yield Segment(numbers)

    def _tell(self, now: float) -> None:
        print(f"{self._unit} {self._numbers(now)}", file=self._stream, flush=True)
        self._told_at, self._told = now, self._tenths()

    def _tenths(self) -> int:
        return 10 * self._done // self._total if self._total else 10

    def _numbers(self, now: float, width: int = 1000) -> str:
        """The numbers in at most `width` characters; values are dropped first, also for the bar."""
        percent = 100 * self._done // self._total if self._total else 100
        seconds, then = self._worked
        head = [f"{self._done:,}/{self._total:,} {percent}%", _duration(seconds + now - then)]
        if not self._samples:
            head.append("compiling")
        rate = self._rate()
        if rate is not None:
            head.append(f"ETA {_duration(max(0, self._total - self._done) / rate)}")
            head.append(f"{_digits(rate)} {self._unit}/s")
        values = [f"{name} {value:.3f}" for name, value in self._values.items()]
        while values and len("  ".join(head + values)) > width - _BAR[0] - 1:
            values.pop()
        while len(head) > 1 and len("  ".join(head)) > width:
            head.pop()
        return "  ".join(head + values)[:width]

    def _rate(self) -> float | None:
        if not self._samples:
            return None
        (start, done_at_start), (end, done_at_end) = self._samples[0], self._samples[-1]
        if end <= start or done_at_end <= done_at_start:
            return None
        return (done_at_end - done_at_start) / (end - start)


def _digits(value: float) -> str:
    """Formats with three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _duration(seconds: float) -> str:
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes_left:02d}:{seconds_left:02d}"
    return f"{minutes}:{seconds_left:02d}"
