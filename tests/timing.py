"""Tables of metrics without the time they took, which alone differs between two equal runs."""

import numpy as np

from discorl.runs.metrics import SPEED, WALL_TIME
from discorl.runs.tables import MetricsFile


def untimed(columns):
    return {name: column for name, column in columns.items() if name not in (WALL_TIME, SPEED)}


def assert_same_tables(one, two):
    """Two CSV files are the same to the letter, time apart; and time never goes back."""
    found, expected = (MetricsFile(path).columns() for path in (one, two))
    assert list(found) == list(expected)
    for name, column in untimed(found).items():
        np.testing.assert_array_equal(column, expected[name], err_msg=name)
    for columns in (found, expected):
        assert (np.diff(columns[WALL_TIME]) >= 0).all()
        assert columns[WALL_TIME][-1] > 0
