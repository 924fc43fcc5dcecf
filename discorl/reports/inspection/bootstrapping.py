r"""How far ahead targets look into predictions (as in Oh et al., Nature 648, 2025, Fig. 4d).

The prediction x at one moment s, of the agent and of its target network, is replaced in every
trajectory by that of another one. The change of a target at t = s - k, relative to how much the
target varies,

    C(k) = mean over t of |f_t(x with x_{t+k} replaced) - f_t(x)| / std(f),

is averaged over steps t whose episode goes on until t + k; |.| and std are root mean squares over
the components of f. A rule that makes its target of z_{t+3} alone has C(k) = 0 except at k = 3;
advantages of a value with traces lambda decay as (gamma lambda)^k.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from discorl.reports.charts import LineChart
from discorl.reports.inspection import readings
from discorl.reports.inspection.findings import DoesNotApplyError, Findings, line, text_of
from discorl.reports.inspection.readings import Asked
from discorl.reports.inspection.subject import Subject, over_agents
from discorl.runs.panels import Scale
from discorl.types import Array, Key

MOST_STEPS = 15  # k
_TARGETS = ("pi", "y", "z", "q", "advantage", "value")  # those drawn, where a rule has them


def analyse(subject: Subject) -> Findings:
    """C(k) of every prediction and target, over agents."""
    by_prediction = over_agents(
        subject,
        "bootstrapping",
        lambda life: horizons(readings.ask(subject, life.latest), jax.random.key(life.seed)),
    )
    if not by_prediction:
        raise DoesNotApplyError("its targets read nothing of an agent but the policy")
    charts, facts = [], {}
    for target in (name for name in _TARGETS if name in next(iter(by_prediction.values()))):
        lines = []
        for i, (name, by_target) in enumerate(by_prediction.items()):
            found = by_target[target]
            if not np.nanmax(np.abs(found)) > 1e-6:
                continue
            lines.append(line(name, i, np.arange(found.shape[1]), found))
            if target in ("z", "y", "pi", "advantage"):
                half = np.array([_horizon(each) for each in found])
                facts[f"steps until {name} moves {target} half as much"] = text_of(half)
        if lines:
            name, title = f"bootstrapping-{target}", f"Change of the target of {target}"
            axes = "steps ahead, k", "change / std"
            positive = all((each.y[np.isfinite(each.y)] > 0).all() for each in lines)
            scale: Scale = "log" if positive else "linear"
            charts.append(LineChart(name, title, *axes, tuple(lines), scale))
    if not charts:
        raise DoesNotApplyError("no prediction of an agent moves its targets")
    return Findings(facts, tuple(charts))


def horizons(asked: Asked, key: Key) -> dict[str, dict[str, np.ndarray]]:
    """C(k) for each prediction and target, [k]; NaN where no episode is that long."""
    outputs = asked.reading.online
    found = {
        name: _changes(asked, key, jnp.asarray([name == x for x in sorted(outputs)]))
        for name in outputs
        if name != "logits"
    }
    return jax.tree.map(np.asarray, found)


@jax.jit
def _changes(asked: Asked, key: Key, replaced: Array) -> dict[str, Array]:
    """C(k) of the predictions that are `replaced`, [outputs of the agent, in order] bool."""
    reading = asked.reading
    trajectory = reading.trajectory
    length, batch = trajectory.action.shape
    most = min(MOST_STEPS, length - 1)
    shift = jax.random.permutation(key, batch)
    before = readings.named_targets(asked.targets())
    weight = trajectory.learnable(jnp.float32)
    order = sorted(reading.online)

    def swapped(outputs: dict[str, Array], moment: Array) -> dict[str, Array]:
        found = {}
        for name, x in outputs.items():
            here = (jnp.arange(length + 1) == moment) & replaced[order.index(name)]
            here = here.reshape(-1, *[1] * (x.ndim - 1))
            found[name] = jnp.where(here, x[:, shift], x)
        return found

    def of_moment(moment: Array) -> dict[str, Array]:
        """Changes at the steps t = moment - k, [k, B]; NaN where they do not count."""
        told = dataclasses.replace(
            reading, online=swapped(reading.online, moment), target=swapped(reading.target, moment)
        )
        after = readings.named_targets(dataclasses.replace(asked, reading=told).targets())
        step = moment - jnp.arange(most + 1)
        inside = (step >= 0) & (step < length)
        step = jnp.clip(step, 0, length - 1)
        # No episode ends between t and the moment, and none begins there anew.
        ends = jnp.cumsum(jnp.pad(trajectory.cut(), ((1, 0), (0, 0))), axis=0)  # [T+1, B]
        counts = inside[:, None] & (ends[step] == ends[moment]) & (weight[step] > 0)
        return {
            name: jnp.where(
                counts, readings.change(before[name], after[name], weight)[step], jnp.nan
            )
            for name in before
        }

    changes = jax.lax.map(of_moment, jnp.arange(length + 1))  # [T+1, k, B]
    return {name: jnp.nanmean(each, axis=(0, 2)) for name, each in changes.items()}


def _horizon(changes: np.ndarray) -> float:
    """The k from which on the change stays below half of its largest."""
    known = changes[np.isfinite(changes)]
    above = np.flatnonzero(known >= 0.5 * known.max()) if len(known) else np.zeros(0)
    return float(above[-1] + 1) if len(above) else np.nan
