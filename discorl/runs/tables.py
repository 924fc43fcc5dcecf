"""Tables of numbers in CSV files that grow by whole lines.

discorl has its own because a resume cuts a table back to its checkpoint and notices edits.
"""

import contextlib
import csv
import hashlib
import io
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from discorl.runs.files import open_regular, open_to_append, read_errors_reported
from discorl.runs.manifest import Prefix
from discorl.runs.metrics import STEP, Row
from discorl.types import UserError

_LONGEST_LINE = 1 << 20  # bytes
_CHUNK = 4096  # rows
_COUNTS = ("update", "seed", STEP)  # columns of whole numbers


class MetricsFile:
    """A CSV file of numbers; its first line names the columns, one of which is "update".

    Rows are in the order of their updates, so going back to an update truncates the file. Only
    `columns` needs memory in proportion to the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: list[str] = []
        self._digest: Any = None  # of all bytes; None: not known yet
        self._size = 0
        self.next_step = 0  # after the last row, in environment steps or else updates

    def append(self, rows: Sequence[Row]) -> None:
        """Adds rows, which must have the columns of the first one."""
        if not rows:
            return
        self._look()
        names = self._names or list(rows[0])
        for row in rows:
            self._check_columns(row, names)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._names:
            writer.writerow(names)
        writer.writerows([_cell(row[name]) for name in names] for row in rows)
        content = text.getvalue().encode()
        try:
            with open_to_append(self._path) as file:
                file.write(content)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.truncate(self._path, self._size)  # remove a partial line
            raise
        self._digest.update(content)
        self._size += len(content)
        self._names = names
        self.next_step = max(
            self.next_step, *(int(row.get(STEP, row["update"])) + 1 for row in rows)
        )

    def sync(self) -> None:
        """Syncs the rows to disk."""
        if self._path.exists():
            with open_regular(self._path) as file:
                os.fsync(file.fileno())

    def prefix(self) -> Prefix | None:
        """Size and checksum of the rows so far; None if there is no file."""
        self._look()
        return Prefix(self._size, self._digest.hexdigest()) if self._path.exists() else None

    def cut(self, update: float) -> None:
        """Drops the rows after an update, and the partial line of a killed writer.

        -inf also drops the header.
        """
        self._scan(update)
        if self._path.exists() and self._path.stat().st_size != self._size:
            os.truncate(self._path, self._size)

    def columns(self) -> dict[str, np.ndarray]:
        """All rows as columns, int64 where every value is whole, else float64."""
        chunks = list(self.chunks())
        if not chunks:
            return {}
        return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}

    def chunks(self) -> Iterator[dict[str, np.ndarray]]:
        """The rows as columns, a few thousand at a time; one empty chunk for an empty table."""
        with self._lines() as lines:
            names = _names_of(self._path, next(lines, b""))
            if not names:
                return
            number = 2
            while True:
                rows = [
                    _cells(self._path, number + i, line, len(names))
                    for i, line in enumerate(itertools.islice(lines, _CHUNK))
                ]
                if rows or number == 2:
                    cells = zip(*rows, strict=True) if rows else ((),) * len(names)
                    yield {
                        name: (_counts if name in _COUNTS else _numbers)(self._path, number, column)
                        for name, column in zip(names, cells, strict=True)
                    }
                if len(rows) < _CHUNK:
                    return
                number += len(rows)

    def _check_columns(self, row: Row, names: Sequence[str]) -> None:
        if "update" not in row:
            raise UserError(f"{self._path}: a row has no column 'update', only {sorted(row)}")
        new, missing = set(row) - set(names), set(names) - set(row)
        if new or missing:
            raise UserError(
                f"{self._path}: its columns are fixed by its first row; "
                f"new: {sorted(new)}, missing: {sorted(missing)}"
            )

    def _look(self) -> None:
        if self._digest is None:
            self._scan(math.inf)

    def _scan(self, update: float) -> None:
        """Reads the lines up to an update, and records what `append` needs."""
        digest, size, names, step = hashlib.sha256(), 0, [], 0
        with self._lines() as lines:
            for number, line in enumerate(lines, 1):
                if number == 1:
                    names = _names_of(self._path, line)
                    if update == -math.inf:
                        names = []
                        break
                    along = names.index(STEP if STEP in names else "update")
                    at = names.index("update")
                else:
                    cells = _cells(self._path, number, line, len(names))
                    if _whole(self._path, number, cells[at]) > update:
                        break
                    step = max(step, _whole(self._path, number, cells[along]) + 1)
                digest.update(line)
                size += len(line)
        self._digest, self._size, self._names, self.next_step = digest, size, names, step

    @contextlib.contextmanager
    def _lines(self) -> Iterator[Iterator[bytes]]:
        """The complete lines; a killed writer may have left a partial one at the end."""
        if not self._path.exists():
            yield iter(())
            return
        with read_errors_reported(self._path), open_regular(self._path) as file:
            yield _whole_lines(self._path, file)


def _whole_lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(_LONGEST_LINE):
        if line.endswith(b"\n"):
            yield line
        elif len(line) == _LONGEST_LINE:
            raise UserError(
                f"{path}: is not a table: it has a line of more than {len(line):,} bytes"
            )


def _names_of(path: Path, line: bytes) -> list[str]:
    """The names of columns in the first line."""
    if not line:
        return []
    try:
        names = next(csv.reader([line.decode("utf-8")]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}, line 1: is not a list of columns: {error}") from error
    if "update" not in names or len(set(names)) < len(names):
        raise UserError(f"{path}, line 1: expected different columns, among them 'update'")
    return names


def _cells(path: Path, number: int, line: bytes, count: int) -> list[bytes]:
    cells = line.rstrip(b"\r\n").split(b",")
    if len(cells) != count:
        raise UserError(f"{path}, line {number}: has {len(cells)} cells; expected {count}")
    return cells


def _whole(path: Path, number: int, cell: bytes) -> int:
    with contextlib.suppress(ValueError):
        if abs(value := int(cell)) < 1 << 63:
            return value
    raise UserError(f"{path}, line {number}: {cell!r:.40} is not a 64-bit integer")


def _counts(path: Path, number: int, cells: Sequence[bytes]) -> np.ndarray:
    """A column of whole numbers that starts at line `number`."""
    return np.array([_whole(path, number + i, cell) for i, cell in enumerate(cells)], np.int64)


def _numbers(path: Path, number: int, cells: Sequence[bytes]) -> np.ndarray:
    """A column that starts at line `number`."""
    with contextlib.suppress(ValueError, OverflowError):
        return np.array([int(cell) for cell in cells], np.int64)
    values = np.empty(len(cells))
    for i, cell in enumerate(cells):
        try:
            values[i] = float(cell or b"nan")
        except ValueError:
            line = number + i
            raise UserError(f"{path}, line {line}: {cell!r:.40} is not a number") from None
    return values


def _cell(value: Any) -> str:
    number = np.asarray(value).item()
    if isinstance(number, int):
        return str(int(number))  # True as 1
    return "" if math.isnan(number) else repr(float(number))
