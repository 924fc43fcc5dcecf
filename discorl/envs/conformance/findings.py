"""Comparisons of the values that environments return."""

from typing import Any

import jax
import numpy as np

from discorl.types import PyTree
from discorl.types.findings import Finding, judge

TOLERANCE = 1e-5  # of floats; programs for one and for many environments round differently


def at(tree: PyTree, *index: Any) -> PyTree:
    """Indexes every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def difference(what: str, found: PyTree, expected: PyTree) -> list[str]:
    """A problem if the two differ by more than rounding error."""
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    close = all(np.allclose(x, y, TOLERANCE, TOLERANCE, equal_nan=True) for x, y in leaves)
    return [] if close else [f"{what} differs"]


def same(check: str, found: PyTree, expected: PyTree, detail: str) -> Finding:
    """Whether the two are bitwise equal."""
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    equal = all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves)
    return Finding(check, equal, detail if equal else f"it is not true that {detail}")


def legal_actions(mask: np.ndarray, acting: np.ndarray) -> Finding:
    """Whether some action is legal wherever one is taken.

    The mask is [..., A] bool; `acting`, [...] bool, marks steps before an episode's end.
    """
    legal = mask[acting].sum(axis=-1)
    stuck = (legal == 0).sum()
    problems = [f"no action is legal at {stuck} of {legal.size} steps"] if stuck else []
    detail = f"{legal.min(initial=mask.shape[-1])} to {legal.max(initial=0)} of {mask.shape[-1]}"
    return judge("action mask", problems, f"{detail} actions are legal")


def values(observation: PyTree, reward: np.ndarray) -> Finding:
    """Whether all numbers are finite."""
    parts = {"reward": reward} | {
        f"observation{jax.tree_util.keystr(path)}": leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(observation)
    }
    problems = [
        f"{name} holds NaN or infinity"
        for name, leaf in parts.items()
        if np.asarray(leaf).dtype.kind == "f" and not np.isfinite(leaf).all()
    ]
    return judge(
        "values", problems, f"finite, with rewards from {reward.min():g} to {reward.max():g}"
    )
