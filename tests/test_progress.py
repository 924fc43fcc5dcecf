import contextlib
import io
import os
import pty
import re
import sys
import termios
import threading
import time

import pytest

from discorl import cli
from discorl.runs.progress import (
    Progress,
    Waiting,
    _displays,
    doing,
    nothing_drawn,
    waiting,
)


class Terminal:
    """A real terminal of a given width, and a clock that moves when told."""

    def __init__(self, columns):
        self._reader, writer = pty.openpty()
        termios.tcsetwinsize(writer, (24, columns))
        self.columns = columns
        self.stream = os.fdopen(writer, "w")
        self.now = 100.0
        self._written = b""
        # All the time, because a terminal that nobody reads soon blocks its writer.
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def clock(self):
        return self.now

    def lines(self):
        """All that was drawn, one line over the other, after which nothing more can be."""
        self.stream.close()
        self._thread.join(timeout=10)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._written.decode())
        return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]

    def written(self):
        return self._written

    def _drain(self):
        try:
            while content := os.read(self._reader, 4096):
                self._written += content
        except OSError:  # how Linux says that the other side was closed
            pass
        os.close(self._reader)


@pytest.fixture
def terminal(request, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    made = Terminal(getattr(request, "param", 100))
    yield made
    made.stream.close()


def shown(terminal, total, *moments, unit="updates"):
    """The line left standing after updates: (seconds since the one before, done, values)."""
    with Progress(total, unit, stream=terminal.stream, clock=terminal.clock) as progress:
        for seconds, done, values in moments:
            terminal.now += seconds
            progress.update(done, values)
    return terminal.lines()[-1]


def test_line_as_documented(terminal):
    line = shown(terminal, 1000, (18, 227, {}), (10, 350, {"return": 0.42}))
    bar = re.search("[━╸╺]+", line)
    assert line.replace(bar[0], "BAR") == (
        "updates BAR 350/1,000 35%  0:28  ETA 0:53  12.3 updates/s  return 0.420"
    )
    assert len(line) < 100
    assert 8 <= len(bar[0]) <= 40


def test_rate_leaves_compilation_out(terminal):
    assert "10.0 updates/s" in shown(terminal, 10_000, (500, 10, {}), (1, 20, {}))


def test_rate_follows_the_pace(terminal):
    slow = [(1, done, {}) for done in range(10, 310, 10)]
    fast = [(1, done, {}) for done in range(400, 6400, 100)]
    assert "  100 updates/s" in shown(terminal, 10_000, *slow, *fast)


def test_pauses_count_neither_for_the_rate_nor_for_the_eta(terminal):
    with Progress(100, stream=terminal.stream, clock=terminal.clock) as progress:
        for done in range(1, 51):
            terminal.now += 20.0 if done == 40 else 0.1  # compilation
            progress.update(done, seconds=0.1 * done)
    assert terminal.lines()[-1].endswith(" 50/100 50%  0:05  ETA 0:05  10.0 updates/s")


def test_slow_updates_have_a_rate_too(terminal):
    moments = [(0, 1, {}), (100, 2, {}), (100, 3, {})]
    line = shown(terminal, 100, *moments, unit="lifetimes")
    assert line.endswith(" 3/100 3%  3:20  ETA 2:41:40  0.0100 lifetimes/s")


def test_time_goes_on_while_nothing_is_done_yet(terminal):
    with Progress(10, stream=terminal.stream, clock=terminal.clock):
        terminal.now += 75
    assert terminal.lines()[-1].endswith(" 0/10 0%  1:15  compiling")


@pytest.mark.parametrize("terminal", [20, 40, 60, 80, 120], indirect=True)
def test_line_fits_the_width(terminal):
    values = {"return": 1.0, "entropy": 2.0, "loss": 3.0}
    line = shown(terminal, 1000, (1, 1, values), (1, 500, values))
    assert all(len(drawn) < terminal.columns for drawn in terminal.lines())
    assert line.startswith("updates ")
    assert "500/1,000" in line
    assert ("━" in line) == (terminal.columns > 60)
    # Numbers give way before the time left does.
    seen = [part in line for part in ("ETA", "return", "loss")]
    assert seen == sorted(seen, reverse=True)
    assert sum(seen) == {20: 0, 40: 1, 60: 1, 80: 2, 120: 3}[terminal.columns]


def test_an_error_still_ends_the_line(terminal):
    with (
        pytest.raises(ZeroDivisionError),
        Progress(10, stream=terminal.stream, clock=terminal.clock) as progress,
    ):
        progress.update(1)
        raise ZeroDivisionError
    terminal.stream.write("next")
    assert terminal.lines()[-1] == "next"


def test_what_is_printed_meanwhile_stands_above(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with Progress(10, clock=terminal.clock) as progress:
        print("a warning", file=sys.stderr)
        progress.update(10)
    *_, warning, last = dict.fromkeys(terminal.lines())
    assert warning == "a warning"
    assert "10/10 100%" in last


def test_nothing_is_drawn_when_there_is_nothing_to_do(terminal):
    with Progress(0, stream=terminal.stream):
        pass
    assert terminal.lines() == []


def test_a_command_says_what_it_is_doing(terminal):
    with Waiting("discorl verify", stream=terminal.stream, clock=terminal.clock) as waiting:
        assert waiting._live is not None
        terminal.now += 12
        doing("small.npz in float64")
        waiting._live.refresh()
    assert "discorl verify: small.npz in float64  0:12" in terminal.lines()


@pytest.mark.parametrize("command", [True, False])
def test_a_function_says_what_it_is_doing_unless_a_command_does(terminal, monkeypatch, command):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with (
        Waiting("discorl train", stream=terminal.stream) if command else contextlib.nullcontext(),
        waiting("discorl.train"),
    ):
        _displays[-1]._start -= 12
        _displays[-1]._live.refresh()
    name = "discorl train" if command else "discorl.train"
    assert f"{name}: working  0:12" in terminal.lines()
    assert _displays == []


def test_seconds_are_counted_while_a_command_is_imported(terminal, monkeypatch):
    def slow(module):
        assert module == "discorl.cli.verify"
        time.sleep(1.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stderr", terminal.stream)
    monkeypatch.setattr("importlib.import_module", slow)
    with pytest.raises(SystemExit):
        cli.main(["verify", "golden"])
    assert "discorl verify: starting  0:01" in terminal.lines()


def test_quick_commands_draw_nothing(terminal):
    with Waiting("discorl envs", stream=terminal.stream, clock=terminal.clock):
        terminal.now += 0.9
    assert terminal.lines() == []


def test_only_the_innermost_display_is_drawn(terminal):
    options = {"stream": terminal.stream, "clock": terminal.clock}
    with (
        Waiting("discorl inspect", **options) as waiting,
        Progress(3, "analyses", **options) as outer,
    ):
        outer.update(1)
        with Progress(10, **options) as inner:
            assert [display._live is None for display in (waiting, outer, inner)] == [
                True,
                True,
                False,
            ]
            inner.update(10)
        assert outer._live is not None
        with nothing_drawn():
            assert outer._live is None
        outer.update(3)
    drawn = list(dict.fromkeys(terminal.lines()))
    assert "10/10 100%" in drawn[-2]
    assert "3/3 100%" in drawn[-1]


@pytest.mark.parametrize("transient", [True, False])
def test_a_bar_with_a_title_may_leave_nothing_behind(terminal, transient):
    options = {"stream": terminal.stream, "clock": terminal.clock}
    with Progress(3, "agents", title="future", transient=transient, **options) as progress:
        progress.update(1)
        terminal.now += 20
        progress.update(2)
    *_, last = terminal.lines()
    assert re.sub(r"[━╸╺]+", "BAR", last) == "future BAR 2/3 66%  0:20  ETA 0:20  0.0500 agents/s"
    up_and_erase = b"\x1b[1A\x1b[2K"
    assert (up_and_erase in terminal.written()) is transient


def test_a_value_that_is_not_known_yet_is_not_shown(terminal):
    with Progress(10, stream=terminal.stream, clock=terminal.clock) as progress:
        progress.update(1, {"return": float("nan"), "best": 0.5})
    assert terminal.lines()[-1].endswith("10%  0:00  best 0.500")


class Log(io.StringIO):
    """A file in place of a terminal, and a clock."""

    now = 0.0

    def write_progress(self, total, step, seconds):
        with Progress(total, stream=self, clock=lambda: self.now) as progress:
            for done in range(step, total + 1, step):
                self.now += seconds
                progress.update(done, {"return": 0.5})
        return self.getvalue().splitlines()


def test_a_log_has_a_line_for_each_tenth():
    lines = Log().write_progress(1000, 10, 10)  # a tenth takes 100 s
    assert lines[0] == "updates 30/1,000 3%  0:30  ETA 16:10  1.00 updates/s  return 0.500"
    assert [line.split()[2] for line in lines[1:]] == [f"{10 * i}%" for i in range(1, 11)]


def test_a_log_has_at_most_a_line_a_minute():
    assert Log().write_progress(1000, 10, 0.2) == []  # 20 s in all
    lines = Log().write_progress(1000, 10, 3)  # 5 minutes
    assert [line.split()[2] for line in lines] == ["10%", "30%", "50%", "70%", "90%"]


def test_a_log_is_not_silent_for_more_than_five_minutes():
    lines = Log().write_progress(1000, 1, 30)  # 8 hours and 20 minutes
    assert [line.split()[3] for line in lines[:3]] == ["0:30", "5:30", "10:30"]
    assert len(lines) >= 100


def test_a_log_has_lines_while_nothing_is_done_yet():
    log = Log()
    with (
        Waiting("discorl inspect", stream=log, clock=lambda: log.now) as waiting,
        Progress(10, stream=log, clock=lambda: log.now),
    ):
        for _ in range(100):
            log.now += 15
            assert waiting._live is None  # while a bar is inside it
            _displays[-1]._live.refresh()
    assert log.getvalue().splitlines() == [
        f"updates 0/10 0%  {time}  compiling"
        for time in ("0:30", "5:30", "10:30", "15:30", "20:30")
    ]


def test_a_thread_writes_to_the_log():
    log = Log()
    with Waiting("discorl verify", stream=log, clock=lambda: log.now):
        log.now += 31
        deadline = time.monotonic() + 30
        while not log.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert log.getvalue() == "discorl verify: working  0:31\n"


def test_agents_may_train_side_by_side():
    log = Log()
    first, second = Progress(10, stream=log), Progress(10, stream=log)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert _displays == [second]
    second.__exit__()
    assert _displays == []
