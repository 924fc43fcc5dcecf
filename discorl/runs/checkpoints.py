"""Saves any pytree of arrays to one npz file and restores it bit for bit, without pickle.

The file is an ordinary uncompressed npz (`numpy.load` opens it) with one array per leaf, named by
the leaf's path in the tree. PRNG keys and types that numpy does not know, such as bfloat16, are
stored as unsigned integers; `manifest.json` records the JAX type of each array. Arrays are written
one at a time, so saving does not need memory for a second tree. discorl has its own format because
each array has a checksum: one flipped bit is an error that names the array.
"""

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discorl.runs import npz
from discorl.runs.files import open_regular, write_atomically
from discorl.types import PyTree, UserError

_MANIFEST = "manifest.json"
_FORMAT = 1
_SCALAR_DTYPES = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}


class DamagedCheckpoint(UserError):
    """A checkpoint file that is missing, truncated, corrupt or not a checkpoint."""


class _Spec(NamedTuple):
    """The type of a leaf, and how the file stores it."""

    type: str  # in JAX or Python: "float32[3,4]", "bfloat16[]", "key<fry>[2]", "int[]"
    dtype: np.dtype  # stored
    shape: tuple[int, ...]  # stored


def save(path: str | os.PathLike[str], tree: PyTree, parts: Sequence[str] = ()) -> None:
    """Writes a tree of jax or numpy arrays, PRNG keys and Python numbers to a file, atomically.

    `parts` names complete files in the same folder that hold the rest of the tree.
    """
    leaves, _ = _named_leaves(tree)
    specs = {name: _spec(name, leaf) for name, leaf in leaves.items()}

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            arrays = {name: spec.type for name, spec in specs.items()}
            manifest = {"format": _FORMAT, "arrays": arrays, "parts": list(parts)}
            archive.writestr(zipfile.ZipInfo(_MANIFEST), json.dumps(manifest, indent=1))
            for name, leaf in leaves.items():
                npz.add_array(archive, name, _to_stored(name, leaf, specs[name]))

    write_atomically(path, write)


def restore(
    path: str | os.PathLike[str], template: PyTree, part: str = "", *, some: bool = False
) -> PyTree:
    """Reads a tree, or a part of it, with the template's structure.

    The template has the structure of the saved tree; its leaves may be `jax.ShapeDtypeStruct`. A
    leaf is restored as the template's kind: numpy array, Python number, or else jax array, on the
    template's device if that is committed. `part` is the path of a subtree, such as
    `.learner.params`, that the template describes; nothing else is read. With `some`, the template
    may lack arrays that the file has.

    Raises:
        DamagedCheckpoint: the file cannot be read completely.
        UserError: the file is intact, but its tree differs from the template.
    """
    path = Path(path)
    leaves, structure = _named_leaves(template, part)
    specs = {name: _spec(name, leaf) for name, leaf in leaves.items()}
    with contextlib.ExitStack() as stack:
        with _damage_reported(path):
            archives, found = _open_all(path, stack)
        if part:
            within = (part + "[", part + ".")
            found = {n: x for n, x in found.items() if n == part or n.startswith(within)}
        if some:
            found = {name: spec for name, spec in found.items() if name in specs}
        expected = {name: spec.type for name, spec in specs.items()}
        for name in [*expected, *found]:
            has, wants = (of.get(name, "no such array") for of in (found, expected))
            if has != wants:
                raise UserError(f"checkpoint {path}, array {name}: found {has}, expected {wants}")
        restored = []
        for name, leaf in leaves.items():
            with _damage_reported(path):
                stored, spec = npz.read_array(archives[name], name), specs[name]
                if (stored.dtype.name, stored.shape) != (spec.dtype.name, spec.shape):
                    raise ValueError(f"array {name} does not match the manifest")
            restored.append(_to_leaf(path, name, stored, leaf))
    return jax.tree_util.tree_unflatten(structure, restored)


def _named_leaves(tree: PyTree, prefix: str = "") -> tuple[dict[str, Any], jax.tree_util.PyTreeDef]:
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = {prefix + jax.tree_util.keystr(path) or "leaf": leaf for path, leaf in leaves}
    if len(named) != len(leaves):
        raise ValueError("two leaves of the tree have the same path; give its keys distinct reprs")
    return named, structure


