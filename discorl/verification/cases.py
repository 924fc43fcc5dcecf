"""Golden cases as files: arrays by name, read as trees and trajectories in the dtype under test.

To stay small, a file may leave expected arrays out. It must then name them, in the list `left_out`
of its metadata; any other expected array that is missing is an error.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl.runs import npz, schemas
from discorl.runs.files import naming
from discorl.types import Array, PyTree, Trajectory, UserError


class Case:
    """The arrays of a golden file, as nested dicts in the dtype under test."""

    def __init__(self, path: Path, dtype: str) -> None:
        archive = npz.read(path)
        self._arrays = archive.arrays
        with naming(path):
            schemas.check(archive.metadata.get("left_out", []), [str])
        self.left_out = frozenset(archive.metadata.get("left_out", ()))
        self.path = path
        self.dtype = dtype

    def has(self, prefix: str) -> bool:
        """Whether there is anything below a prefix."""
        return any(name.startswith(prefix) for name in self._arrays)

    def scalar(self, name: str, default: float) -> float:
        """A number, or the default if the file does not hold it."""
        return float(self._arrays.get(name, default))

    def inputs(self, prefix: str) -> dict[str, Any]:
        """Everything below a prefix as nested dicts, in the dtype under test."""
        tree: dict[str, Any] = {}
        for name, array in self.flat(prefix).items():
            node = tree
            *folders, last = name.split("/")
            for folder in folders:
                node = node.setdefault(folder, {})
            node[last] = array
        if not tree:
            raise UserError(f"{self.path}: holds no array under '{prefix}'")
        return cast(tree, self.dtype)

    def flat(self, prefix: str) -> dict[str, np.ndarray]:
        """Everything below a prefix, with the prefix removed from the names."""
        named = self._arrays.items()
        return {name.removeprefix(prefix): x for name, x in named if name.startswith(prefix)}

    def numbered(self, prefix: str) -> list[str]:
        """`prefix0/`, `prefix1/`, ... up to the last one in the file, without a gap."""
        found = (re.match(rf"{prefix}(\d+)/", name) for name in self._arrays)
        count = 1 + max((int(match[1]) for match in found if match), default=-1)
        prefixes = [f"{prefix}{i}/" for i in range(count)]
        for each in prefixes:
            if not self.has(each):
                raise UserError(f"{self.path}: holds {prefixes[-1]} but no array under '{each}'")
        return prefixes


def cast(tree: PyTree, dtype: str) -> PyTree:
    """Puts a tree on the device with its floating-point arrays in the given dtype."""

    def leaf(x: Any) -> Array:
        return jnp.asarray(x, dtype if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype)

    return jax.tree.map(leaf, tree)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, with names joined by `/`."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


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
