"""A batch is split into decodes and chunks, and padded, without a number of it being lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.cuda.split import PagedRows, joined, padded, split
from engine.batch import BLOCK, Batch
from tests.engine.backends.batches import Work, make_batch

DUMMY = 1000


def batch_of(*rows: tuple[int, int]) -> Batch:
    """A batch with rows of (KV length, tokens), each in blocks of its own."""
    work, free = [], 0
    for kv_len, count in rows:
        blocks = -(-kv_len // BLOCK)
        table = [(7 * block) % 997 for block in range(free, free + blocks)]
        free += blocks
        work.append(Work(table, kv_len - count, [0] * count))
    return make_batch(work)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Rows of one token first, as the planner makes them; mostly."""
    kv_lens = draw(st.lists(st.integers(1, 70), min_size=1, max_size=9))
    counts = [draw(st.one_of(st.just(1), st.integers(1, kv_len))) for kv_len in kv_lens]
    rows = list(zip(kv_lens, counts, strict=True))
    if draw(st.booleans()):
        rows.sort(key=lambda row: row[1] > 1)
    return batch_of(*rows)


def assert_well_formed(rows: PagedRows) -> None:
    """What FlashInfer takes for granted, and does not check."""
    for array in (rows.qo_indptr, rows.kv_indptr, rows.kv_indices, rows.last_page_len):
        assert array.dtype == np.int32
        assert array.ndim == 1
        assert array.flags.c_contiguous
    assert len(rows.qo_indptr) == len(rows.kv_indptr) == rows.rows + 1 > 1
    for indptr in (rows.qo_indptr, rows.kv_indptr):
        assert indptr[0] == 0
        assert (np.diff(indptr) > 0).all()
    assert len(rows.kv_indices) == rows.kv_indptr[-1]
    assert rows.tokens == rows.qo_indptr[-1]
    assert ((rows.last_page_len >= 1) & (rows.last_page_len <= BLOCK)).all()
    assert (rows.kv_lens >= np.diff(rows.qo_indptr)).all()


def listed(rows: PagedRows | None) -> list[tuple[int, int, list[int]]]:
    """(tokens, KV length, blocks) of each row."""
    if rows is None:
        return []
    bounds = zip(rows.kv_indptr[:-1], rows.kv_indptr[1:], strict=True)
    tables = [rows.kv_indices[first:after].tolist() for first, after in bounds]
    return list(zip(np.diff(rows.qo_indptr).tolist(), rows.kv_lens.tolist(), tables, strict=True))


def rows_of(batch: Batch) -> list[tuple[int, int, list[int]]]:
    whole = PagedRows(batch.qo_indptr, batch.kv_indptr, batch.kv_indices, batch.last_page_len)
    return listed(whole)


@given(batches())
def test_both_parts_are_well_formed_and_together_the_batch(batch: Batch):
    parts = split(batch)
    for part in (parts.decodes, parts.chunks):
        if part is not None:
            assert_well_formed(part)
    assert listed(parts.decodes) + listed(parts.chunks) == rows_of(batch)
    assert parts.tokens == batch.tokens


@given(batches())
def test_decodes_are_the_rows_of_one_token_before_the_first_of_more(batch: Batch):
    parts = split(batch)
    counts = [count for count, _, _ in rows_of(batch)]
    first = next((i for i, count in enumerate(counts) if count > 1), len(counts))
    assert parts.decode_tokens == first
    assert len(listed(parts.decodes)) == first


@given(batches())
def test_parts_can_be_joined_again(batch: Batch):
    whole = joined(split(batch))
    assert whole is not None
    assert_well_formed(whole)
    assert listed(whole) == rows_of(batch)


@given(batches(), st.integers(0, 5))
def test_padding_is_rows_of_one_token_in_the_dummy_block(batch: Batch, more: int):
    decodes = split(batch).decodes
    if decodes is None:
        return
    filled = padded(decodes, decodes.rows + more, DUMMY)
    assert_well_formed(filled)
    assert filled.rows == filled.tokens == decodes.rows + more
    assert listed(filled) == listed(decodes) + [(1, 1, [DUMMY])] * more


@given(batches())
def test_a_split_leaves_the_batch_as_it_was(batch: Batch):
    before = rows_of(batch)
    parts = split(batch)
    if parts.decodes is not None:
        padded(parts.decodes, parts.decodes.rows + 3, DUMMY)
    joined(parts)
    assert rows_of(batch) == before


def test_a_batch_without_rows_has_no_parts():
    parts = split(make_batch([]))
    assert parts.decodes is None
    assert parts.chunks is None
    assert parts.decode_tokens == parts.tokens == 0
    assert joined(parts) is None


def test_a_row_of_one_token_behind_a_chunk_stays_there():
    parts = split(batch_of((5, 1), (40, 20), (17, 1)))
    assert listed(parts.decodes) == [(1, 5, [0])]
    assert [(count, kv_len) for count, kv_len, _ in listed(parts.chunks)] == [(20, 40), (1, 17)]


def test_more_decodes_than_the_bucket_has_are_refused():
    decodes = split(batch_of((5, 1), (6, 1))).decodes
    assert decodes is not None
    with pytest.raises(ValueError, match="2 decodes do not fit into a bucket of 1"):
        padded(decodes, 1, DUMMY)
