"""Rule files: the published npz format on disk, the tree `eta` in memory.

A *layer* is `{"w": [inputs, outputs], "b": [outputs]}`. A rule is a tree of layers:

    y_net, z_net       MLPs, [P] -> one embedding of a prediction vector
    policy_net         action blocks, [A, inputs] -> [A, C]
    trajectory_lstm    fused LSTM kernel over the features of a step and the hidden state
    gate               meta-RNN hidden state -> a factor for each trajectory feature
    embedding          what the meta-RNN is told of a step
    y_hat, z_hat       targets of the predictions, [P]
    pi_hat_blocks      action blocks under the policy target
    pi_hat             target of the policy, one logit for each action
    meta_rnn           its own y_net, z_net and policy_net, then input (an MLP) and lstm

Depths and sizes are read from the file; only their consistency is demanded.
"""

import dataclasses
import enum
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from discorl import npz
from discorl.files import naming
from discorl.types import UserError

Layer = dict[str, np.ndarray]
Eta = dict[str, Any]

_META_RNN = "lstm/~/meta_lstm/~unroll/"


@dataclasses.dataclass(frozen=True)
class RuleFile:
    """A rule as read from a file."""

    eta: Eta
    metadata: dict[str, Any]  # where the rule comes from; {} if the file does not say
    sha256: str
    path: Path


class _Kind(enum.Enum):
    LAYER = "a single layer"
    MLP = "layers linear_0, linear_1, ..."
    BLOCKS = "action blocks conv1_d, conv1_d_1, ..."


@dataclasses.dataclass(frozen=True)
class _Part:
    """One component of a rule, in memory and under its published name."""

    path: str  # the keys that lead to it in eta, with a slash between
    prefix: str  # of its published names
    kind: _Kind

    def layer_name(self, index: int) -> str:
        if self.kind is _Kind.LAYER:
            return self.prefix
        if self.kind is _Kind.MLP:
            return f"{self.prefix}/~/linear_{index}"
        return f"{self.prefix}/conv1_d" + (f"_{index}" if index else "")

    def depth(self, names: Mapping[str, Any]) -> int:
        """Number of consecutive layers that have an array among the names, at least one."""
        depth = 1
        while self.kind is not _Kind.LAYER and any(
            f"{self.layer_name(depth)}/{array}" in names for array in ("w", "b")
        ):
            depth += 1
        return depth


_PARTS = (
    _Part("y_net", "lstm/mlp", _Kind.MLP),
    _Part("z_net", "lstm/mlp_1", _Kind.MLP),
    _Part("policy_net", "lstm/sequential", _Kind.BLOCKS),
    _Part("trajectory_lstm", "lstm/lstm/linear", _Kind.LAYER),
    _Part("gate", "lstm/linear", _Kind.LAYER),
    _Part("embedding", "lstm/linear_1", _Kind.LAYER),
    _Part("y_hat", "lstm/linear_2", _Kind.LAYER),
    _Part("z_hat", "lstm/linear_3", _Kind.LAYER),
    _Part("pi_hat_blocks", "lstm/sequential_1", _Kind.BLOCKS),
    _Part("pi_hat", "lstm/linear_4", _Kind.LAYER),
    _Part("meta_rnn/y_net", _META_RNN + "mlp", _Kind.MLP),
    _Part("meta_rnn/z_net", _META_RNN + "mlp_1", _Kind.MLP),
    _Part("meta_rnn/policy_net", _META_RNN + "sequential", _Kind.BLOCKS),
    _Part("meta_rnn/input", _META_RNN + "mlp_2", _Kind.MLP),
    _Part("meta_rnn/lstm", _META_RNN + "lstm/linear", _Kind.LAYER),
)
_PART_AT = {part.path: part for part in _PARTS}


