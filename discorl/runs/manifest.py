"""Checksums of a run directory, so that a resume notices changes."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from discorl.runs.files import open_regular, read_errors_reported, sha256_of, write_bytes
from discorl.runs.schemas import Each, read_json

NAME = "manifest.json"
_SCHEMA = {
    "files": Each(str),
    "tables": Each({"bytes": int, "sha256": str}),
    "checkpoint": (int, type(None)),
    "finite_checkpoint": (int, type(None)),
}
_CHUNK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Prefix:
    """The first bytes of a growing file."""

    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Checksums of the files that a run depends on."""

    files: Mapping[str, str]  # sha256 by name: the configuration, copies of rules
    tables: Mapping[str, Prefix] = dataclasses.field(default_factory=dict)  # at the checkpoint
    checkpoint: int | None = None  # update of the newest
    finite_checkpoint: int | None = None  # update of the newest whose parameters are all finite

    @classmethod
    def read(cls, folder: Path) -> Self:
        found = read_json(folder / NAME, _SCHEMA)
        tables = {name: Prefix(**prefix) for name, prefix in found["tables"].items()}
        return cls(found["files"], tables, found["checkpoint"], found["finite_checkpoint"])

    def write(self, folder: Path) -> None:
        write_bytes(folder / NAME, json.dumps(dataclasses.asdict(self), indent=1).encode())

    def changes(self, folder: Path, checkpoints: Sequence[int]) -> list[str]:
        """Describes the differences from the manifest, given the updates with a checkpoint."""
        found = []
        for name, expected in self.files.items():
            if not (folder / name).exists():
                found.append(f"{name} is missing")
            elif sha256_of(folder / name) != expected:
                found.append(f"{name} has changed")
        for name, prefix in self.tables.items():
            if _sha256_of_start(folder / name, prefix.bytes) != prefix.sha256:
                found.append(f"{name} has changed, up to update {self.checkpoint}")
        if self.checkpoint is not None and (checkpoints or [-1])[-1] < self.checkpoint:
            found.append(f"the checkpoint of update {self.checkpoint} is missing")
        return found


def _sha256_of_start(path: Path, size: int) -> str | None:
    """The SHA-256 of the first bytes of a file; None if it is shorter."""
    if not path.exists():
        return None
    digest = hashlib.sha256()
    with read_errors_reported(path), open_regular(path) as file:
        while size:
            piece = file.read(min(size, _CHUNK))
            if not piece:
                return None
            digest.update(piece)
            size -= len(piece)
    return digest.hexdigest()
