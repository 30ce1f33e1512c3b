"""Decodes in a graph: planned before each replay, padded, over buffers that all buckets share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support.cpu_device import CPUGraph
from torch import Tensor

from engine.backends.cuda.split import PagedRows, padded, split
from engine.batch import BLOCK, Batch
from tests.engine.backends.batches import Work, make_batch
from tests.engine.backends.cuda.attended import (
    BLOCKS,
    DUMMY,
    Attended,
    assert_close,
    attended,
    seen,
)

MOST_BLOCKS = 60


class Bucket:
    """A graph of one layer's attention, as the backend captures it: queries and results stay."""

    def __init__(
        self, house: Attended, rows: int, window: int | None = None, most_blocks: int = MOST_BLOCKS
    ) -> None:
        self.house, self.rows, self.window = house, rows, window
        self.attention = house.attention.graph(rows, most_blocks)
        self.queries, self.out = house.queries(rows), torch.zeros(house.queries(rows).shape)
        self.attention.plan(padded(decodes_of([]), rows, DUMMY))
        self.graph: CPUGraph = house.device.capture(self.work)

    def work(self) -> None:
        self.out.copy_(self.attention.run(0, self.queries, self.window))

    def replay(self, batch: Batch, queries: Tensor) -> np.ndarray:
        self.attention.plan(padded(decodes_of(batch), self.rows, DUMMY))
        return self.replay_unplanned(queries)

    def replay_unplanned(self, queries: Tensor) -> np.ndarray:
        self.queries[: len(queries)] = queries
        self.graph.replay()
        return self.out[: len(queries)].numpy().copy()


def decodes_of(batch: Batch | Sequence[Work]) -> PagedRows:
    """The decodes of a batch; none of an empty one."""
    if not isinstance(batch, Batch):
        none, indptr = np.zeros(0, np.int32), np.zeros(1, np.int32)
        return PagedRows(indptr, indptr, none, none)
    decodes = split(batch).decodes
    assert decodes is not None
    return decodes


def decodes(*kv_lens: int, first: int = 0) -> Batch:
    """A decode of each KV length, in blocks that depend on its place only."""
    tables = [range(first + 10 * place, BLOCKS) for place in range(len(kv_lens))]
    return make_batch(
        [Work(list(table), n - 1, [0]) for table, n in zip(tables, kv_lens, strict=True)]
    )


@pytest.mark.parametrize("window", [None, 20])
def test_a_graph_follows_kv_that_grows(window: int | None):
    house = attended(windows=(window,))
    bucket = Bucket(house, 4, window)
    for grown in range(2 * BLOCK + 2):
        batch = decodes(1 + grown, 15 + grown, 40 + grown)
        queries = house.queries(3, seed=grown)
        expected = house.expected(batch, queries, window)
        assert_close(bucket.replay(batch, queries), expected)


def test_a_replay_that_was_not_planned_is_wrong():
    house = attended()
    bucket = Bucket(house, 2)
    queries = house.queries(2)
    short, long = decodes(12, 40), decodes(13, 41)
    bucket.replay(short, queries)
    found = bucket.replay_unplanned(queries)
    assert_close(found, house.expected(short, queries))
    assert not np.allclose(found, house.expected(long, queries), atol=1e-3)


def test_padding_reads_nothing_but_the_dummy_block():
    house = attended()
    bucket = Bucket(house, 8)
    batch = decodes(12, 40)
    mine = seen(batch, None)
    mine[DUMMY, 0] = True
    for pool in (house.keys, house.values):
        pool[:, torch.from_numpy(~mine)] = torch.nan
    queries = house.queries(2)
    assert_close(bucket.replay(batch, queries), house.expected(batch, queries))
    assert torch.isfinite(bucket.out).all()


def test_buckets_take_turns_over_the_same_buffers():
    house = attended()
    buckets = {rows: Bucket(house, rows) for rows in (8, 4, 2, 1)}
    addresses = _buffer_addresses(house)
    assert {len(set(each)) for each in addresses.values()} == {1}
    rng = np.random.default_rng(0)
    for turn in range(20):
        rows = int(rng.integers(1, 9))
        batch = decodes(*rng.integers(1, 100, size=rows).tolist(), first=turn)
        queries = house.queries(rows, seed=turn)
        bucket = buckets[min(size for size in buckets if size >= rows)]
        assert_close(bucket.replay(batch, queries), house.expected(batch, queries))


def test_a_graph_of_more_blocks_than_those_before_it_has_room_for_them():
    house = attended()
    small, large = Bucket(house, 1, most_blocks=2), Bucket(house, 2, most_blocks=20)
    few, many = decodes(20), decodes(90, 100)
    for _ in range(2):
        queries = house.queries(2)
        assert_close(large.replay(many, queries), house.expected(many, queries))
        assert_close(small.replay(few, queries[:1]), house.expected(few, queries[:1]))


def test_eager_steps_between_replays_change_nothing():
    house = attended()
    bucket = Bucket(house, 4)
    replayed, eager = decodes(30, 41), decodes(5, 17, 33, first=40)
    for seed in range(3):
        queries = house.queries(3, seed)
        assert_close(bucket.replay(replayed, queries[:2]), house.expected(replayed, queries[:2]))
        assert_close(house.step(eager, queries), house.expected(eager, queries))


def test_every_graph_awaits_its_own_plans_only():
    house = attended()
    one, two = Bucket(house, 1), Bucket(house, 2)
    plans = house.device.trace.count("plan")
    reached = house.device.reached
    two.attention.plan(padded(decodes_of([]), 2, DUMMY))
    assert house.device.trace.count("plan") == plans + 1
    assert reached < house.device.reached < len(house.device.trace)
    one.attention.plan(padded(decodes_of([]), 1, DUMMY))
    assert house.device.trace.count("record") == house.device.trace.count("plan")


def test_layers_of_different_windows_share_the_buffers_of_a_graph():
    house = attended(windows=(None, 9))
    graph = house.attention.graph(2, MOST_BLOCKS)
    batch, queries = decodes(30, 41), house.queries(2)
    graph.plan(decodes_of(batch))
    for window in (None, 9):
        found = graph.run(0, queries, window).numpy()
        assert_close(found, house.expected(batch, queries, window))
    assert {len(set(each)) for each in _buffer_addresses(house).values()} == {1}


def test_rows_and_blocks_that_are_not_those_of_the_graph_are_refused():
    graph = attended().attention.graph(2, 4)
    with pytest.raises(ValueError, match="3 rows for a graph of 2 decodes"):
        graph.plan(decodes_of(decodes(1, 1, 1)))
    with pytest.raises(ValueError, match="5 blocks for a graph of 4 at most"):
        graph.plan(decodes_of(decodes(40, 20)))


def test_a_chunk_has_no_place_in_a_graph():
    graph = attended().attention.graph(1, 4)
    chunk = split(make_batch([Work([3], 0, [0, 0])])).chunks
    assert chunk is not None
    with pytest.raises(ValueError, match="graph of 1 decodes"):
        graph.plan(chunk)


def test_a_bucket_that_the_workspace_was_not_made_for_is_refused():
    with pytest.raises(ValueError, match="a graph of 9 rows, where 8 are the most"):
        attended(most_rows=8).attention.graph(9, MOST_BLOCKS)


def _buffer_addresses(house: Attended) -> dict[str, list[int]]:
    """Where the buffers of the wrappers in graphs begin, by the name of the argument."""
    made = [call.kwargs for call in house.flashinfer.calls if call.method == "__init__"]
    names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
    return {name: [kwargs[name].data_ptr() for kwargs in made if name in kwargs] for name in names}
