"""A bounded in-memory history of the rows of a table."""

from collections.abc import Sequence

import numpy as np

from discorl.runs.metrics import Row, merge

MOST_ROWS = 2**14
_LEAST_POINTS = 512  # of a curve, for any number of seeds


class History:
    """Rows in order, merged with their neighbours once there are too many.

    When the history is full, rows are merged in pairs, so that each covers twice as many updates.
    The history depends only on the rows, so a resumed run that reads them back has the same history
    as one that never stopped.
    """

    def __init__(self, width: int = 1) -> None:
        """Starts empty; each update adds `width` rows, such as one per seed."""
        self._width = width
        points = max(_LEAST_POINTS, MOST_ROWS // width)
        self._most = points - points % 2  # points; even, to be merged in pairs
        self._stride = 1  # logged updates per point
        self._names: list[str] = []
        self._whole: set[str] = set()  # columns of integers
        self._points: list[np.ndarray] = []  # [width, columns] each
        self._pending: list[Row] = []  # not yet enough for a point

    def extend(self, rows: Sequence[Row]) -> None:
        if rows and not self._names:
            self._names = list(rows[0])
            self._whole = set(self._names)
        for row in rows:
            self._whole -= {n for n, x in row.items() if not isinstance(x, int | np.integer)}
        self._pending += rows
        while len(self._pending) >= (block := self._stride * self._width):
            self._points.append(self._merged(self._pending[:block]))
            del self._pending[:block]
            if len(self._points) == self._most:
                pairs = np.stack(self._points).reshape(-1, 2, self._width, len(self._names))
                self._points = list(self._merge(pairs))
                self._stride *= 2

    def columns(self, *names: str) -> dict[str, np.ndarray]:
        """The rows as columns, or some of these; {} if there are no rows."""
        if not self._names:
            return {}
        newest = [self._merged(self._pending)] if self._pending else []
        chosen = names or tuple(self._names)
        places = [self._names.index(name) for name in chosen]
        values = np.concatenate([point[:, places] for point in [*self._points, *newest]])
        return {
            name: values[:, i].astype(np.int64) if name in self._whole else values[:, i].copy()
            for i, name in enumerate(chosen)
        }

    def _merged(self, rows: Sequence[Row]) -> np.ndarray:
        """Rows of neighbouring updates as one point: [width, columns]."""
        table = np.array([[float(row[name]) for name in self._names] for row in rows])
        return self._merge(table.reshape(1, -1, self._width, len(self._names)))[0]

    def _merge(self, table: np.ndarray) -> np.ndarray:
        """[points, merged, width, columns] to [points, width, columns]."""
        columns = {name: table[..., i].swapaxes(1, 2) for i, name in enumerate(self._names)}
        merged = merge(columns, self._whole)
        return np.stack([merged[name] for name in self._names], axis=-1)
