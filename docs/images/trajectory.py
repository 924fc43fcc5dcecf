"""Draws docs/images/trajectory.svg: `python docs/images/trajectory.py`."""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

# The palette of Okabe and Ito; one colour for each of the three episodes.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"

EPISODE = [BLUE] * 3 + [ORANGE] * 4 + [GREEN] * 3  # of the observations 0 to 9
REWARD = ["0", "0", "1", "0", "0", "1", "0", "0", "0"]
TERMINATED, TRUNCATED, FILLER = 2, 5, 6  # steps
STEPS = len(REWARD)

ROWS = {  # height of each row
    "observation": 5.0,
    "action": 3.75,
    "reward": 3.0,
    "terminated": 2.25,
    "truncated": 1.5,
    "filler": 0.75,
    "one-step target": -0.1,
}


def target(t: int) -> str:
    """The one-step return of step t, as mathtext."""
    if t == FILLER:
        return "not learned\nfrom"
    reward = f"$r_{t}$"
    return reward if t == TERMINATED else f"{reward}$+\\gamma v_{t + 1}$"


def draw_observations(axes: Axes) -> None:
    """Circles for the T+1 observations, and an arrow from each to the next for the step."""
    height = ROWS["observation"]
    for t, colour in enumerate(EPISODE):
        axes.plot(t, height, "o", markersize=25, color=colour)
        axes.text(t, height, f"$o_{t}$", color="white", ha="center", va="center", fontsize=11)
    for t in range(STEPS):
        crosses = t in (TERMINATED, FILLER)
        arrow = FancyArrowPatch(
            (t + 0.24, height),
            (t + 0.76, height),
            arrowstyle="-|>",
            mutation_scale=11,
            linestyle=":" if crosses else "-",
            color=GREY if crosses else EPISODE[t],
        )
        axes.add_patch(arrow)
    for x, side, text in (
        (TERMINATED + 0.5, "center", "terminated:\nthe next observation\nbegins an episode"),
        (TRUNCATED + 0.8, "right", "truncated:\nthe next observation is\nthe last of the episode"),
        (FILLER + 0.2, "left", "filler:\nstands in for\nthe reset"),
    ):
        style = {"ha": side, "multialignment": "center", "va": "bottom", "fontsize": 8.5}
        axes.text(x, height + 0.5, text, **style)


def draw_rows(axes: Axes) -> None:
    """What a trajectory holds for every step, under the step's arrow."""
    for t in range(STEPS):
        colour = GREY if t == FILLER else "black"
        cells = {
            "action": f"$a_{t}$",
            "reward": f"$r_{t}$ = {REWARD[t]}",
            "terminated": "True" if t == TERMINATED else "\N{EN DASH}",
            "truncated": "True" if t == TRUNCATED else "\N{EN DASH}",
            "filler": "True" if t == FILLER else "\N{EN DASH}",
            "one-step target": target(t),
        }
        for name, text in cells.items():
            weight = "bold" if text == "True" else "normal"
            size = 8.5 if t == FILLER and name == "one-step target" else 10
            style = {"ha": "center", "va": "center", "fontsize": size}
            axes.text(t + 0.5, ROWS[name], text, color=colour, fontweight=weight, **style)
    for name, height in ROWS.items():
        shape = {"observation": "[T+1, B, ...]", "one-step target": ""}.get(name, "[T, B]")
        axes.text(-0.6, height + 0.02, name, ha="right", va="center", fontsize=10.5)
        axes.text(-0.6, height - 0.32, shape, ha="right", va="center", fontsize=7.5, color=GREY)


def main() -> None:
    """Writes the figure beside this file."""
    figure = Figure(figsize=(10.5, 5.2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-2.2, 9.6), ylim=(-0.65, 6.6))
    axes.axis("off")
    for t in range(STEPS):
        shade = "#f3f3f3" if t % 2 == 0 else "white"
        axes.add_patch(Rectangle((t, -0.55), 1, 4.75, color=shade, zorder=-2, linewidth=0))
    axes.plot([-2, 9.2], [0.33, 0.33], color=GREY, linewidth=0.8)
    draw_observations(axes)
    draw_rows(axes)
    path = Path(__file__).with_suffix(".svg")
    with matplotlib.rc_context({"svg.hashsalt": "discorl"}):
        figure.savefig(path, facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
