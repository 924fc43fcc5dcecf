"""The published npz format of Disco rules: named arrays on disk, the tree `eta` in memory.

`names` lists what the tree consists of. Depths and sizes are read from the file; they only have to
be consistent.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from discorl.rules.files import checks
from discorl.rules.files.names import PARTS, Eta, Kind, Layer, Part, columns_of, layers_of
from discorl.runs import npz
from discorl.runs.files import naming


def flatten(eta: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a rule under their published names, in the order of the published file.

    Works for any tree of the same structure, such as a gradient. Kernels of action blocks get a
    leading axis of 1.
    """
    checks.check_keys(eta)
    arrays = {}
    for part in PARTS:
        for index, layer in enumerate(layers_of(eta, part)):
            name = part.layer_name(index)
            kernel = np.asarray(layer["w"])
            arrays[f"{name}/b"] = np.asarray(layer["b"])
            arrays[f"{name}/w"] = kernel[None] if part.kind is Kind.BLOCKS else kernel
    return dict(sorted(arrays.items()))


def unflatten(arrays: Mapping[str, np.ndarray]) -> Eta:
    """The tree of a rule from arrays in published names; the inverse of `flatten`.

    It checks names and ranks; `validate` checks the rest, so float64 gradients are accepted here.
    """
    depths = {part: part.depth(arrays) for part in PARTS}
    checks.check_names(arrays, depths)
    eta: Eta = {"meta_rnn": {}}
    for part, depth in depths.items():
        layers = tuple(_read_layer(arrays, part, index) for index in range(depth))
        *parents, key = part.path.split("/")
        parent = eta["meta_rnn"] if parents else eta
        parent[key] = layers[0] if part.kind is Kind.LAYER else layers
    return eta


def validate(eta: Mapping[str, Any]) -> None:
    """Checks that a rule can be run: float32, finite, and every size fits the others."""
    checked(flatten(eta))


def checked(arrays: Mapping[str, np.ndarray]) -> Eta:
    """The tree of a rule from arrays in published names, validated."""
    eta = unflatten(arrays)
    for name, array in sorted(arrays.items()):
        checks.check_values(name, array)
    checks.check_sizes(eta)
    return eta


def describe(eta: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of a rule: what an agent must match, the width of each net, the parameter count."""
    meta_rnn, nets = eta["meta_rnn"], ("y_net", "z_net", "policy_net")
    return {
        "prediction_size": columns_of(eta["y_hat"]),
        "trajectory_lstm": columns_of(eta["trajectory_lstm"]) // 4,
        **{net: _widths(eta[net]) for net in (*nets, "pi_hat_blocks")},
        "meta_rnn": {
            "lstm": columns_of(meta_rnn["lstm"]) // 4,
            **{net: _widths(meta_rnn[net]) for net in ("input", *nets)},
        },
        "parameters": sum(array.size for array in flatten(eta).values()),
    }


def load(path: str | os.PathLike[str]) -> Eta:
    """The tree of a rule file in the published naming, checked; nothing in it is ever executed."""
    archive = npz.read(path)
    with naming(path):
        return checked(archive.arrays)


def save(
    path: str | os.PathLike[str],
    eta: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes a rule file; equal input gives equal bytes, and a failure leaves the old file.

    `metadata` records the rule's origin as JSON values; if empty, it is left out.
    """
    with naming(path):
        validate(eta)
    npz.write(path, flatten(eta), metadata)


def _read_layer(arrays: Mapping[str, np.ndarray], part: Part, index: int) -> Layer:
    name = part.layer_name(index)
    kernel, bias = arrays[f"{name}/w"], arrays[f"{name}/b"]
    checks.check_ranks(part, index, kernel, bias)
    return {"w": kernel[0] if part.kind is Kind.BLOCKS else kernel, "b": bias}


def _widths(layers: Sequence[Layer]) -> list[int]:
    return [columns_of(layer) for layer in layers]