def _spec(name: str, leaf: Any) -> _Spec:
    if type(leaf) in _SCALAR_DTYPES:
        return _Spec(f"{type(leaf).__name__}[]", _SCALAR_DTYPES[type(leaf)], ())
    if not (hasattr(leaf, "dtype") and hasattr(leaf, "shape")):
        raise TypeError(f"{name} is a {type(leaf).__name__}; expected an array, a key or a number")
    sizes = f"[{','.join(map(str, leaf.shape))}]"
    if _is_key(leaf):
        data = jax.eval_shape(jax.random.key_data, leaf)
        return _Spec(f"{leaf.dtype}{sizes}", np.dtype(data.dtype), data.shape)
    dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape)
    if _is_foreign(dtype):
        return _Spec(dtype.name + sizes, np.dtype(f"u{dtype.itemsize}"), shape)
    if dtype.hasobject or dtype.kind == "V":
        raise TypeError(f"{name} has dtype {dtype}; expected numbers, text or dates")
    return _Spec(dtype.name + sizes, dtype, shape)


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_foreign(dtype: np.dtype) -> bool:
    """Whether ml_dtypes added a dtype to numpy; npy headers cannot name it."""
    return dtype.isbuiltin == 2


def _open_all(
    path: Path, stack: contextlib.ExitStack
) -> tuple[dict[str, zipfile.ZipFile], dict[str, str]]:
    """The archive that holds each array, the file or one of its parts, and each array's type."""
    archives: dict[str, zipfile.ZipFile] = {}
    found: dict[str, str] = {}
    names = [path.name]
    for name in names:
        file = stack.enter_context(open_regular(path.with_name(name)))
        archive = stack.enter_context(zipfile.ZipFile(file))
        _check_members(archive, os.fstat(file.fileno()).st_size)
        arrays, parts = _read_manifest(archive)
        if name == path.name:
            names += parts
        found = arrays | found
        archives = dict.fromkeys(arrays, archive) | archives
    return archives, found


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
    """Rejects files that would unpack to more than their size; ours are not compressed."""
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise ValueError(f"{info.filename} is compressed")
    if sum(info.file_size for info in archive.infolist()) > size:
        raise ValueError("its arrays overlap")


def _read_manifest(archive: zipfile.ZipFile) -> tuple[dict[str, str], list[str]]:
    """The types of a file's arrays, and the names of its parts."""
    manifest = json.loads(archive.read(_MANIFEST))
    if manifest["format"] != _FORMAT:
        raise ValueError(f"format {manifest['format']}, this version reads {_FORMAT}")
    parts = [Path(str(part)).name for part in manifest.get("parts", ())]
    return {str(name): str(spec) for name, spec in manifest["arrays"].items()}, parts


def _to_stored(name: str, leaf: Any, spec: _Spec) -> np.ndarray:
    if type(leaf) in _SCALAR_DTYPES:
        return np.asarray(leaf, spec.dtype)
    if isinstance(leaf, jax.Array):
        leaf = _without_cache(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    elif not isinstance(leaf, np.ndarray | np.generic):
        raise TypeError(f"{name} is a {type(leaf).__name__}, which holds no values to save")
    array = np.asarray(leaf)
    return array.view(spec.dtype) if _is_foreign(array.dtype) else array


def _without_cache(array: jax.Array) -> jax.Array:
    """Moves the array to the CPU, where numpy can view it without a copy.

    `numpy.asarray` of an accelerator's array caches a copy on the host for as long as the array
    lives. The copy made here is freed with the result.
    """
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX runs without a CPU backend
        return array
    return jax.device_put(array, cpu)


@contextlib.contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # the parsers of zip, npy and JSON fail in countless ways
        raise DamagedCheckpoint(f"checkpoint {path} cannot be read: {error}") from error


def _to_leaf(path: Path, name: str, stored: np.ndarray, like: Any) -> Any:
    if type(like) in _SCALAR_DTYPES:
        return type(like)(stored.item())
    if _is_key(like):
        keys = jax.random.wrap_key_data(jnp.asarray(stored), impl=_key_implementation(like))
        return jax.device_put(keys, _placement(like))
    array = stored.view(like.dtype) if _is_foreign(np.dtype(like.dtype)) else stored
    if isinstance(like, np.ndarray):
        return array
    if isinstance(like, np.generic):
        return array[()]
    result = jax.device_put(array, _placement(like))
    if result.dtype != like.dtype:
        raise UserError(
            f"checkpoint {path}, array {name}: found {array.dtype}, but JAX now makes it "
            f"{result.dtype}; run with JAX_ENABLE_X64=1 as when it was saved"
        )
    if not getattr(like, "weak_type", False):
        return result
    # A strong type would promote differently and make every jit recompile.
    weak = jnp.full(array.shape, array.dtype.type(0).item())
    if weak.dtype != like.dtype:
        return result
    return jax.device_put(weak.at[...].set(result), _placement(like))


def _placement(like: Any) -> jax.sharding.Sharding | None:
    """The template's sharding; None if the template is uncommitted."""
    return like.sharding if getattr(like, "committed", True) else None


def _key_implementation(keys: Any) -> Any:
    """The PRNG of keys; for a `ShapeDtypeStruct`, it is only known while tracing."""
    found: list[Any] = []
    jax.eval_shape(lambda traced: found.append(jax.random.key_impl(traced)), keys)
    return found[0]
