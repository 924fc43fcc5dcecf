import io
import os
import pty
import queue
import re
import termios
import threading

import matplotlib
import numpy as np
import pytest
from PIL import Image

from discorl.runs import curves, palette
from discorl.runs.metrics import by_seed
from discorl.runs.progress import Progress
from discorl.types import UserError

END = "<end>"


class Terminal:
    """A real terminal of a given width, and a clock that moves when told."""

    def __init__(self, columns):
        self._reader, writer = pty.openpty()
        termios.tcsetwinsize(writer, (24, columns))
        self.stream = os.fdopen(writer, "w")
        self.now = 100.0
        self._written = queue.SimpleQueue()
        # All the time, because a terminal that nobody reads soon blocks its writer.
        threading.Thread(target=self._drain, daemon=True).start()

    def clock(self):
        return self.now

    def read(self):
        """What was written since, as the lines drawn over each other."""
        self.stream.write(END)  # a terminal delivers late, so wait for a mark
        self.stream.flush()
        text = ""
        while not text.endswith(END):
            text += self._written.get(timeout=10)
        return text.removesuffix(END).split("\r")[1:]

    def close(self):
        self.stream.close()

    def _drain(self):
        try:
            while content := os.read(self._reader, 4096):
                self._written.put(content.decode())
        except OSError:  # how Linux says that the other side was closed
            pass
        os.close(self._reader)


@pytest.fixture
def terminal(request):
    made = Terminal(getattr(request, "param", 100))
    yield made
    made.close()


def test_line_as_documented(terminal):
    progress = Progress(1000, stream=terminal.stream, clock=terminal.clock)
    with progress:
        progress.update(227)
        terminal.now += 10
        progress.update(350, {"return": 0.42})
    *_, last, newline = terminal.read()
    assert last == "updates 350/1000  35%  12.3 updates/s  return 0.42  ETA 0:53"
    assert newline == "\n"


def test_rate_leaves_compilation_out_and_follows_the_pace(terminal):
    progress = Progress(10_000, stream=terminal.stream, clock=terminal.clock)
    terminal.now += 500  # compiling
    progress.update(10)
    assert "/s" not in terminal.read()[-1]
    terminal.now += 1
    progress.update(20)
    assert "10.0 updates/s" in terminal.read()[-1]
    for done in range(120, 6020, 100):  # ten times faster than before, for a minute
        terminal.now += 1
        progress.update(done)
    assert "100 updates/s" in terminal.read()[-1]


def test_slow_updates_have_a_rate_too(terminal):
    progress = Progress(100, unit="lifetimes", stream=terminal.stream, clock=terminal.clock)
    for done in (1, 2, 3):
        progress.update(done)
        terminal.now += 100
    assert terminal.read()[-1].rstrip() == "lifetimes 3/100  3%  0.01 lifetimes/s  ETA 2:41:40"


def test_at_most_five_lines_a_second(terminal):
    progress = Progress(1000, stream=terminal.stream, clock=terminal.clock)
    for done in range(1000):
        terminal.now += 0.01  # ten seconds in all
        progress.update(done)
    assert 40 <= len(terminal.read()) <= 51


@pytest.mark.parametrize("terminal", [20, 50], indirect=True)
def test_line_fits_the_width(terminal):
    width = os.get_terminal_size(terminal.stream.fileno()).columns
    progress = Progress(1000, stream=terminal.stream, clock=terminal.clock)
    for done in (1, 500):
        terminal.now += 1
        progress.update(done, {"return": 1.0, "entropy": 2.0, "loss": 3.0})
    lines = terminal.read()
    assert all(len(line) < width for line in lines)
    assert lines[-1].startswith("updates 500/1000")
    assert ("ETA" in lines[-1]) == (width == 50)  # numbers give way before the time left does


def test_a_shorter_line_covers_the_longer_one(terminal):
    progress = Progress(10, stream=terminal.stream, clock=terminal.clock)
    progress.update(1, {"return": -0.000123})
    terminal.now += 1
    progress.update(1, {"return": 1})
    longer, shorter = terminal.read()
    assert len(shorter) == len(longer) and shorter.rstrip() == "updates 1/10  10%  return 1"


def test_an_error_still_ends_the_line(terminal):
    with (
        pytest.raises(ZeroDivisionError),
        Progress(10, stream=terminal.stream, clock=terminal.clock) as progress,
    ):
        progress.update(1)
        raise ZeroDivisionError
    assert terminal.read()[-1] == "\n"


def test_nothing_is_written_where_there_is_no_terminal():
    stream = io.StringIO()
    with Progress(10, stream=stream) as progress:
        progress.update(10, {"return": 1.0})
    assert stream.getvalue() == ""


def test_nothing_is_written_when_nothing_happened(terminal):
    with Progress(0, stream=terminal.stream):
        pass
    assert terminal.read() == []