def flatten(eta: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a rule under their published names, in the order of the published file.

    Args:
        eta: the rule's tree; also any tree of the same structure, such as a gradient.

    Returns:
        array by name; the kernels of action blocks have gained a leading axis of 1.

    Raises:
        UserError: a component is missing, or there is one that the format has no name for.
    """
    _check_keys(eta)
    arrays = {}
    for part in _PARTS:
        for index, layer in enumerate(_layers(eta, part)):
            name = part.layer_name(index)
            kernel = np.asarray(layer["w"])
            arrays[f"{name}/b"] = np.asarray(layer["b"])
            arrays[f"{name}/w"] = kernel[None] if part.kind is _Kind.BLOCKS else kernel
    return dict(sorted(arrays.items()))


def unflatten(arrays: Mapping[str, np.ndarray]) -> Eta:
    """The tree of a rule from arrays in published names; the inverse of `flatten`.

    Names and ranks are checked here, the rest by `validate`: gradients in float64 are welcome too.

    Args:
        arrays: array by published name.

    Returns:
        eta.

    Raises:
        UserError: an array is missing or unexpected, or has the wrong rank.
    """
    depths = {part: part.depth(arrays) for part in _PARTS}
    _check_names(arrays, depths)
    eta: Eta = {"meta_rnn": {}}
    for part, depth in depths.items():
        layers = tuple(_read_layer(arrays, part, index) for index in range(depth))
        *parents, key = part.path.split("/")
        parent = eta["meta_rnn"] if parents else eta
        parent[key] = layers[0] if part.kind is _Kind.LAYER else layers
    return eta


def validate(eta: Mapping[str, Any]) -> None:
    """Checks that a rule can be run: float32, finite, and every size fits the others.

    Raises:
        UserError: names the array, what is wrong with it and what was expected.
    """
    arrays = flatten(eta)
    eta = unflatten(arrays)  # which checks the ranks
    for name, array in arrays.items():
        _check_values(name, array)
    _check_sizes(eta)


def describe(eta: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of a rule: what an agent must match, the width of each net, the parameter count."""
    meta_rnn, nets = eta["meta_rnn"], ("y_net", "z_net", "policy_net")
    return {
        "prediction_size": _columns(eta["y_hat"]),
        "trajectory_lstm": _columns(eta["trajectory_lstm"]) // 4,
        **{net: _widths(eta[net]) for net in (*nets, "pi_hat_blocks")},
        "meta_rnn": {
            "lstm": _columns(meta_rnn["lstm"]) // 4,
            **{net: _widths(meta_rnn[net]) for net in ("input", *nets)},
        },
        "parameters": sum(array.size for array in flatten(eta).values()),
    }


def load(path: str | os.PathLike[str]) -> RuleFile:
    """Reads and checks a rule file; nothing in it is ever executed.

    Args:
        path: an npz file in the published naming, with or without metadata.

    Returns:
        the rule, its metadata and the file's sha256.

    Raises:
        UserError: the file is absent, damaged, or not a rule; the message says in what way.
    """
    path = Path(path)
    archive = npz.read(path)
    with naming(path):
        eta = unflatten(archive.arrays)
        validate(eta)
    return RuleFile(eta, archive.metadata, archive.sha256, path)


def save(
    path: str | os.PathLike[str],
    eta: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes a rule file; equal input gives equal bytes, and a failure leaves the old file.

    Args:
        path: the file to write or replace.
        eta: the rule.
        metadata: what to remember of the rule's origin, as JSON values; none if empty.

    Raises:
        UserError: the rule is not valid, the metadata is not JSON, or the file cannot be written.
    """
    with naming(path):
        validate(eta)
    npz.write(path, flatten(eta), metadata)


# ---- the tree ----


def _layers(eta: Mapping[str, Any], part: _Part) -> Sequence[Layer]:
    node: Any = eta
    for key in part.path.split("/"):
        node = node[key]
    return (node,) if part.kind is _Kind.LAYER else node


def _check_keys(eta: Mapping[str, Any]) -> None:
    """Demands the exact structure: a stray component would be lost without a word."""
    roots, _, inner = zip(*(part.path.partition("/") for part in _PARTS), strict=True)
    _check_mapping("eta", eta, set(roots))
    _check_mapping("eta['meta_rnn']", eta["meta_rnn"], {key for key in inner if key})
    for part in _PARTS:
        where = "eta" + "".join(f"[{key!r}]" for key in part.path.split("/"))
        layers = _layers(eta, part)
        if not isinstance(layers, Sequence) or not layers:
            raise UserError(f"{where} is {layers!r:.40}; expected a tuple of at least one layer")
        for layer in layers:
            _check_mapping(where, layer, {"w", "b"})


def _check_mapping(where: str, node: Any, keys: set[str]) -> None:
    found = set(node) if isinstance(node, Mapping) else None
    if found != keys:
        given = type(node).__name__ if found is None else sorted(map(str, found))
        raise UserError(f"{where} is {given}; expected a dict with {sorted(keys)}")


def _check_names(arrays: Mapping[str, Any], depths: Mapping[_Part, int]) -> None:
    expected = {
        f"{part.layer_name(index)}/{array}"
        for part, depth in depths.items()
        for index in range(depth)
        for array in ("w", "b")
    }
    found = set(arrays)
    lists = {"missing": expected - found, "unexpected": found - expected}
    problems = [f"{kind} {_listing(sorted(names))}" for kind, names in lists.items() if names]
    if problems:
        raise UserError(
            f"not a rule: {'; '.join(problems)} (expected the {len(expected)} arrays of the "
            f"published naming, layers numbered without gaps)"
        )


def _listing(names: Sequence[str], limit: int = 3) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    rest = len(names) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


def _read_layer(arrays: Mapping[str, np.ndarray], part: _Part, index: int) -> Layer:
    name = part.layer_name(index)
    kernel, bias = arrays[f"{name}/w"], arrays[f"{name}/b"]
    is_block = part.kind is _Kind.BLOCKS
    if kernel.ndim != 2 + is_block or (is_block and len(kernel) != 1):
        expected = "rank 3, [1, inputs, outputs]" if is_block else "rank 2, [inputs, outputs]"
        raise UserError(f"array '{name}/w' has shape {list(kernel.shape)}; expected {expected}")
    if bias.ndim != 1:
        raise UserError(
            f"array '{name}/b' has shape {list(bias.shape)}; expected rank 1, [outputs]"
        )
    return {"w": kernel[0] if is_block else kernel, "b": bias}


def _check_values(name: str, array: np.ndarray) -> None:
    if array.dtype != np.float32:
        raise UserError(f"array '{name}' is {array.dtype}; expected float32: cast it before saving")
    if array.size == 0:
        raise UserError(
            f"array '{name}' has shape {list(array.shape)}; expected no axis of length 0"
        )
    invalid = array.size - int(np.isfinite(array).sum())
    if invalid:
        raise UserError(
            f"array '{name}' holds {invalid} NaN or infinite values; expected finite numbers"
        )


# ---- the sizes ----


class _Size(NamedTuple):
    """The number of inputs or outputs that the rest of a rule demands of a part."""

    size: int
    why: str


def _check_sizes(eta: Mapping[str, Any]) -> None:
    """Follows the numbers through the rule, from the agent's outputs to the targets."""
    trajectory, meta = _lstm_width(eta, "trajectory_lstm"), _lstm_width(eta, "meta_rnn/lstm")
    hidden = _Size(trajectory, f"the trajectory LSTM's width is {trajectory}")
    meta_hidden = _Size(meta, f"the meta-RNN's LSTM width is {meta}")

    predictions, features = _check_feature_nets(eta, "")
    inputs = _Size(features + trajectory, f"{features} features + {trajectory} hidden")
    _check_part(eta, "trajectory_lstm", inputs)
    _check_part(eta, "gate", meta_hidden, hidden)
    _check_part(eta, "embedding", hidden, _Size(1, "one number for each step"))
    _check_part(eta, "y_hat", hidden)
    _check_part(eta, "z_hat", hidden, predictions)
    channels = _columns(eta["policy_net"][-1])
    why = f"{trajectory} of the trajectory LSTM + {channels} of policy_net"
    _check_part(eta, "pi_hat_blocks", _Size(trajectory + channels, why))
    width = _columns(eta["pi_hat_blocks"][-1])
    blocks = _Size(width, f"the last pi_hat block yields {width}")
    _check_part(eta, "pi_hat", blocks, _Size(1, "one logit per action"))

    _, features = _check_feature_nets(eta, "meta_rnn/")
    width = _columns(eta["meta_rnn"]["y_net"][-1])
    why = f"{features} features + 1 embedding + {width} of its y_net"
    _check_part(eta, "meta_rnn/input", _Size(features + 1 + width, why))
    width = _columns(eta["meta_rnn"]["input"][-1])
    _check_part(eta, "meta_rnn/lstm", _Size(width + meta, f"{width} inputs + {meta} hidden"))


def _check_feature_nets(eta: Mapping[str, Any], prefix: str) -> tuple[_Size, int]:
    """Checks the nets that read an agent's outputs; the meta-RNN has its own set.

    Returns:
        the size of a prediction; the number of features of a step that the nets give.
    """
    width = _columns(eta["y_hat"])
    predictions = _Size(width, f"y_hat yields {width}")
    y_net, policy_net = (_layers(eta, _PART_AT[prefix + net]) for net in ("y_net", "policy_net"))
    embedding, channels = _columns(y_net[-1]), _columns(policy_net[-1])
    _check_part(eta, f"{prefix}y_net", predictions)
    last = _PART_AT[f"{prefix}y_net"].layer_name(len(y_net) - 1)
    why = f"as many as '{last}/w', for embeddings of y and z are equally wide"
    _check_part(eta, f"{prefix}z_net", predictions, _Size(embedding, why))
    # Of each action: three policies, three values, whether it was taken, z and the target's z.
    why = f"7 numbers + z_net of two predictions, {embedding} each"
    _check_part(eta, f"{prefix}policy_net", _Size(7 + 2 * embedding, why))
    # 9 scalars, 4 embeddings of y, 10 of z, 2 of the policy.
    return predictions, 9 + 14 * embedding + 2 * channels


def _check_part(
    eta: Mapping[str, Any], path: str, inputs: _Size, outputs: _Size | None = None
) -> None:
    """Checks layers that feed each other, from the given inputs to any or the given outputs."""
    part = _PART_AT[path]
    for index, layer in enumerate(_layers(eta, part)):
        name = f"{part.layer_name(index)}/w"
        rows, columns = layer["w"].shape
        if part.kind is _Kind.BLOCKS:
            why = f"twice {inputs.size}, each action beside the mean ({inputs.why})"
            inputs = _Size(2 * inputs.size, why)
        if rows != inputs.size:
            raise UserError(
                f"array '{name}' takes {rows} inputs; expected {inputs.size}: {inputs.why}"
            )
        if layer["b"].shape != (columns,):
            raise UserError(
                f"array '{part.layer_name(index)}/b' has shape {list(layer['b'].shape)}; "
                f"expected [{columns}], one number for each output of '{name}'"
            )
        inputs = _Size(columns, f"'{name}' yields {columns}")
    if outputs is not None and columns != outputs.size:
        raise UserError(
            f"array '{name}' yields {columns} outputs; expected {outputs.size}: {outputs.why}"
        )


def _lstm_width(eta: Mapping[str, Any], path: str) -> int:
    part = _PART_AT[path]
    columns = _columns(_layers(eta, part)[0])
    if columns % 4:
        raise UserError(
            f"array '{part.layer_name(0)}/w' yields {columns} outputs; "
            f"expected a multiple of 4, for the four gates of an LSTM"
        )
    return columns // 4


def _columns(layer: Layer) -> int:
    return int(layer["w"].shape[-1])


def _widths(layers: Sequence[Layer]) -> list[int]:
    return [_columns(layer) for layer in layers]
