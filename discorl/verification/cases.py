"""Golden cases as files: arrays by name, read as trees and trajectories in the dtype under test."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl.runs import npz
from discorl.types import Array, PyTree, Trajectory, UserError


class Case:
    """The arrays of a golden file, as nested dicts in the dtype under test."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._arrays = npz.read(path).arrays
        self.path = path
        self.dtype = dtype

    def has(self, prefix: str) -> bool:
        """Whether there is anything below a prefix."""
        return any(name.startswith(prefix) for name in self._arrays)

    def scalar(self, name: str, default: float) -> float:
        """A number, or the default if the file does not hold it."""
        return float(self._arrays.get(name, default))

    def expected(self, prefix: str) -> dict[str, Any]:
        """Everything below a prefix, as stored."""
        tree: dict[str, Any] = {}
        for name, array in self.flat(prefix).items():
            node = tree
            *folders, last = name.split("/")
            for folder in folders:
                node = node.setdefault(folder, {})
            node[last] = array
        if not tree:
            raise UserError(f"{self.path}: holds no array under '{prefix}'")
        return tree

    def flat(self, prefix: str) -> dict[str, np.ndarray]:
        """Everything below a prefix, by the rest of its name."""
        named = self._arrays.items()
        return {name.removeprefix(prefix): x for name, x in named if name.startswith(prefix)}

    def inputs(self, prefix: str) -> dict[str, Any]:
        """Everything below a prefix, in the dtype under test."""
        return cast(self.expected(prefix), self.dtype)

    def numbered(self, prefix: str) -> Iterator[str]:
        """`prefix0/`, `prefix1/`, ... as far as they go."""
        i = 0
        while self.has(f"{prefix}{i}/"):
            yield f"{prefix}{i}/"
            i += 1


def cast(tree: PyTree, dtype: str) -> PyTree:
    """Puts a tree on the device with its floating-point arrays in the given dtype."""

    def leaf(x: Any) -> Array:
        x = jnp.asarray(x)
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(leaf, tree)


def trajectory_of(arrays: Mapping[str, Any]) -> Trajectory:
    """A golden trajectory; actions and behaviour logits come with an unused last moment."""
    steps = arrays["rewards"].shape[0]
    return Trajectory(
        observation=arrays.get("observations"),
        action=arrays["actions"][:steps],
        reward=arrays["rewards"],
        terminated=arrays["is_terminal"],
        behaviour_logits=arrays["behaviour_logits"][:steps],
        mask=arrays.get("mask"),
    )
