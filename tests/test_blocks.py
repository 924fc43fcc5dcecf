"""Blocks of agents over devices: who runs what, and that it makes no difference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discorl
from discorl.discovery import blocks


def test_a_group_is_split_into_blocks_and_the_last_may_be_smaller():
    assert blocks.split([5, 2], 2) == [
        blocks.Block(0, first=0, start=0, count=2),
        blocks.Block(0, first=2, start=2, count=2),
        blocks.Block(0, first=4, start=4, count=1),
        blocks.Block(1, first=0, start=5, count=2),
    ]
    assert [block.count for block in blocks.split([5, 2], 0)] == [5, 2]


def test_blocks_are_dealt_by_cost():
    assert blocks.deal([1, 1, 1, 3], 2) == [1, 1, 1, 0]
    assert blocks.deal([2, 2, 2], 3) == [0, 1, 2]
    assert blocks.deal([2, 2], 4) == [0, 1]


def test_rows_are_added_in_the_order_of_the_agents():
    # In any other order the ones would be lost to rounding, or the large numbers would not cancel.
    rows = jnp.array([[1e8, 1.0], [1.0, 1e8], [-1e8, -1e8], [1.0, 1.0], [1.0, 0.5]])
    expected = np.zeros(2, np.float32)
    for row in np.asarray(rows):
        expected = expected + row
    assert expected.tolist() == [2.0, 1.5]
    cut = blocks.split([5], 2)
    devices = [jax.devices()[0]] * len(cut)
    add = blocks.OrderedSum(cut, devices, devices)
    total = add({i: rows[block.agents] for i, block in enumerate(cut)}, rows[0])
    np.testing.assert_array_equal(total, expected)


def test_a_block_size_below_zero_is_refused():
    with pytest.raises(discorl.UserError, match="block_size is -1"):
        discorl.configure_discovery(block_size=-1)
