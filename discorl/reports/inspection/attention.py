r"""Which parts of an observation outputs depend on (as in Oh et al., Nature 648, 2025, Fig. 4b).

At several moments of an episode, for each number o_i of the observation:

    of a distribution p, the policy or softmax(y)    sqrt(sum_j p_j (d log p_j / d o_i)^2)
    of the value V(s)                                |d V / d o_i|

The first is the square root of the diagonal of the Fisher information: how fast p moves with o_i,
whatever it is parametrised by. Over the channels of an image the squares are added up.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from discorl.networks.recurrence import blank_state
from discorl.reports.inspection import readings
from discorl.reports.inspection.episodes import Episode, evenly, record
from discorl.reports.inspection.findings import DoesNotApplyError, Findings, Picture
from discorl.reports.inspection.subject import Subject
from discorl.rules.base import summaries
from discorl.types import Array, Outputs, PyTree

_MOMENTS = 6
_COLOURS = "inferno"


def analyse(subject: Subject) -> Findings:
    """One episode of the best agent."""
    network = subject.learner.network
    if network.recurrence is not None:
        raise DoesNotApplyError("its agents are recurrent: outputs depend on all observations")
    observation = subject.lives[0].latest.reading.trajectory.observation
    leaves = jax.tree.leaves(observation)
    if len(leaves) != 1 or (leaves[0].dtype == jnp.uint8 and leaves[0].ndim > 3):
        raise DoesNotApplyError("observations are not a single array of numbers between 0 and 1")
    episode = record(subject)
    shown = evenly(episode.length + 1, _MOMENTS)
    rows = jax.tree.map(lambda x: x[jnp.array(shown)], episode.observation)
    maps = gradients(subject, rows)
    facts = {
        f"overlap of {name} with the policy": f"{_overlap(found, maps['policy']):.2f}"
        for name, found in maps.items()
        if name != "policy"
    }
    return Findings(facts, pictures=(_picture(episode, shown, maps),))


def gradients(subject: Subject, observation: PyTree) -> dict[str, np.ndarray]:
    """Maps by output, [N, ...] like the observations without their channels."""
    params = subject.best.latest.state.params
    rule, learner = subject.rule, subject.learner
    (leaf,), structure = jax.tree.flatten(observation)

    def outputs(row: Array) -> Outputs:
        seen = jax.tree.unflatten(structure, [row[None]])
        features, _ = learner.network.advance(params, seen, blank_state((), 1))
        found = learner.network.apply(params, features)
        told = summaries(rule, subject.eta, found)
        logits = rule.policy(found)
        named = {"policy": jax.nn.log_softmax(logits)[0]}
        if "y" in found:
            named["y"] = jax.nn.log_softmax(found["y"])[0]
        values = readings.state_values({name: x[None] for name, x in told.items()}, logits[None])
        return named if values is None else named | {"value": values[0, 0]}

    def one(name: str) -> Callable[[Array], Array]:
        def size(row: Array) -> Array:
            slope = jax.jacrev(lambda x: outputs(x)[name])(row)
            if name == "value":
                return jnp.square(slope)
            weight = jnp.exp(outputs(row)[name])
            return jnp.tensordot(weight, jnp.square(slope), axes=1)

        return size

    numbers = leaf.astype(jnp.float32)
    names = jax.eval_shape(outputs, jax.ShapeDtypeStruct(numbers.shape[1:], numbers.dtype))
    found = {}
    for name in names:
        squares = np.asarray(jax.jit(jax.vmap(one(name)))(numbers))
        found[name] = np.sqrt(squares.sum(axis=-1) if squares.ndim == 4 else squares)
    return found


def _overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Mean cosine of two maps."""
    a, b = (x.reshape(len(x), -1) for x in (first, second))
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.mean((a * b).sum(axis=1) / np.maximum(norms, 1e-12)))


def _picture(episode: Episode, shown: np.ndarray, maps: dict[str, np.ndarray]) -> Picture:
    is_image = next(iter(maps.values())).ndim == 3
    size = 1.5 * len(shown) + 0.6, 1.65 * len(maps) + 0.3 if is_image else 4.5
    figure = Figure(figsize=size, layout="constrained")
    if is_image:
        grid = figure.subplots(len(maps), len(shown), squeeze=False)
        for line, (name, found) in zip(grid, maps.items(), strict=True):
            line[0].set_ylabel(name, fontsize=9)
            for axes, moment, heat in zip(line, shown, found, strict=True):
                _draw(axes, episode, moment, heat, found.max())
        for axes, moment in zip(grid[0], shown, strict=True):
            axes.set_title(f"step {moment}", fontsize=8)
    else:
        for axes, (name, found) in zip(
            figure.subplots(1, len(maps), squeeze=False)[0], maps.items(), strict=True
        ):
            axes.imshow(found.reshape(len(shown), -1), aspect="auto", cmap=_COLOURS)
            axes.set_title(name, fontsize=9)
            axes.set_xlabel("number of the observation", fontsize=8)
            axes.set_yticks(np.arange(len(shown)), [f"step {i}" for i in shown])
            axes.tick_params(labelsize=8)
    rows = [
        {"output": name, "step": int(step), "place": place, "gradient": float(value)}
        for name, found in maps.items()
        for step, heat in zip(shown, found, strict=True)
        for place, value in enumerate(heat.reshape(-1))
    ]
    caption = "Bright: the output depends on this cell. Each output has its own scale."
    return Picture("attention", caption, figure, rows)


def _draw(axes: Axes, episode: Episode, moment: int, heat: np.ndarray, most: float) -> None:
    """The map over the frame, or alone if there is no frame."""
    height, width = heat.shape
    place = (0, width, height, 0)
    if moment < len(episode.frames):
        axes.imshow(episode.frames[moment], extent=place, interpolation="nearest")
    alpha = 0.72 if episode.frames else 1.0
    axes.imshow(
        heat, extent=place, cmap=_COLOURS, vmin=0, vmax=most, alpha=alpha, interpolation="nearest"
    )
    axes.set_xticks([])
    axes.set_yticks([])
