r"""Is a rule the gradient of anything?

An update moves parameters theta along a field F(theta) = - d loss / d theta, in which the targets
depend on theta, too, but are not differentiated. If F is the gradient of some function, its
Jacobian J = dF / d theta is symmetric. For each term of the loss, and for their sum, this measures

    asymmetry = |J - J^T| / (2 |J|),    Frobenius norms: 0 for a gradient, 1 for a pure rotation,

on random directions v_1..v_m, which move every array of theta in proportion to its size:
M_ij = v_i^T J v_j with central differences of F along v_j in float64 (with the target network, the
rule's state and the batch kept), without the diagonal, which every J has alike. Of independent
random matrices it would be 1 / sqrt(2) = 0.71.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from discorl.agent.learner import Learner, LearnerState
from discorl.reports.charts import IntervalChart
from discorl.reports.inspection.findings import Findings, row, text_of
from discorl.reports.inspection.subject import Life, Subject, by_agent
from discorl.types import Array, Key, Params, PyTree, Trajectory

DIRECTIONS = 16
TRAJECTORIES = 8
STEP = 1e-4
TOTAL = "all terms"


def analyse(subject: Subject) -> Findings:
    """Asymmetries at the latest moment of each agent."""

    def measure(life: Life) -> dict[str, float]:
        part = jax.tree.map(lambda x: x[:, :TRAJECTORIES], life.latest.reading.trajectory)
        key = jax.random.key(life.seed)
        return asymmetries(subject.learner, life.latest.state, subject.eta, part, key)

    by_life = by_agent(subject, "gradient", measure)
    found = {name: np.array([each[name] for each in by_life]) for name in by_life[0]}
    rows = tuple(row(name, values) for name, values in found.items() if np.isfinite(values).any())
    facts = {name: text_of(values) for name, values in found.items()}
    chart = IntervalChart(
        "gradient",
        "Asymmetry of the update's Jacobian",
        (("asymmetry by term of the loss", rows),),
        reference=0.0,
        caption="0: the gradient of a function. 0.71: no more symmetric than chance.",
    )
    return Findings(facts, (chart,))


def asymmetries(
    learner: Learner, state: LearnerState, eta: Params, batch: Trajectory, key: Key
) -> dict[str, float]:
    """By term of the loss, and of all; NaN for a term whose field does not depend on theta."""
    with jax.enable_x64(True):
        state, eta, batch = (_in_float64(x) for x in (state, eta, batch))
        directions = _directions(state.params, key)
        matrices = jax.jit(_matrices, static_argnums=0)(learner, state, eta, batch, directions)
        found = {name: np.asarray(m) for name, m in matrices.items()}
    found[TOTAL] = np.sum(list(found.values()), axis=0)
    return {name: asymmetry(m) for name, m in found.items()}


def asymmetry(matrix: np.ndarray) -> float:
    """|M - M^T| / (2 |M|) off the diagonal."""
    m = matrix * (1 - np.eye(len(matrix)))
    size = np.linalg.norm(m)
    return float(np.linalg.norm(m - m.T) / (2 * size)) if size > 1e-12 else np.nan


def _matrices(
    learner: Learner, state: LearnerState, eta: Params, batch: Trajectory, directions: Params
) -> dict[str, Array]:
    """M of each term of the loss, [m, m]."""

    def at(params: Params) -> dict[str, Array]:
        """v_i^T F, for all i: slopes of the terms along the directions, targets constant."""
        moved = dataclasses.replace(state, params=params)
        details = learner.details(moved, eta, batch)

        def terms(params: Params) -> dict[str, Array]:
            outputs, _ = learner.outputs(params, batch)
            weight = batch.learnable(jnp.float64)
            found = learner.rule.loss(outputs, details.targets, batch)
            return {name: jnp.sum(x * weight) / jnp.sum(weight) for name, x in found.items()}

        _, slope = jax.linearize(terms, params)
        return jax.tree.map(lambda x: -x, jax.vmap(slope)(directions))

    def along(direction: Params) -> dict[str, Array]:
        ahead, behind = (
            at(jax.tree.map(lambda p, v, s=s: p + s * v, state.params, direction))
            for s in (STEP, -STEP)
        )
        return jax.tree.map(lambda a, b: (a - b) / (2 * STEP), ahead, behind)

    # [j, i], a column of M for each direction that theta is moved along.
    return jax.tree.map(lambda m: m.T, jax.lax.map(along, directions))


def _directions(params: Params, key: Key) -> Params:
    """Random directions, [m, ...], that move every array in proportion to its size."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    drawn = [
        jax.random.normal(k, (DIRECTIONS, *x.shape), x.dtype)
        * (jnp.sqrt(jnp.mean(jnp.square(x))) + 1e-3)
        for k, x in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, drawn)


def _in_float64(tree: PyTree) -> PyTree:
    return jax.tree.map(
        lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )
