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

import contextlib
import dataclasses
import enum
import hashlib
import io
import json
import math
import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from discorl.types import UserError

Layer = dict[str, np.ndarray]
Eta = dict[str, Any]

_METADATA = "metadata"
_MAX_BYTES = 2**30  # of a file, and of everything in it once unpacked
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that equal rules are equal files
# How zipfile meets damage; RuntimeError: it believes to see encryption, or an unknown feature.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)
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

    path: tuple[str, ...]  # keys that lead to it in eta
    prefix: str
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
    _Part(("y_net",), "lstm/mlp", _Kind.MLP),
    _Part(("z_net",), "lstm/mlp_1", _Kind.MLP),
    _Part(("policy_net",), "lstm/sequential", _Kind.BLOCKS),
    _Part(("trajectory_lstm",), "lstm/lstm/linear", _Kind.LAYER),
    _Part(("gate",), "lstm/linear", _Kind.LAYER),
    _Part(("embedding",), "lstm/linear_1", _Kind.LAYER),
    _Part(("y_hat",), "lstm/linear_2", _Kind.LAYER),
    _Part(("z_hat",), "lstm/linear_3", _Kind.LAYER),
    _Part(("pi_hat_blocks",), "lstm/sequential_1", _Kind.BLOCKS),
    _Part(("pi_hat",), "lstm/linear_4", _Kind.LAYER),
    _Part(("meta_rnn", "y_net"), _META_RNN + "mlp", _Kind.MLP),
    _Part(("meta_rnn", "z_net"), _META_RNN + "mlp_1", _Kind.MLP),
    _Part(("meta_rnn", "policy_net"), _META_RNN + "sequential", _Kind.BLOCKS),
    _Part(("meta_rnn", "input"), _META_RNN + "mlp_2", _Kind.MLP),
    _Part(("meta_rnn", "lstm"), _META_RNN + "lstm/linear", _Kind.LAYER),
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
        parent = eta["meta_rnn"] if len(part.path) == 2 else eta
        parent[part.path[-1]] = layers[0] if part.kind is _Kind.LAYER else layers
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
    for name, layer in _named_layers(eta):
        _check_bias(name, layer)
    for expectation in _expectations(eta):
        expectation.check()


def describe(eta: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of a rule: what an agent must match, the width of each net, the parameter count."""
    meta_rnn = eta["meta_rnn"]
    return {
        "prediction_size": _columns(eta["y_hat"]),
        "trajectory_lstm": _columns(eta["trajectory_lstm"]) // 4,
        "y_net": _widths(eta["y_net"]),
        "z_net": _widths(eta["z_net"]),
        "policy_net": _widths(eta["policy_net"]),
        "pi_hat_blocks": _widths(eta["pi_hat_blocks"]),
        "meta_rnn": {
            "lstm": _columns(meta_rnn["lstm"]) // 4,
            "input": _widths(meta_rnn["input"]),
            "y_net": _widths(meta_rnn["y_net"]),
            "z_net": _widths(meta_rnn["z_net"]),
            "policy_net": _widths(meta_rnn["policy_net"]),
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
    with _naming(path):
        content = _read_file(path)
        arrays = _unpack(content)
        metadata = _decode_metadata(arrays.pop(_METADATA, None))
        eta = unflatten(arrays)
        validate(eta)
    return RuleFile(eta, metadata, hashlib.sha256(content).hexdigest(), path)


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
    path = Path(path)
    with _naming(path):
        validate(eta)
        arrays = flatten(eta)
        if metadata:
            arrays[_METADATA] = _encode_metadata(metadata)
    write_atomically(path, _pack(arrays))


def write_atomically(path: Path, content: bytes) -> None:
    """Puts a whole file in place at once: readers see the old one or the new one.

    Raises:
        UserError: the folder is missing or cannot be written to.
    """
    # Not `tempfile`: its files are private to the user, and rules are made to be shared.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


# ---- the tree ----


def _layers(eta: Mapping[str, Any], part: _Part) -> Sequence[Layer]:
    node: Any = eta
    for key in part.path:
        node = node[key]
    return (node,) if part.kind is _Kind.LAYER else node


def _named_layers(eta: Mapping[str, Any]) -> Iterator[tuple[str, Layer]]:
    for part in _PARTS:
        for index, layer in enumerate(_layers(eta, part)):
            yield part.layer_name(index), layer


def _check_keys(eta: Mapping[str, Any]) -> None:
    """Demands the exact structure: a stray component would be lost without a word."""
    _check_mapping("eta", eta, {part.path[0] for part in _PARTS})
    meta_rnn_keys = {part.path[1] for part in _PARTS if len(part.path) == 2}
    _check_mapping("eta['meta_rnn']", eta["meta_rnn"], meta_rnn_keys)
    for part in _PARTS:
        where = "eta" + "".join(f"[{key!r}]" for key in part.path)
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
    missing = sorted(expected - set(arrays))
    unexpected = sorted(set(arrays) - expected)
    problems = []
    if missing:
        problems.append(f"missing {_listing(missing)}")
    if unexpected:
        problems.append(f"unexpected {_listing(unexpected)}")
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
    if part.kind is _Kind.BLOCKS:
        _check_rank(f"{name}/w", kernel, 3, "[1, inputs, outputs]")
        if kernel.shape[0] != 1:
            raise UserError(
                f"array '{name}/w' has shape {list(kernel.shape)}; expected [1, inputs, outputs]"
            )
        kernel = kernel[0]
    else:
        _check_rank(f"{name}/w", kernel, 2, "[inputs, outputs]")
    _check_rank(f"{name}/b", bias, 1, "[outputs]")
    return {"w": kernel, "b": bias}


def _check_rank(name: str, array: np.ndarray, rank: int, shape: str) -> None:
    if array.ndim != rank:
        raise UserError(
            f"array '{name}' has shape {list(array.shape)}, rank {array.ndim}; "
            f"expected rank {rank}, {shape}"
        )


# ---- the sizes ----


class _Expectation(NamedTuple):
    """The size that the rest of a rule demands of one layer; None: any number of columns."""

    name: str
    layer: Layer
    rows: int
    why_rows: str
    columns: int | None = None
    why_columns: str = ""

    def check(self) -> None:
        rows, columns = self.layer["w"].shape
        if rows != self.rows:
            raise UserError(
                f"array '{self.name}/w' takes {rows} inputs; expected {self.rows}: {self.why_rows}"
            )
        if self.columns is not None and columns != self.columns:
            raise UserError(
                f"array '{self.name}/w' yields {columns} outputs; expected {self.columns}: "
                f"{self.why_columns}"
            )


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


def _check_bias(name: str, layer: Layer) -> None:
    columns = _columns(layer)
    if layer["b"].shape != (columns,):
        raise UserError(
            f"array '{name}/b' has shape {list(layer['b'].shape)}; "
            f"expected [{columns}], one number for each output of '{name}/w'"
        )


def _expectations(eta: Mapping[str, Any]) -> Iterator[_Expectation]:
    hidden = _lstm_width(("trajectory_lstm",), eta["trajectory_lstm"])
    meta_hidden = _lstm_width(("meta_rnn", "lstm"), eta["meta_rnn"]["lstm"])
    predictions = _columns(eta["y_hat"])
    channels = _columns(eta["policy_net"][-1])
    from_trajectory = f"the trajectory LSTM's width is {hidden}"

    yield from _expect_feature_nets(eta, ())
    yield _expect(
        eta,
        ("trajectory_lstm",),
        _num_features(eta) + hidden,
        f"{_num_features(eta)} features + {hidden} hidden",
    )
    yield _expect(
        eta,
        ("gate",),
        meta_hidden,
        f"the meta-RNN's LSTM width is {meta_hidden}",
        hidden,
        from_trajectory,
    )
    yield _expect(eta, ("embedding",), hidden, from_trajectory, 1, "one number for each step")
    yield _expect(eta, ("y_hat",), hidden, from_trajectory)
    yield _expect(
        eta, ("z_hat",), hidden, from_trajectory, predictions, f"y_hat yields {predictions}"
    )
    yield from _expect_chain(
        eta,
        ("pi_hat_blocks",),
        hidden + channels,
        f"{hidden} of the trajectory LSTM + {channels} of policy_net",
    )
    width = _columns(eta["pi_hat_blocks"][-1])
    yield _expect(
        eta, ("pi_hat",), width, f"the last pi_hat block yields {width}", 1, "one logit per action"
    )
    yield from _expect_meta_rnn(eta, meta_hidden)


def _expect_meta_rnn(eta: Mapping[str, Any], hidden: int) -> Iterator[_Expectation]:
    meta_rnn = eta["meta_rnn"]
    yield from _expect_feature_nets(eta, ("meta_rnn",))
    features, y_width = _num_features(meta_rnn), _columns(meta_rnn["y_net"][-1])
    yield from _expect_chain(
        eta,
        ("meta_rnn", "input"),
        features + 1 + y_width,
        f"{features} features + 1 embedding + {y_width} of its y_net",
    )
    width = _columns(meta_rnn["input"][-1])
    yield _expect(eta, ("meta_rnn", "lstm"), width + hidden, f"{width} inputs + {hidden} hidden")


def _expect_feature_nets(
    eta: Mapping[str, Any], path: tuple[()] | tuple[str]
) -> Iterator[_Expectation]:
    """What the nets that read an agent's outputs must fit; the meta-RNN has its own set."""
    predictions = _columns(eta["y_hat"])
    for net in ("y_net", "z_net"):
        yield from _expect_chain(eta, (*path, net), predictions, f"y_hat yields {predictions}")
    z_width = _columns(_layers(eta, _PART_AT[*path, "z_net"])[-1])
    # Of each action: three policies, three values, whether it was taken, z and the target's z.
    why = f"7 numbers + z_net of two predictions, {z_width} each"
    yield from _expect_chain(eta, (*path, "policy_net"), 7 + 2 * z_width, why)


def _expect_chain(
    eta: Mapping[str, Any], path: tuple[str, ...], inputs: int, why: str
) -> Iterator[_Expectation]:
    """Layers that feed each other, from the given number of inputs on."""
    part = _PART_AT[path]
    layers = _layers(eta, part)
    for index, layer in enumerate(layers):
        if index:
            inputs = _columns(layers[index - 1])
            why = f"'{part.layer_name(index - 1)}/w' yields {inputs}"
        if part.kind is _Kind.BLOCKS:
            why_rows = f"twice {inputs}, each action beside the mean ({why})"
            yield _Expectation(part.layer_name(index), layer, 2 * inputs, why_rows)
        else:
            yield _Expectation(part.layer_name(index), layer, inputs, why)


def _expect(
    eta: Mapping[str, Any],
    path: tuple[str, ...],
    rows: int,
    why_rows: str,
    columns: int | None = None,
    why_columns: str = "",
) -> _Expectation:
    part = _PART_AT[path]
    (layer,) = _layers(eta, part)
    return _Expectation(part.layer_name(0), layer, rows, why_rows, columns, why_columns)


def _num_features(nets: Mapping[str, Any]) -> int:
    """Features of one step: 9 scalars, 4 embeddings of y, 10 of z, 2 of the policy."""
    y_width, z_width, channels = (
        _columns(nets[net][-1]) for net in ("y_net", "z_net", "policy_net")
    )
    return 9 + 4 * y_width + 10 * z_width + 2 * channels


def _lstm_width(path: tuple[str, ...], layer: Layer) -> int:
    columns = _columns(layer)
    if columns % 4:
        raise UserError(
            f"array '{_PART_AT[path].layer_name(0)}/w' yields {columns} outputs; "
            f"expected a multiple of 4, for the four gates of an LSTM"
        )
    return columns // 4


def _columns(layer: Layer) -> int:
    return int(layer["w"].shape[-1])


def _widths(layers: Sequence[Layer]) -> list[int]:
    return [_columns(layer) for layer in layers]


# ---- the file ----


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Says of which file an error speaks."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _read_file(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise UserError("is a folder; expected an npz file")
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise UserError(f"has {size:,} bytes; a rule has at most {_MAX_BYTES:,}")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UserError("there is no such file") from error
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}") from error


def _unpack(content: bytes) -> dict[str, np.ndarray]:
    if not content.startswith(b"PK"):
        raise UserError("is not an npz file (it does not start as a zip archive)")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_members(archive.infolist())
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            return {name: _decode_array(name, archive.read(members[name])) for name in members}
    except UserError:
        raise
    except _DAMAGE as error:
        raise UserError(f"is damaged or cut short: {str(error) or type(error).__name__}") from error


def _check_members(members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuses an archive before anything of it is unpacked."""
    names = [info.filename for info in members]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(f"holds {_listing(repeated)} more than once")
    for info in members:
        if not info.filename.endswith(".npy"):
            raise UserError(f"holds {info.filename!r}; expected only npy arrays")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(f"array {info.filename!r} is compressed in a way that npz never is")
    unpacked = sum(info.file_size for info in members)
    if unpacked > _MAX_BYTES:
        largest = max(members, key=lambda info: info.file_size)
        raise UserError(
            f"would unpack to {unpacked:,} bytes ({largest.filename!r} alone to "
            f"{largest.file_size:,}); a rule has at most {_MAX_BYTES:,}"
        )


def _decode_array(name: str, content: bytes) -> np.ndarray:
    """An array from npy bytes, read so that no header can make us unpickle or over-allocate."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise UserError(f"array '{name}' is in npy version {version}; expected 1.0 or 2.0")
    except UserError:
        raise
    except (ValueError, SyntaxError, TypeError) as error:
        raise UserError(f"array '{name}' has no readable npy header: {error}") from error
    if dtype.hasobject:
        raise UserError(f"array '{name}' holds pickled objects, which are never loaded")
    expected = math.prod(shape) * dtype.itemsize
    if len(content) - stream.tell() != expected:
        raise UserError(
            f"array '{name}' of shape {list(shape)} has {len(content) - stream.tell():,} bytes "
            f"of data; expected {expected:,}"
        )
    values = np.frombuffer(content, dtype, count=math.prod(shape), offset=stream.tell())
    return values.reshape(shape, order="F" if fortran_order else "C").copy()


def _pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    # Stored, not deflated: float weights hardly shrink, and zlib's output varies by version.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", _ZIP_EPOCH)
            info.create_system = 3  # else it tells the operating system
            info.external_attr = 0o644 << 16
            archive.writestr(info, content.getvalue())
    return buffer.getvalue()


def _encode_metadata(metadata: Mapping[str, Any]) -> np.ndarray:
    try:
        text = json.dumps(dict(metadata), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"metadata cannot be written as JSON: {error}") from error
    return np.frombuffer(text.encode(), np.uint8)


def _decode_metadata(array: np.ndarray | None) -> dict[str, Any]:
    if array is None:
        return {}
    if array.dtype != np.uint8 or array.ndim != 1:
        raise UserError(
            f"array '{_METADATA}' is {array.dtype} of rank {array.ndim}; "
            f"expected uint8 of rank 1, the bytes of a JSON text"
        )
    try:
        metadata = json.loads(array.tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"array '{_METADATA}' is not JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise UserError(f"array '{_METADATA}' is not a JSON object but {metadata!r:.40}")
    return metadata
