"""Films of episodes, in files and in the terminal; and deterministic operations."""

import os
import re
import subprocess
import sys
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from discorl import cli
from discorl.cli.play import _show_in_window, as_text
from discorl.training import films
from discorl.types import UserError

RED, BLUE = [255, 0, 0], [0, 0, 255]


def frames(height=5, width=7):
    """The first is red and the others are blue."""
    made = [np.full((height, width, 3), colour, np.uint8) for colour in (RED, BLUE, BLUE)]
    made[0][0, 0] = 255
    return made


def test_small_frames_are_magnified_and_large_ones_are_not():
    large = films.magnified(frames()[0])
    assert large.shape == (5 * 37 + 1, 7 * 37 + 1, 3)  # 37 * 7 >= 256; and even
    assert (large[:37, :37] == 255).all()
    assert (large[37:, :] == RED).all()
    assert films.magnified(np.zeros((300, 200, 3), np.uint8)).shape == (300, 200, 3)


def test_a_gif_holds_its_last_frame(tmp_path):
    with Image.open(films.write(tmp_path / "film.gif", frames())) as film:
        assert film.size == (260, 186)
        film.seek(film.n_frames - 1)
        assert film.info["duration"] >= films.LAST_FRAME_MILLISECONDS
        assert film.convert("RGB").getpixel((9, 9)) == tuple(BLUE)


def test_an_mp4_has_the_same_frames(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    file = films.write(tmp_path / "deep" / "film.mp4", frames())
    reader = ffmpeg.read_frames(str(file))
    described = next(reader)
    assert described["size"] == (260, 186)
    assert described["duration"] == pytest.approx(9 * 0.12, abs=0.1)  # 2 + 7 times the last
    shown = [np.frombuffer(content, np.uint8).reshape(186, 260, 3) for content in reader]
    colours = [frame[150, 150].astype(int) for frame in (shown[0], shown[-1])]
    np.testing.assert_allclose(colours, [RED, BLUE], atol=12)  # the coding loses a little


def test_other_files_are_refused_before_anything_is_played(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"film is .*film.avi; expected a file ending in .gif or"):
        films.check(tmp_path / "film.avi")
    (tmp_path / "link.gif").symlink_to("mine")
    with pytest.raises(UserError, match="gif: is a symbolic link; expected a regular file"):
        films.check(tmp_path / "link.gif")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"discorl\[mp4\]"):
        films.check(tmp_path / "film.mp4")


def test_a_frame_in_the_terminal_has_two_pixels_to_a_character():
    frame = np.array([[RED, BLUE], [BLUE, RED]], np.uint8)
    red, blue = "255;0;0", "0;0;255"
    block = "\N{UPPER HALF BLOCK}"
    expected = f"\x1b[38;2;{red};48;2;{blue}m{block}\x1b[38;2;{blue};48;2;{red}m{block}\x1b[0m"
    assert as_text(frame, columns=2, rows=1) == expected


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (20, 50), (3, 2)])
def test_a_frame_fits_the_terminal(columns, rows):
    lines = as_text(frames(height=50, width=100)[0], columns, rows).split("\n")
    widths = {len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines}
    assert len(lines) <= rows
    assert len(widths) == 1
    assert max(widths) <= columns


# The modules of all commands are imported before the flag is set, and start no backend, for it
# would not read the flag; and XLA would refuse a flag that it lacks.
_START = """
import importlib, discorl.cli
for module, _ in discorl.cli.COMMANDS.values():
    importlib.import_module(module)
import jax
from jax._src.xla_bridge import backends_are_initialized as started
print(started(), jax.numpy.ones(3).sum(), started())
"""


def test_deterministic_operations_are_asked_for_before_jax_starts(capsys, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    with pytest.raises(SystemExit):
        cli.main(["envs", "list", "--json", "--deterministic"])
    assert os.environ["XLA_FLAGS"].endswith("=1 --xla_gpu_deterministic_ops=true")
    assert "slower kernels" in capsys.readouterr().err
    ran = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True)
    assert ran.stdout == "False 3.0 True\n", ran.stderr


def test_a_window_shows_every_frame(monkeypatch):
    monkeypatch.setattr(plt, "get_backend", lambda: "toolkit")
    shown = []

    def pause(seconds):
        shown.append((seconds, plt.gca().images[0].get_array().copy()))

    monkeypatch.setattr(plt, "pause", pause)
    drawn = frames()
    _show_in_window(list(drawn), fps=4, title="a run")
    plt.close("all")
    assert [seconds for seconds, _ in shown] == [0.25] * len(drawn)
    assert all(np.array_equal(frame, image) for frame, (_, image) in zip(drawn, shown, strict=True))


def test_a_window_that_is_closed_ends_the_film(monkeypatch):
    monkeypatch.setattr(plt, "get_backend", lambda: "toolkit")
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        plt.close("all")

    monkeypatch.setattr(plt, "pause", pause)
    _show_in_window(list(frames()), fps=4, title="a run")
    assert len(pauses) == 1


@pytest.mark.parametrize("error", [None, RuntimeError("Invalid DISPLAY variable")])
def test_no_window_without_a_display(monkeypatch, error):
    if error is not None:  # what Qt raises where DISPLAY names a screen that is not there
        monkeypatch.setattr(plt, "subplots", mock.Mock(side_effect=error))
    with pytest.raises(UserError, match="window: matplotlib cannot open one here"):
        _show_in_window(list(frames()), fps=4, title="a run")
    assert not plt.get_fignums()
