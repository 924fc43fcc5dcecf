"""Checks of a rule's weights: names, ranks, values, and consistent sizes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from discorl.rules.files.names import PART_AT, PARTS, Kind, Part, columns_of, layers_of
from discorl.types import UserError


def check_keys(eta: Mapping[str, Any]) -> None:
    """Requires the exact structure; an extra component would be dropped silently."""
    roots, _, inner = zip(*(part.path.partition("/") for part in PARTS), strict=True)
    _check_mapping("eta", eta, set(roots))
    _check_mapping("eta['meta_rnn']", eta["meta_rnn"], {key for key in inner if key})
    for part in PARTS:
        where = "eta" + "".join(f"[{key!r}]" for key in part.path.split("/"))
        layers = layers_of(eta, part)
        if not isinstance(layers, Sequence) or not layers:
            raise UserError(f"{where} is {layers!r:.40}; expected a tuple of at least one layer")
        for layer in layers:
            _check_mapping(where, layer, {"w", "b"})


def _check_mapping(where: str, node: Any, keys: set[str]) -> None:
    found = set(node) if isinstance(node, Mapping) else None
    if found != keys:
        given = type(node).__name__ if found is None else sorted(map(str, found))
        raise UserError(f"{where} is {given}; expected a dict with {sorted(keys)}")


def check_names(arrays: Mapping[str, Any], depths: Mapping[Part, int]) -> None:
    """Requires exactly the arrays of all layers, `depths` of them per component."""
    expected = {
        f"{part.layer_name(index)}/{array}"
        for part, depth in depths.items()
        for index in range(depth)
        for array in ("w", "b")
    }
    found = set(arrays)
    lists = {"missing": expected - found, "unexpected": found - expected}
    problems = [f"{kind} {listing(sorted(names))}" for kind, names in lists.items() if names]
    if problems:
        raise UserError(
            f"not a rule: {'; '.join(problems)} (expected the {len(expected)} arrays of the "
            f"published naming, layers numbered without gaps)"
        )


def listing(names: Sequence[str], limit: int = 3) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:limit])
    rest = len(names) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown


def check_ranks(part: Part, index: int, kernel: np.ndarray, bias: np.ndarray) -> None:
    """Requires the ranks that a layer's arrays have in a file."""
    name = part.layer_name(index)
    is_block = part.kind is Kind.BLOCKS
    if kernel.ndim != 2 + is_block or (is_block and len(kernel) != 1):
        expected = "rank 3, [1, inputs, outputs]" if is_block else "rank 2, [inputs, outputs]"
        raise UserError(f"array '{name}/w' has shape {list(kernel.shape)}; expected {expected}")
    if bias.ndim != 1:
        raise UserError(
            f"array '{name}/b' has shape {list(bias.shape)}; expected rank 1, [outputs]"
        )


def check_values(name: str, array: np.ndarray, dtype: Any = np.float32) -> None:
    """Requires at least one finite number of the given dtype."""
    if array.dtype != dtype:
        raise UserError(
            f"array '{name}' is {array.dtype}; expected {np.dtype(dtype)}: cast it before saving"
        )
    if array.dtype.kind not in "fiu":
        raise UserError(f"array '{name}' is {array.dtype}; expected numbers")
    if array.size == 0:
        raise UserError(
            f"array '{name}' has shape {list(array.shape)}; expected no axis of length 0"
        )
    invalid = array.size - int(np.isfinite(array).sum())
    if invalid:
        raise UserError(
            f"array '{name}' holds {invalid} NaN or infinite values; expected finite numbers"
        )


class _Size(NamedTuple):
    """The size that the rest of a rule requires of a part's inputs or outputs."""

    size: int
    why: str


def check_sizes(eta: Mapping[str, Any]) -> None:
    """Follows the sizes through the rule, from the agent's outputs to the targets."""
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
    channels = columns_of(eta["policy_net"][-1])
    why = f"{trajectory} of the trajectory LSTM + {channels} of policy_net"
    _check_part(eta, "pi_hat_blocks", _Size(trajectory + channels, why))
    width = columns_of(eta["pi_hat_blocks"][-1])
    blocks = _Size(width, f"the last pi_hat block yields {width}")
    _check_part(eta, "pi_hat", blocks, _Size(1, "one logit per action"))

    _, features = _check_feature_nets(eta, "meta_rnn/")
    width = columns_of(eta["meta_rnn"]["y_net"][-1])
    why = f"{features} features + 1 embedding + {width} of its y_net"
    _check_part(eta, "meta_rnn/input", _Size(features + 1 + width, why))
    width = columns_of(eta["meta_rnn"]["input"][-1])
    _check_part(eta, "meta_rnn/lstm", _Size(width + meta, f"{width} inputs + {meta} hidden"))


def _check_feature_nets(eta: Mapping[str, Any], prefix: str) -> tuple[_Size, int]:
    """Checks the nets that read an agent's outputs; the meta-RNN has its own set.

    Returns the size of a prediction and the number of features per step.
    """
    width = columns_of(eta["y_hat"])
    predictions = _Size(width, f"y_hat yields {width}")
    y_net, policy_net = (layers_of(eta, PART_AT[prefix + net]) for net in ("y_net", "policy_net"))
    embedding, channels = columns_of(y_net[-1]), columns_of(policy_net[-1])
    _check_part(eta, f"{prefix}y_net", predictions)
    last = PART_AT[f"{prefix}y_net"].layer_name(len(y_net) - 1)
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
    """Checks consecutive layers from the given inputs to the given outputs, or to any."""
    part = PART_AT[path]
    for index, layer in enumerate(layers_of(eta, part)):
        name = f"{part.layer_name(index)}/w"
        rows, columns = layer["w"].shape
        if part.kind is Kind.BLOCKS:
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
    part = PART_AT[path]
    columns = columns_of(layers_of(eta, part)[0])
    if columns % 4:
        raise UserError(
            f"array '{part.layer_name(0)}/w' yields {columns} outputs; "
            f"expected a multiple of 4, for the four gates of an LSTM"
        )
    return columns // 4
