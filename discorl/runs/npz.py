"""npz archives of named arrays: treated as untrusted when read, reproducible when written."""

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from discorl.runs.files import naming, read_bytes, write_bytes, write_errors_reported
from discorl.types import UserError

MAX_BYTES = 2**30  # limit of `read`, for the file and for its unpacked content
METADATA = "metadata"

_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that archives do not depend on the time
_UNIX = 3  # a fixed system, so that archives do not depend on the operating system
_LARGE = 2**30  # bytes of an array from which zip64 is forced; zipfile fails beyond 2 GiB otherwise


@dataclasses.dataclass(frozen=True)
class Archive:
    """The content of an npz file."""

    arrays: dict[str, np.ndarray]  # without `metadata`
    metadata: dict[str, Any]  # the JSON object in the array `metadata`; {} without one
    sha256: str  # of the file


def read(path: str | os.PathLike[str]) -> Archive:
    """Reads an untrusted file; nothing in it is ever executed.

    An array called `metadata` must be the bytes of a JSON object.
    """
    content = read_bytes(path, MAX_BYTES)
    with naming(path):
        if not content.startswith(b"PK"):
            raise UserError("is not an npz file (it does not start as a zip archive)")
        with _damage_reported(), zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_members(archive.infolist())
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            arrays = {name: read_array(archive, name) for name in names}
        metadata = _decode(arrays.pop(METADATA)) if METADATA in arrays else {}
    return Archive(arrays, metadata, hashlib.sha256(content).hexdigest())


def write(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes a file that `read` and numpy can read; if writing fails, an existing file is kept.

    The metadata are stored as the array `metadata`, a name that no other array may have.
    """
    members = dict(arrays)
    if metadata:
        try:
            text = json.dumps(dict(metadata), sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: metadata cannot be written as JSON: {error}") from error
        members[METADATA] = np.frombuffer(text.encode(), np.uint8)
    content = io.BytesIO()
    # Stored, not deflated: numbers hardly shrink, and zlib's output varies by version.
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, array in members.items():
            add_array(archive, name, array)
    with write_errors_reported(path):
        write_bytes(path, content.getbuffer())


def add_array(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    """Appends one array to an archive that is open for writing."""
    info = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
    info.create_system = _UNIX
    info.external_attr = 0o644 << 16
    with archive.open(info, "w", force_zip64=array.nbytes >= _LARGE) as member:
        in_order = np.asarray(array, order="C")  # files do not depend on the order in memory
        np.lib.format.write_array(member, in_order, allow_pickle=False)


def read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Reads one array of an archive; checks its header against its size before allocating."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        shape, dtype = _read_header(name, member)
        size, expected = info.file_size - member.tell(), math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise UserError(f"array '{name}' holds pickled objects, which are never loaded")
    if size != expected:
        raise UserError(
            f"array '{name}' of shape {list(shape)} has {size:,} bytes of data; "
            f"expected {expected:,}"
        )
    # Opened again, because newer versions of zipfile do not verify the checksum after a seek.
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


@contextlib.contextmanager
def _damage_reported() -> Iterator[None]:
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # the parsers of zip and npy fail in countless ways
        raise UserError(f"is damaged or cut short: {str(error) or type(error).__name__}") from error


def _check_members(members: Sequence[zipfile.ZipInfo]) -> None:
    """Rejects an archive before anything is unpacked."""
    seen = set()
    for info in members:
        if info.filename in seen:
            raise UserError(f"holds {info.filename!r} more than once")
        if not info.filename.endswith(".npy"):
            raise UserError(f"holds {info.filename!r}; expected only npy arrays")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(f"array {info.filename!r} has a compression that npz does not use")
        seen.add(info.filename)
    unpacked = sum(info.file_size for info in members)
    if unpacked > MAX_BYTES:
        largest = max(members, key=lambda info: info.file_size)
        raise UserError(
            f"would unpack to {unpacked:,} bytes ({largest.filename!r} alone to "
            f"{largest.file_size:,}); expected at most {MAX_BYTES:,}"
        )


def _read_header(name: str, member: Any) -> tuple[tuple[int, ...], np.dtype]:
    try:
        version = np.lib.format.read_magic(member)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(member)
        else:
            raise UserError(f"array '{name}' is in npy version {version}; expected 1.0 or 2.0")
    except (ValueError, SyntaxError, TypeError, LookupError) as error:
        raise UserError(f"array '{name}' has no readable npy header: {error}") from error
    return shape, dtype


def _decode(array: np.ndarray) -> dict[str, Any]:
    if array.dtype != np.uint8 or array.ndim != 1:
        raise UserError(
            f"array '{METADATA}' is {array.dtype} of rank {array.ndim}; "
            f"expected uint8 of rank 1, the bytes of a JSON text"
        )
    try:
        metadata = json.loads(array.tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"array '{METADATA}' is not JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise UserError(f"array '{METADATA}' is not a JSON object but {metadata!r:.40}")
    return metadata
