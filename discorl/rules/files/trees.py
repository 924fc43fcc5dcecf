"""Parameters of any rule but Disco as named arrays, the format of its file.

An array's name is its path in the tree, joined by slashes: `{"net": [{"w": ...}]}` holds
`net/0/w`. Metadata names the rule (`kind`) and its static settings, so a file alone suffices to
load it.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from discorl.rules.files.checks import check_values, listing
from discorl.runs import npz
from discorl.types import Params, UserError

ROOT = "eta"  # name of the array of a tree that is a single one


def flatten(eta: Params) -> dict[str, np.ndarray]:
    """The arrays of a tree by path, in alphabetical order."""
    arrays: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree.leaves_with_path(eta):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or ROOT
        if name in arrays or name == npz.METADATA:
            raise UserError(f"array '{name}' of the rule's parameters has a name that is taken")
        arrays[name] = np.asarray(leaf)
    return dict(sorted(arrays.items()))


def unflatten(arrays: Mapping[str, np.ndarray], like: Params) -> Params:
    """The tree of arrays, checked; the inverse of `flatten`.

    `like` gives its shapes and dtypes, from `jax.eval_shape`.
    """
    leaves, structure = jax.tree.flatten_with_path(like)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") or ROOT for path, _ in leaves]
    lists = {"missing": set(names) - set(arrays), "unexpected": set(arrays) - set(names)}
    problems = [f"{kind} {listing(sorted(found))}" for kind, found in lists.items() if found]
    if problems:
        raise UserError(f"not this rule: {'; '.join(problems)} (expected {len(names)} arrays)")
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if arrays[name].shape != leaf.shape:
            shapes = list(arrays[name].shape), list(leaf.shape)
            raise UserError(f"array '{name}' has shape {shapes[0]}; expected {shapes[1]}")
        check_values(name, arrays[name], leaf.dtype)
    return jax.tree.unflatten(structure, [arrays[name] for name in names])


def settings_of(rule: Any) -> dict[str, Any]:
    """A rule's static settings as JSON values, without the discount, which is the agent's."""
    values = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    del values["discount"]
    for name, value in values.items():
        try:
            kept = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            kept = None
        if kept != (list(value) if isinstance(value, tuple) else value):
            raise UserError(
                f"{rule.name}: {name} is {value!r}, which a file cannot keep; expected a number, a "
                "text or a list of them, or a method `metadata` of the rule's own"
            )
    return values


def read_settings(rule: type, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `settings_of`, from the metadata of a file."""
    settings = metadata.get("settings", {})
    known = [field.name for field in dataclasses.fields(rule) if field.init]
    if not isinstance(settings, Mapping) or not set(settings) <= set(known):
        raise UserError(f"its settings are {settings!r}; expected some of {', '.join(known)}")
    # JSON has no tuples, and a list could not be part of a hashable rule.
    return {n: tuple(x) if isinstance(x, list) else x for n, x in settings.items()}


def describe(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The shape of each array, and the parameter count."""
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    return {"arrays": shapes, "parameters": sum(array.size for array in arrays.values())}