def columns(num_updates, num_seeds=1):
    rng = np.random.default_rng(0)
    update = np.tile(np.arange(1, num_updates + 1), num_seeds)
    value = update / num_updates + rng.normal(0, 0.1, len(update))
    value[rng.random(len(update)) < 0.3] = np.nan
    seed = np.repeat(np.arange(num_seeds), num_updates)
    return {"update": update, "seed": seed, "steps": 640 * update, "return": value}


def picture(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def blue_pixels(path):
    red, _, blue = np.moveaxis(picture(path), -1, 0)
    return int((blue - red > 60).sum())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "metrics",
    [columns(300), columns(300, 5), columns(1), columns(1, 3), columns(2)],
    ids=["seed", "seeds", "row", "row-of-seeds", "rows"],
)
def test_curve_shows_something(tmp_path, metrics):
    metrics["return"][-1] = 1.0
    curves.learning_curve(tmp_path / "curve.png", metrics, title="catch")
    assert blue_pixels(tmp_path / "curve.png") > 20
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "metrics",
    [{}, {name: column[:0] for name, column in columns(1).items()}, columns(3)],
    ids=["nothing", "no-rows", "no-episode"],
)
def test_curve_of_nothing_says_so(tmp_path, metrics):
    if metrics:
        metrics["return"] = np.full(len(metrics["update"]), np.nan)
    curves.learning_curve(tmp_path / "curve.png", metrics, title="catch")
    assert blue_pixels(tmp_path / "curve.png") == 0
    assert (picture(tmp_path / "curve.png") < 128).any()


def discovery_columns(num_updates, environments):
    """Metrics of a discovery with returns on scales of their own; of one, no episode ends."""
    rng = np.random.default_rng(0)
    metrics = {"update": np.arange(1, num_updates + 1)}
    names = ("meta/gradient_norm", "gradient_cosine", "entropy", "pi_hat_entropy")
    parts = ("meta/policy_gradient", "meta/entropy_penalty", "meta/target_penalty")
    metrics |= {name: rng.random(num_updates) + 0.1 for name in (*names, *parts)}
    returns = {f"return/{env}": 30.0**i * metrics["entropy"] for i, env in enumerate(environments)}
    returns[f"return/{environments[-1]}"][:] = np.nan
    evaluations = {
        "update": np.array([0, num_updates]),
        "score": np.array([np.nan, 0.5]),
        "best": np.array([-np.inf, 0.5]),
    }
    return metrics | returns, evaluations


def shares(path, colours):
    """How many pixels have exactly each of the colours."""
    pixels = picture(path)
    wanted = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours]
    return [int((pixels == np.array(colour)).all(axis=-1).sum()) for colour in wanted]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num_updates", [1, 60])
def test_curve_of_a_discovery_shows_every_environment(tmp_path, num_updates):
    file = tmp_path / "curve.png"
    environments = ["a", "b;hidden=2", "b;hidden=3", "c", "d", "never"]
    curves.discovery_curve(file, *discovery_columns(num_updates, environments), title="discovery")
    # The fourth and fifth colours are those of environments alone; the sixth has nothing to show.
    seen = shares(file, palette.COLOURS[:6])
    assert min(seen[:5]) > 20
    assert seen[5] == 0


@pytest.mark.filterwarnings("error")
def test_curve_of_a_discovery_without_anything_or_with_too_many(tmp_path):
    curves.discovery_curve(tmp_path / "none.png", {}, {}, title="discovery")
    assert blue_pixels(tmp_path / "none.png") == 0
    many = discovery_columns(9, [f"environment_{i}" for i in range(20)])
    curves.discovery_curve(tmp_path / "many.png", *many, title="discovery")
    assert min(shares(tmp_path / "many.png", palette.COLOURS)) > 20


def test_curve_names_the_missing_column(tmp_path):
    with pytest.raises(UserError, match=re.escape("no column 'regret'; they have ['return', ")):
        curves.learning_curve(tmp_path / "curve.png", columns(3), title="catch", y="regret")


def test_curve_leaves_the_global_state_of_matplotlib_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    curves.learning_curve(tmp_path / "curve.png", columns(5), title="catch")
    assert dict(matplotlib.rcParams) == before


def test_running_mean_skips_what_is_missing():
    values = np.array([[np.nan, 2.0, 4.0, np.nan, np.nan, 9.0]])
    expected = [[np.nan, 2.0, 3.0, 4.0, np.nan, 9.0]]
    np.testing.assert_allclose(curves._running_mean(values, 2), expected)
    np.testing.assert_allclose(curves._running_mean(values, 6)[:, -1], [5.0])


def test_seeds_are_aligned_by_update():
    metrics = {
        "update": np.array([2, 1, 1]),
        "seed": np.array([7, 7, 9]),
        "steps": np.array([20, 10, 10]),
        "return": np.array([0.2, 0.1, np.inf]),
    }
    along, values = by_seed(metrics, "steps", "return")
    assert along.tolist() == [10, 20]
    np.testing.assert_array_equal(values, [[0.1, 0.2], [np.nan, np.nan]])
