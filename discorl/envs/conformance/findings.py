"""What checks find, and how they compare what environments return."""

import dataclasses
from typing import Any

import jax
import numpy as np

from discorl.types import PyTree

TOLERANCE = 1e-5  # of floats: programs for one and for many environments round differently


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    ok: bool
    detail: str


def judge(check: str, problems: list[str], detail: str) -> Finding:
    """Fails with the problems, or passes with the detail."""
    return Finding(check, not problems, "; ".join(problems) or detail)


def raised(what: str, error: Exception) -> str:
    """What somebody's code has raised, in a line."""
    lines = str(error).strip().splitlines()
    return f"{what} raised {type(error).__name__}{f': {lines[0]}' if lines else ''}"


def describe(observation: PyTree) -> str:
    """Shapes and dtypes as people write them: `[10, 10, 4] float32`."""
    if isinstance(observation, dict):
        return ", ".join(f"{name} {describe(part)}" for name, part in observation.items())
    leaves = jax.tree.leaves(observation)
    return ", ".join(f"[{', '.join(map(str, leaf.shape))}] {leaf.dtype}" for leaf in leaves)


def at(tree: PyTree, *index: Any) -> PyTree:
    """Indexes every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def mismatch(what: str, found: PyTree, expected: PyTree) -> list[str]:
    """Problems with the structure, shapes and dtypes of what was found."""
    structures = [str(jax.tree.structure(tree)) for tree in (found, expected)]
    if structures[0] != structures[1]:
        return [f"{what} has the structure {structures[0]}; expected {structures[1]}"]
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return [
        f"{what} is {describe(x)}; expected {describe(y)}"
        for x, y in pairs
        if (x.shape, x.dtype) != (y.shape, y.dtype)
    ]


def difference(what: str, found: PyTree, expected: PyTree) -> list[str]:
    """A problem, if the two differ by more than rounding."""
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    close = all(np.allclose(x, y, TOLERANCE, TOLERANCE, equal_nan=True) for x, y in leaves)
    return [] if close else [f"{what} differs"]


def same(check: str, found: PyTree, expected: PyTree, detail: str) -> Finding:
    """Whether the two are equal bit for bit."""
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    equal = all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in leaves)
    return Finding(check, equal, detail if equal else f"it is not so that {detail}")


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
