"""Progress of a long command: a bar on a terminal, occasional lines elsewhere.

Displays may be nested, as when an inspection trains agents: only the innermost is drawn.
"""

import abc
import contextlib
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Self, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment

_REFRESHES_PER_SECOND = 4
_QUICK_SECONDS = 1.0  # a command that takes longer shows what it is doing
_WINDOW_SECONDS = 30.0  # over which the rate is averaged
_BAR = (8, 40)  # least and most columns
# Without a terminal: seconds until the first line, and least and most seconds between two lines.
_FIRST_SECONDS, _LEAST_SECONDS, _MOST_SECONDS = 30.0, 60.0, 300.0

_displays: list["_Display"] = []  # outermost first
_changing = threading.RLock()  # threads may train agents side by side


class _Log:
    """Stands in for `Live` where there is no terminal: calls a function once per second.

    A thread does this, because compilation can keep the main thread busy for minutes.
    """

    transient = True

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, refresh: bool = False) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def refresh(self) -> None:
        self._tell()

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader has gone; the stream is closed
            while not self._stopped.wait(1.0):
                self._tell()


class _Display(abc.ABC):
    """A line at the bottom of a terminal, redrawn several times per second.

    Without a terminal, as in a log file, it is a plain line every few minutes.
    """

    _transient = True  # nothing of it stays on the terminal

    def __init__(self, stream: TextIO | None, clock: Callable[[], float]) -> None:
        self._given = stream
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._start = clock()
        self._live: Live | _Log | None = None
        self._telling = threading.Lock()
        self._told_at: float | None = None  # when this display or one inside it last wrote a line
        self._told = 0  # how far the work was then

    @abc.abstractmethod
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The current line."""

    @abc.abstractmethod
    def _line(self, now: float) -> str:
        """The current line without a bar."""

    def _how_far(self) -> int:
        """Rises when a log gets another line."""
        return 0

    def _begin(self) -> None:
        """Draws this display instead of the enclosing one."""
        with _changing:
            if _displays:
                _displays[-1]._pause()
            if self._given is None:
                self._stream = sys.stderr  # restored when the enclosing display was paused
            _displays.append(self)
            self._draw()

    def _end(self) -> None:
        with _changing:
            self._pause(self._transient)
            _displays.remove(self)
            if _displays:
                _displays[-1]._draw()

    def _pause(self, transient: bool = True) -> None:
        if self._live is not None:
            self._live.transient = transient
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._live is not None:
            return
        if not self._stream.isatty():
            self._live = _Log(self._tell_if_due)
            self._live.start()
            return
        console = Console(file=self._stream)
        self._live = Live(
            get_renderable=lambda: self._fitted(console),
            console=console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            # Other output goes above the line, unless it goes to a file.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start(refresh=True)

    def _fitted(self, console: Console) -> Self:
        """Fits the console to the current width of the terminal."""
        with contextlib.suppress(OSError):  # some terminals do not know their width
            console.width = os.get_terminal_size(self._stream.fileno()).columns or 80
        return self

    def _tell_if_due(self) -> None:
        """Writes a line to a log if the last one is long enough ago."""
        with self._telling:
            now, told_at = self._clock(), _displays[0]._told_at
            if told_at is None:
                due = now - self._start >= _FIRST_SECONDS
            else:
                moved = self._how_far() > self._told
                due = now - told_at >= (_LEAST_SECONDS if moved else _MOST_SECONDS)
            if due:
                self._tell(now)

    def _tell(self, now: float) -> None:
        print(self._line(now), file=self._stream, flush=True)
        _displays[0]._told_at, self._told = now, self._how_far()


class Waiting(_Display):
    """A line such as `discorl verify: small.npz in float64  0:12`, while nothing else is drawn.

    It appears only if the command is not quick.
    """

    def __init__(
        self,
        what: str,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream, clock)
        self._what = what
        self.doing = "working"

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = self._clock()
        quick = now - self._start < _QUICK_SECONDS
        yield Segment("" if quick else self._line(now)[: options.max_width - 1])

    def _line(self, now: float) -> str:
        return f"{self._what}: {self.doing}  {_duration(now - self._start)}"


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Shows `Waiting` if nothing is drawn yet: a command's own line says more than a function's."""
    with contextlib.nullcontext() if _displays else Waiting(what):
        yield


def doing(what: str) -> None:
    """Sets the text of the `Waiting` displays."""
    for display in _displays:
        if isinstance(display, Waiting):
            display.doing = what


@contextlib.contextmanager
def nothing_drawn() -> Iterator[None]:
    """Pauses the display while the caller uses the terminal."""
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

    It stays on the screen at the end unless it is `transient`. A `title` replaces the unit in front
    of the bar. A log has the first line after 30 seconds, then one for every tenth of the work, at
    most one per minute and at least one every five minutes.

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
        title: str = "",
        transient: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream, clock)
        self._total = total
        self._unit = unit
        self._title = title or unit
        self._transient = transient
        self._done = 0
        self._values: dict[str, float] = {}
        self._worked = 0.0, self._start  # seconds of work, and the time of that report
        # (seconds of work, done) of the latest updates. Time before the first one, mostly
        # compilation, does not count for the rate.
        self._samples: deque[tuple[float, int]] = deque()

    def update(
        self, done: int, values: Mapping[str, float] | None = None, seconds: float | None = None
    ) -> None:
        """Reports how much of the whole run is done; cheap enough for every update.

        `seconds` of work are those since the start by default. Give them if the run pauses, as it
        does to compile: a pause counts neither for the rate nor for the ETA.
        """
        now = self._clock()
        worked = now - self._start if seconds is None else seconds
        self._done, self._worked = done, (worked, now)
        self._values = self._values | dict(values or {})  # another thread may be reading the old
        self._samples.append((worked, done))
        # At least two samples remain, so that slow updates have a rate.
        while len(self._samples) > 2 and worked - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()
        if isinstance(self._live, _Log):
            self._tell_if_due()

    def __enter__(self) -> Self:
        self._start = self._clock()
        self._worked = 0.0, self._start
        if self._total:
            self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        if self in _displays:
            self._end()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width - 1  # the last column makes some terminals wrap
        name = f"{self._title} "
        numbers = self._numbers(self._clock(), width - len(name))
        room = min(width - len(name) - len(numbers) - 1, _BAR[1])
        yield Segment(name)
        if room >= _BAR[0]:
            bar = ProgressBar(total=self._total, completed=self._done, width=room)
            yield from console.render(bar, options)
            yield Segment(" ")
        yield Segment(numbers)

    def _line(self, now: float) -> str:
        return f"{self._title} {self._numbers(now)}"

    def _how_far(self) -> int:
        return 10 * self._done // self._total

    def _numbers(self, now: float, width: int = 1000) -> str:
        """The numbers in at most `width` characters; values are dropped first to make room."""
        percent = 100 * self._done // self._total if self._total else 100
        seconds, then = self._worked
        head = [f"{self._done:,}/{self._total:,} {percent}%", _duration(seconds + now - then)]
        if not self._samples:
            head.append("compiling")
        rate = self._rate()
        if rate is not None:
            head.append(f"ETA {_duration(max(0, self._total - self._done) / rate)}")
            head.append(f"{_digits(rate)} {self._unit}/s")
        # A return is NaN until an episode has ended.
        known = {name: x for name, x in self._values.items() if not math.isnan(x)}
        values = [f"{name} {value:.3f}" for name, value in known.items()]
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
