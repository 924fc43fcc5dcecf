"""The command `discorl play`: an episode in the terminal or in a window."""

import shutil
import sys
import time
from pathlib import Path

import numpy as np
import tyro

from discorl.cli.commands import Command, Result, command
from discorl.runs.progress import doing, nothing_drawn
from discorl.training.evaluation import MAX_FRAMES, frames_of
from discorl.types import UserError, validation

_ROWS_KEPT = 2  # for the prompt and a line of text
_HOME, _CLEAR, _RESET = "\x1b[H", "\x1b[2J", "\x1b[0m"


def play_command(
    run: tyro.conf.Positional[Path],
    seed: int = 0,
    greedy: bool = False,
    best: bool = False,
    fps: float = 8.0,
    max_steps: int = MAX_FRAMES,
    window: bool = False,
) -> Result:
    """Play an episode of a training run in the terminal, which must show 24-bit colours.

    Args:
        run: the run directory.
        seed: seed of the episode, the one that `discorl evaluate --seed` films.
        greedy: take the most likely action instead of sampling from the policy.
        best: play the agent that the evaluations of `train --eval-every` found best.
        fps: frames per second.
        max_steps: stop after this many steps.
        window: play in a window of matplotlib instead of the terminal; it stays open until you
            close it.
    """
    validation.number("fps", fps, above=0)
    validation.integer("max_steps", max_steps, least=1)
    doing("recording the episode")
    frames = frames_of(run, seed=seed, greedy=greedy, best=best, max_frames=max_steps)
    if not frames:
        raise UserError(f"{run}: its environment cannot be drawn")
    with nothing_drawn():
        if window:
            _show_in_window(frames, fps, str(run))
        elif sys.stdout.isatty():
            columns, rows = shutil.get_terminal_size()
            print(_CLEAR, end="")
            for frame in frames:
                print(_HOME + as_text(frame, columns, rows - _ROWS_KEPT), flush=True)
                time.sleep(1 / fps)
    return Result({"run": str(run), "frames": len(frames)}, f"an episode of {len(frames)} frames")


def _show_in_window(frames: list[np.ndarray], fps: float, title: str) -> None:
    import matplotlib.pyplot as plt

    try:
        figure, axes = plt.subplots(num=title, layout="constrained")
        opened = plt.get_backend().lower() != "agg"  # what matplotlib falls back to
    except (ImportError, RuntimeError):  # the toolkit cannot be imported; the display is not there
        opened = False
    if not opened:
        plt.close("all")
        raise UserError(
            "window: matplotlib cannot open one here; expected a display and a toolkit, such as "
            "`pip install PyQt6`, or no --window, which plays in the terminal"
        )
    axes.set_axis_off()
    image = axes.imshow(frames[0])
    for frame in frames:
        image.set_data(frame)
        plt.pause(1 / fps)
        if not plt.fignum_exists(figure.number):  # closed by the user
            return
    plt.show()


def as_text(frame: np.ndarray, columns: int, rows: int) -> str:
    """A frame, [H, W, 3] uint8, in half blocks: a character shows two pixels, one above another."""
    from PIL import Image

    height, width = frame.shape[:2]
    scale = min(columns / width, 2 * rows / height)
    size = max(1, int(width * scale)), max(2, 2 * int(height * scale / 2))
    pixels = np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.NEAREST))
    lines = [
        "".join(
            f"\x1b[38;2;{r};{g};{b};48;2;{u};{v};{w}m\N{UPPER HALF BLOCK}"
            for (r, g, b), (u, v, w) in zip(upper.tolist(), lower.tolist(), strict=True)
        )
        for upper, lower in zip(pixels[::2], pixels[1::2], strict=True)
    ]
    return "\n".join(line + _RESET for line in lines)


COMMANDS: dict[str, Command] = {"": command(play_command)}
