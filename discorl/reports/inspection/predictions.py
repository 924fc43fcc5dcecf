r"""Predictions over an episode, below its film (as in Oh et al., Nature 648, 2025, Fig. 4a).

An agent plays an episode with sampled actions. Drawn for each moment t:

    policy entropy          H(pi(.|s_t)) = - sum_a pi(a|s_t) log pi(a|s_t)
    confidence of y         - H(softmax(y(s_t))), if the agent predicts y
    value                   V(s_t), and Q(s_t, a_t) if the agent has action values
    reward                  r_t, which follows a_t
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from discorl.reports.inspection.episodes import Episode, evenly, record
from discorl.reports.inspection.findings import Findings, Picture
from discorl.reports.inspection.subject import Subject
from discorl.rules import returns
from discorl.runs import palette
from discorl.runs.curves import decorate

_FRAMES = 10


def analyse(subject: Subject) -> Findings:
    """One episode of the best agent."""
    episode = record(subject)
    panels = tracks(episode)
    facts = {
        "steps shown": str(episode.length),
        "return of these": f"{episode.reward.sum():.2f}",
        "mean policy entropy": f"{panels['policy entropy']['entropy'].mean():.3f}",
    }
    return Findings(facts, pictures=(_picture(episode, panels),))


def tracks(episode: Episode) -> dict[str, dict[str, np.ndarray]]:
    """Panels, each with named lines, [T] or [T+1]."""
    reading = episode.reading
    found = {"policy entropy": {"entropy": np.asarray(returns.entropy(reading.logits)[:, 0])}}
    if "y" in reading.outputs:
        confidence = -returns.entropy(reading.outputs["y"])[:, 0]
        found["confidence of y"] = {"-H(y)": np.asarray(confidence)}
    values = episode.values()
    if values is not None:
        found["value"] = {"V(s)": values}
        taken = episode.action_values()
        if taken is not None:
            found["value"]["Q(s, a)"] = taken
    return found | {"reward": {"r": episode.reward}}


def _picture(episode: Episode, panels: dict[str, dict[str, np.ndarray]]) -> Picture:
    has_film = bool(episode.frames)
    heights = [1.4] * has_film + [1.0] * len(panels)
    figure = Figure(figsize=(9, 1.15 * sum(heights) + 0.4), layout="constrained")
    grid = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    shown = evenly(len(episode.frames), _FRAMES) if has_film else np.zeros(0, int)
    if has_film:
        _draw_film(grid[0], episode.frames, shown)
    for place, (title, lines) in enumerate(panels.items()):
        axes = grid[has_film + place]
        for i, (label, values) in enumerate(lines.items()):
            look = palette.style(i)
            time = np.arange(len(values))
            if title == "reward":
                axes.bar(time, values, color=look.colour, width=0.6)
            else:
                axes.plot(
                    time, values, color=look.colour, linestyle=look.linestyle, label=label, lw=1.6
                )
        for moment in shown:
            axes.axvline(moment, color="#cccccc", linewidth=0.6, zorder=0)
        axes.set_xlim(-0.5, episode.length + 0.5)
        axes.set_ylabel(title, fontsize=8)
        axes.tick_params(labelsize=8)
        axes.ticklabel_format(axis="y", useOffset=False)
        decorate(axes)
        if len(lines) > 1:
            axes.legend(fontsize=8, frameon=False, ncols=2)
        if place < len(panels) - 1:
            axes.set_xticklabels([])
    grid[-1].set_xlabel("step of the episode", fontsize=8)
    rows = [
        {"step": t, "track": label, "value": float(value)}
        for lines in panels.values()
        for label, values in lines.items()
        for t, value in enumerate(values)
    ]
    caption = "Vertical lines mark the moments of the frames above."
    return Picture("predictions", caption, figure, rows)


def _draw_film(axes: Axes, frames: list[np.ndarray], shown: np.ndarray) -> None:
    """Frames side by side, in order, with the steps that they are of."""
    gap = max(2, frames[0].shape[1] // 12)
    pieces, centres, left = [], [], 0
    for i in shown:
        frame = frames[i]
        space = np.full((frame.shape[0], gap, 3), 255, np.uint8)
        pieces += [frame, space]
        centres.append(left + frame.shape[1] / 2)
        left += frame.shape[1] + gap
    axes.imshow(np.concatenate(pieces[:-1], axis=1), interpolation="nearest")
    axes.set_xticks(centres, [str(i) for i in shown])
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=8)
    for side in axes.spines.values():
        side.set_visible(False)
