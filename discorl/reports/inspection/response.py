r"""What a rule does to a policy, over the advantage and the probability ratio.

In each trajectory of a batch one step t is drawn. Its reward is changed so that its advantage is
A* sigma, with sigma the standard deviation of the agent's advantages in the batch, and its
behaviour policy so that pi(a_t|s_t) / mu(a_t|s_t) = rho*. All else is as it was. The response is
the rate at which log pi(a_t|s_t) then changes along the rule's gradient with respect to the logits,

    R(A*, rho*) = mean of u_t(a_t) - sum_a pi(a|s_t) u_t(a),    u_t = - alpha d loss / d logits_t,

over the steps for which mu(a_t|s_t) <= 1 is possible. alpha is the rule's multiplier of the
learning rate (`Rule.step_size`). Figures show R relative to its root mean square, because losses
of different rules have different scales; between rules of one class the size itself is compared.
The share of the advantage, std(R(., 1)) / rms(R(., 1)), says how much of the response on policy
follows the advantage: 1 is all of it, 0 a constant.
Hand-designed rules see the same trajectories, policy and values. PPO centres advantages within the
batch: its response changes sign at their mean, not at 0. Actor-critic's R is linear in A* and
constant beyond rho* = 1. PPO's is zero, but for its entropy bonus, beyond 1 + clip for A* > 0 and
below 1 - clip for A* < 0.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from discorl.reports.charts import LineChart, band
from discorl.reports.inspection import readings
from discorl.reports.inspection.findings import Findings, Picture, line, text_of
from discorl.reports.inspection.readings import Asked
from discorl.reports.inspection.subject import Life, Subject, by_agent
from discorl.types import Array

ADVANTAGES = np.linspace(-3, 3, 9)  # A*, in standard deviations
RATIOS = 2.0 ** np.arange(-3, 4)  # rho*
NEUTRAL = int(np.argmin(np.abs(RATIOS - 1)))
_MOST_MU = 0.999
_COLOURS = "PuOr_r"


def analyse(subject: Subject) -> Findings:
    """The picture of the rule, beside those of others."""
    grids = by_rule(subject)
    gain = int(np.argmin(np.abs(ADVANTAGES - 1.5)))
    loss = len(ADVANTAGES) - 1 - gain
    sigmas = f"{ADVANTAGES[gain]:g} sigma"
    charts = (
        chart("response-advantage", "On policy", grids, relative=True),
        chart("response-ratio-gain", f"Advantage +{sigmas}", grids, row=gain, relative=True),
        chart("response-ratio-loss", f"Advantage -{sigmas}", grids, row=loss, relative=True),
    )
    facts: dict[str, str] = {}
    for label, grid in grids.items():
        facts |= {
            f"{label}: share of the advantage": text_of(share_of_advantage(grid)),
            f"{label}: R² of a straight line in the advantage": text_of(linearity(grid)),
            f"{label}: optimism": text_of(optimism(grid)),
        }
    for each in readings.kin(subject, subject.lives[0].latest):
        sizes = size(grids[subject.label]) / size(grids[each.label])
        facts[f"size of the response, relative to {each.label}"] = text_of(sizes)
    scaled = {label: grid / _scale(grid, (1, 2)) for label, grid in grids.items()}
    return Findings(facts, charts, (_picture(scaled),))


def by_rule(subject: Subject) -> dict[str, np.ndarray]:
    """R(A*, rho*) of the rule and of those beside it, [agents, advantages, ratios] each."""

    def measure(life: Life) -> dict[str, np.ndarray]:
        asked = readings.ask(subject, life.latest)
        readings.push(asked)  # refuses rules that push no policy
        others = readings.compared(subject, life.latest)
        return {each.label: responses(each, life, asked) for each in (asked, *others)}

    return stacked(by_agent(subject, "response", measure))


def stacked(by_life: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The responses of all agents together, [agents, ...], in the order of the first."""
    return {label: np.stack([grids[label] for grids in by_life]) for label in by_life[0]}


def responses(asked: Asked, life: Life, subject: Asked | None = None) -> np.ndarray:
    """R(A*, rho*) of one rule at one moment, [advantages, ratios], not yet scaled.

    The life's seed draws the steps. The advantages set are those of `subject`, by default the
    rule's own.
    """
    grid = jnp.array([(a, r) for a in ADVANTAGES for r in RATIOS])
    means = _map(asked, subject or asked, jax.random.key(life.seed), grid)
    return np.asarray(means).reshape(len(ADVANTAGES), len(RATIOS))


@jax.jit
def _map(asked: Asked, own: Asked, key: Array, grid: Array) -> Array:
    return jax.lax.map(lambda cell: _respond(asked, own, key, *cell), grid)


def _respond(asked: Asked, own: Asked, key: Array, advantage: Array, ratio: Array) -> Array:
    trajectory = own.reading.trajectory
    advantage_t = readings.advantages(own.rule, own.reading)
    weight = trajectory.learnable(advantage_t.dtype)
    mean = jnp.sum(weight * advantage_t) / jnp.sum(weight)
    sigma = jnp.sqrt(jnp.sum(weight * jnp.square(advantage_t - mean)) / jnp.sum(weight)) + 1e-8
    step = jax.random.categorical(key, jnp.log(weight), axis=0)  # [B]
    chosen = jax.nn.one_hot(step, weight.shape[0], axis=0, dtype=weight.dtype)
    reward = trajectory.reward + chosen * (advantage * sigma - advantage_t)
    log_pi = jax.nn.log_softmax(own.reading.logits[:-1])
    taken = jax.nn.one_hot(trajectory.action, log_pi.shape[-1], dtype=log_pi.dtype)
    mu_taken = jnp.exp(jnp.sum(taken * log_pi, axis=-1)) / ratio
    possible = chosen * (mu_taken <= _MOST_MU)
    behaviour = jnp.where(
        (chosen > 0)[..., None], _behaviour(log_pi, taken, mu_taken), trajectory.behaviour_logits
    )
    changed = dataclasses.replace(trajectory, reward=reward, behaviour_logits=behaviour)
    reading = dataclasses.replace(asked.reading, trajectory=changed)
    pushed = readings.push(dataclasses.replace(asked, reading=reading))
    count = jnp.sum(possible)
    return jnp.where(count > 0, jnp.sum(possible * pushed) / jnp.maximum(count, 1), jnp.nan)


