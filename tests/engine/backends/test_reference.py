"""The reference itself, on cases small enough to work out by hand."""

import numpy as np
import pytest

from engine.backends.reference import paged_attention
from engine.batch import BLOCK
from tests.engine.backends.batches import Work, make_batch

LOG_2 = np.log(2)


def pools(blocks: int, kv_heads: int = 1, head_dim: int = 1) -> tuple[np.ndarray, np.ndarray]:
    shape = (blocks, BLOCK, kv_heads, head_dim)
    return np.full(shape, np.nan), np.full(shape, np.nan)


def test_one_key_returns_its_value():
    keys, values = pools(2)
    keys[1, 0], values[1, 0] = 3.0, 7.0
    batch = make_batch([Work([1], 0, [0])])
    assert paged_attention(batch, np.ones((1, 1, 1)), keys, values) == pytest.approx(7.0)


def test_two_keys_are_mixed_by_softmax_of_their_scores():
    keys, values = pools(1)
    keys[0, :2, 0, 0] = 0.0, LOG_2  # with query 1: weights 1 and 2
    values[0, :2, 0, 0] = 0.0, 3.0
    batch = make_batch([Work([0], 1, [0])])
    assert paged_attention(batch, np.ones((1, 1, 1)), keys, values) == pytest.approx(2.0)


def test_scores_are_scaled_by_the_root_of_the_head_size():
    keys, values = pools(1, head_dim=4)
    keys[0, 0], keys[0, 1] = 0.0, LOG_2 / 2  # dot product 2 log 2, scaled log 2
    values[0, 0], values[0, 1] = 0.0, 3.0
    batch = make_batch([Work([0], 1, [0])])
    assert paged_attention(batch, np.ones((1, 1, 4)), keys, values) == pytest.approx(2.0)


def test_queries_are_the_last_positions_of_their_kv():
    keys, values = pools(1)
    keys[0, :4] = 0.0
    values[0, :4, 0, 0] = 0.0, 2.0, 4.0, 6.0
    batch = make_batch([Work([0], 2, [0, 0])])  # positions 2 and 3 of 4
    out = paged_attention(batch, np.ones((2, 1, 1)), keys, values)
    assert out.ravel() == pytest.approx([2.0, 3.0])


@pytest.mark.parametrize(("window", "seen"), [(1, [4, 6]), (2, [3, 5]), (3, [2, 4]), (9, [2, 3])])
def test_a_window_counts_the_query_itself(window: int, seen: list[float]):
    keys, values = pools(1)
    keys[0, :4] = 0.0
    values[0, :4, 0, 0] = 0.0, 2.0, 4.0, 6.0
    batch = make_batch([Work([0], 2, [0, 0])])  # positions 2 and 3 of 4
    out = paged_attention(batch, np.ones((2, 1, 1)), keys, values, window)
    assert out.ravel() == pytest.approx(seen)


def test_the_block_table_says_where_positions_live():
    keys, values = pools(3)
    keys[[2, 0]] = 0.0
    values[2], values[0] = 1.0, 0.0
    values[0, 0] = 18.0
    batch = make_batch([Work([2, 0], BLOCK, [0])])
    out = paged_attention(batch, np.ones((1, 1, 1)), keys, values)
    assert out == pytest.approx((BLOCK * 1.0 + 18.0) / (BLOCK + 1))


def test_heads_of_a_group_share_their_kv_head():
    keys, values = pools(1, kv_heads=2)
    keys[0, 0] = 0.0
    values[0, 0, :, 0] = 5.0, 9.0
    batch = make_batch([Work([0], 0, [0])])
    out = paged_attention(batch, np.ones((1, 4, 1)), keys, values)
    assert out.ravel() == pytest.approx([5.0, 5.0, 9.0, 9.0])