def _behaviour(log_pi: Array, taken: Array, mu_taken: Array) -> Array:
    """Logits of a policy with this probability of the action taken, otherwise like pi."""
    mu_taken = jnp.clip(mu_taken, 1e-6, _MOST_MU)[..., None]
    others = jnp.where(taken > 0, -jnp.inf, log_pi)
    rest = others - jax.nn.logsumexp(others, axis=-1, keepdims=True) + jnp.log1p(-mu_taken)
    return jnp.where(taken > 0, jnp.log(mu_taken), rest)


def linearity(grid: np.ndarray) -> np.ndarray:
    """R² of a straight line through the responses at ratio 1, for each agent; NaN if all alike."""
    y = grid[:, :, NEUTRAL]
    fits = [np.polyval(np.polyfit(ADVANTAGES, each, 1), ADVANTAGES) for each in y]
    whole = np.square(y - y.mean(axis=1)[:, None]).sum(axis=1)
    return 1 - np.square(y - fits).sum(axis=1) / np.where(whole > 0, whole, np.nan)


def share_of_advantage(grid: np.ndarray) -> np.ndarray:
    """Standard deviation over root mean square of the responses at ratio 1, for each agent.

    1: the response follows the advantage alone. 0: it is the same whatever the advantage, however
    straight the line is.
    """
    y = grid[:, :, NEUTRAL]
    return y.std(axis=1) / _scale(y, 1)[:, 0]


def optimism(grid: np.ndarray) -> np.ndarray:
    """(g + l) / (|g| + |l|) of the responses g to gains and l to losses at ratio 1, by agent.

    Responses are taken relative to that of a zero advantage. 0: gains pull as much as losses of the
    same size push; 1: losses do not push; -1: gains do not pull.
    """
    y = grid[:, :, NEUTRAL] - grid[:, ADVANTAGES == 0, NEUTRAL]
    gain, loss = y[:, ADVANTAGES > 0].mean(axis=1), y[:, ADVANTAGES < 0].mean(axis=1)
    return (gain + loss) / (np.abs(gain) + np.abs(loss) + 1e-12)


def size(grid: np.ndarray) -> np.ndarray:
    """Root mean square of the responses, for each agent."""
    return _scale(grid, (1, 2))[:, 0, 0]


def _scale(values: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    return np.sqrt(np.nanmean(np.square(values), axis=axes, keepdims=True)) + 1e-12


def chart(
    name: str,
    title: str,
    grids: Mapping[str, np.ndarray],
    *,
    row: int | None = None,
    relative: bool = False,
) -> LineChart:
    """Responses over the advantage at ratio 1 or, in a row, over the ratio at one advantage.

    `relative`: each line is scaled to a root mean square of 1.
    """
    along = ADVANTAGES if row is None else np.log2(RATIOS)
    lines = []
    for i, (label, grid) in enumerate(grids.items()):
        values = grid[:, :, NEUTRAL] if row is None else grid[:, row]
        lines.append(line(label, i, along, values / _scale(values, 1) if relative else values))
    x_label = "advantage / sigma" if row is None else "log2 of pi / mu"
    y_label = "change of log pi(a)" + (", relative" if relative else "")
    return LineChart(name, title, x_label, y_label, tuple(lines))


def _picture(grids: Mapping[str, np.ndarray]) -> Picture:
    count = len(grids)
    figure = Figure(figsize=(2.3 * count + 0.9, 2.6), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    image, rows = None, []
    half = (ADVANTAGES[1] - ADVANTAGES[0]) / 2
    edges = (-3.5, 3.5, ADVANTAGES[0] - half, ADVANTAGES[-1] + half)
    for axes, (label, grid) in zip(panels, grids.items(), strict=True):
        mean = band(grid)[0]
        image = axes.imshow(
            mean, origin="lower", extent=edges, aspect="auto", cmap=_COLOURS, vmin=-2.5, vmax=2.5
        )
        axes.axvline(0, color="#333333", linewidth=0.6, linestyle=":")
        axes.axhline(0, color="#333333", linewidth=0.6, linestyle=":")
        axes.set_title(label, fontsize=9)
        axes.set_xticks([-3, 0, 3], ["1/8", "1", "8"])
        axes.tick_params(labelsize=8)
        axes.set_xlabel("pi / mu", fontsize=8)
        rows += [
            {"rule": label, "advantage": a, "ratio": r, "response": mean[i, j]}
            for i, a in enumerate(ADVANTAGES)
            for j, r in enumerate(RATIOS)
        ]
    panels[0].set_ylabel("advantage / sigma", fontsize=8)
    assert image is not None
    bar = figure.colorbar(image, ax=list(panels), pad=0.01)
    bar.set_label("change of log pi(a)", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    caption = (
        "Orange: the action becomes more likely; purple: less. Each panel is scaled to a root mean "
        "square of 1. Below a ratio of 1 the steps are those of unlikely actions: mu is at most 1."
    )
    return Picture("response-map", caption, figure, rows)
