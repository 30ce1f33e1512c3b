"""Paged attention in Triton equals the float64 reference, whatever the batch and the types."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from support.cpu_device import CPUDevice
from support.interpreter import interpreted

from engine.backends import reference
from engine.backends.cuda import triton_attention
from engine.backends.cuda.kernels import chunk_attention, decode_attention
from engine.backends.cuda.split import padded, split
from engine.backends.cuda.triton_attention import TritonAttention
from engine.backends.cuda.warm_up import every_variant
from engine.backends.cuda.wrappers import Scales
from engine.batch import BLOCK, Batch
from tests.engine.backends.batches import Work, make_batch

BLOCKS = 60
DUMMY = BLOCKS - 1
KV_HEADS = 2
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Norm of a token's error over the norm of its attention, by the type of the queries."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few programs, since the interpreter is slow, and yet several shares of a short KV."""
    for name, value in {"BUSY": 1, "FEWEST": 2, "SHORTEST": 16}.items():
        monkeypatch.setattr(decode_attention, name, value)
    with interpreted():
        yield


@dataclass
class Case:
    """A batch over a random pool in which every slot that no query sees is NaN."""

    batch: Batch
    rng: np.random.Generator
    group: int = 2
    head_dim: int = 16
    window: int | None = None
    dtype: torch.dtype = torch.float32
    kept: torch.dtype = torch.float32
    scales: Scales | None = None

    def __post_init__(self) -> None:
        shape = BLOCKS, BLOCK, KV_HEADS, self.head_dim
        self.keys, self.values = self._pool(shape), self._pool(shape)
        self.layers = [(self.keys, self.values)]
        heads = KV_HEADS * self.group
        self.queries = self._random(self.batch.tokens, heads, self.head_dim).to(self.dtype)

    def _random(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.standard_normal(shape, dtype=np.float32))

    def _pool(self, shape: tuple[int, ...]) -> Tensor:
        pool = self._random(*shape)
        pool[torch.from_numpy(~seen(self.batch, self.window))] = torch.nan
        return pool.to(self.kept)

    def attention(self) -> TritonAttention:
        heads = self.queries.shape[1]
        return TritonAttention(CPUDevice(), self.layers, heads, scales=self.scales)

    def found(self) -> np.ndarray:
        attention = self.attention()
        attention.plan(split(self.batch))
        return attention.run(0, self.queries, self.window).float().numpy()

    def expected(self) -> np.ndarray:
        scales = self.scales or Scales()
        keys, values = self.keys.float() * scales.keys, self.values.float() * scales.values
        queries = self.queries.float().numpy()
        return reference.paged_attention(
            self.batch, queries, keys.numpy(), values.numpy(), self.window
        )

    def check(self) -> None:
        found, expected = self.found(), self.expected()
        off = np.linalg.norm(found - expected, axis=(1, 2))
        assert (off <= TOLERANCE[self.dtype] * np.linalg.norm(expected, axis=(1, 2))).all()


def seen(batch: Batch, window: int | None) -> np.ndarray:
    """Which slots [blocks, BLOCK] hold a token that a query of its row sees."""
    slots = np.zeros((BLOCKS, BLOCK), dtype=bool)
    for i, kv_len in enumerate(batch.kv_lens):
        table = batch.kv_indices[batch.kv_indptr[i] : batch.kv_indptr[i + 1]]
        first_query = kv_len - (batch.qo_indptr[i + 1] - batch.qo_indptr[i])
        for j in range(0 if window is None else max(first_query - window + 1, 0), kv_len):
            slots[table[j // BLOCK], j % BLOCK] = True
    return slots


def rows(rng: np.random.Generator, *lengths: tuple[int, int]) -> Batch:
    """Rows of (KV length, tokens) in permuted blocks, the last before the dummy among them."""
    ids = [DUMMY - 1, *rng.permutation(DUMMY - 1).tolist()]
    work = []
    for kv_len, count in lengths:
        table = [ids.pop(0) for _ in range(-(-kv_len // BLOCK))]
        work.append(Work(table, kv_len - count, [0] * count))
    return make_batch(work)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def test_decodes_at_and_around_block_borders(rng: np.random.Generator):
    lengths = [(kv_len, 1) for kv_len in (1, 2, 15, 16, 17, 32, 33, 200)]
    Case(rows(rng, *lengths), rng).check()


@pytest.mark.parametrize("count", [2, 15, 16, 17])
def test_a_chunk_sees_what_is_before_it_and_not_what_comes_after(
    rng: np.random.Generator, count: int
):
    Case(rows(rng, *[(before + count, count) for before in (0, 1, 16, 37)]), rng).check()


MIXED = (5, 1), (16, 1), (40, 1), (33, 20), (9, 9), (70, 3)


@pytest.mark.parametrize(("group", "head_dim"), [(1, 16), (3, 64), (4, 24), (8, 16)])
def test_mixed_rows_of_any_group_and_head_size(rng: np.random.Generator, group: int, head_dim: int):
    Case(rows(rng, *MIXED), rng, group, head_dim).check()


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8, 16])
def test_every_group_and_head_size(rng: np.random.Generator, group: int, head_dim: int):
    Case(rows(rng, *MIXED), rng, group, head_dim).check()


def test_a_group_that_fills_more_than_a_tile(rng: np.random.Generator):
    Case(rows(rng, (20, 1), (20, 3)), rng, group=40).check()


@pytest.mark.parametrize("window", [1, 15, 17, 500])
def test_a_window_hides_what_lies_before_it(rng: np.random.Generator, window: int):
    Case(rows(rng, *MIXED), rng, window=window).check()


@pytest.mark.parametrize(("most", "shortest"), [(1, 16), (2, 64), (8, 16), (8, 128)])
def test_shares_do_not_change_a_decode(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, most: int, shortest: int
):
    monkeypatch.setattr(decode_attention, "FEWEST", most)
    monkeypatch.setattr(decode_attention, "SHORTEST", shortest)
    Case(rows(rng, (1, 1), (129, 1), (300, 1)), rng).check()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_every_type_of_queries_over_every_type_of_pool(
    rng: np.random.Generator, dtype: torch.dtype, kept: torch.dtype
):
    scales = Scales(0.25, 3.0) if kept == torch.float8_e4m3fn else None
    Case(rows(rng, *MIXED), rng, 3, dtype=dtype, kept=kept, scales=scales).check()


def test_rows_that_share_blocks(rng: np.random.Generator):
    shared = [7, 3, 20]
    batch = make_batch(
        [
            Work([*shared, 1], 49, [0]),
            Work([*shared, 2], 63, [0]),
            Work([*shared, 4, 5], 48, [0] * 22),
        ]
    )
    Case(batch, rng).check()


@pytest.mark.parametrize(
    "seed", [pytest.param(i, marks=[pytest.mark.slow][: i >= 3]) for i in range(40)]
)
def test_random_batches(seed: int):
    rng = np.random.default_rng(seed)
    kv_lens = rng.integers(1, 100, size=rng.integers(1, 7)).tolist()
    lengths = [(n, 1 if rng.random() < 0.5 else int(rng.integers(1, n + 1))) for n in kv_lens]
    window = None if rng.random() < 0.5 else int(rng.integers(1, 50))
    Case(rows(rng, *lengths), rng, int(rng.choice([1, 2, 3])), window=window).check()


def test_what_is_not_a_number_reaches_the_result_of_its_row_alone(rng: np.random.Generator):
    case = Case(rows(rng, (40, 1), (20, 1), (30, 5)), rng)
    table = case.batch.kv_indices
    case.keys[table[0], 3] = torch.nan
    found = case.found()
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).all()


def test_nothing_waits_for_the_device(rng: np.random.Generator):
    case = Case(rows(rng, *MIXED), rng)
    device = CPUDevice()
    attention = TritonAttention(device, case.layers, case.queries.shape[1])
    attention.plan(split(case.batch))
    attention.run(0, case.queries, None)
    assert device.waits == 0
    assert device.trace == ["upload", "upload"]


def test_a_graph_is_replayed_over_growing_rows(rng: np.random.Generator):
    device = CPUDevice()
    grown = [rows(np.random.default_rng(5), (n, 1), (3 * n, 1)) for n in (15, 16, 17)]
    cases = [Case(batch, rng) for batch in grown]
    keys, values = (torch.empty_like(pool) for pool in cases[0].layers[0])
    queries = torch.empty(3, *cases[0].queries.shape[1:])
    out = torch.empty_like(queries)
    graph = TritonAttention(device, [(keys, values)], queries.shape[1]).graph(3, most_blocks=20)

    def fill(case: Case) -> None:
        keys.copy_(case.keys)
        values.copy_(case.values)
        keys[DUMMY, 0] = values[DUMMY, 0] = 0
        queries[:2] = case.queries
        queries[2:] = 0
        decodes = split(case.batch).decodes
        assert decodes is not None
        graph.plan(padded(decodes, 3, DUMMY))

    fill(cases[0])
    captured = device.capture(lambda: out.copy_(graph.run(0, queries, None)))
    for case in cases:
        fill(case)
        captured.replay()
        np.testing.assert_allclose(out[:2], case.expected(), rtol=1e-4, atol=1e-5)
        assert not out[2:].any()


def test_a_graph_refuses_what_does_not_fit(rng: np.random.Generator):
    case = Case(rows(rng, (20, 1), (40, 1)), rng)
    decodes = split(case.batch).decodes
    assert decodes is not None
    attention = case.attention()
    with pytest.raises(ValueError, match="2 rows for a graph of 4"):
        attention.graph(4, most_blocks=20).plan(decodes)
    with pytest.raises(ValueError, match="5 blocks for a graph of 4"):
        attention.graph(2, most_blocks=4).plan(decodes)


def test_what_does_not_fit_together_is_refused(rng: np.random.Generator):
    case = Case(rows(rng, (20, 1)), rng)
    with pytest.raises(ValueError, match="3 heads do not share 2 KV heads"):
        TritonAttention(CPUDevice(), case.layers, 3)
    attention = case.attention()
    attention.plan(split(case.batch))
    with pytest.raises(ValueError, match="3 queries, where 1 were planned"):
        attention.run(0, case.queries.expand(3, -1, -1), None)


def test_warming_up_launches_every_variant(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
):
    case = Case(rows(rng, (20, 1)), rng)
    attention = case.attention()
    shares, sizes = set(), set()
    monkeypatch.setattr(decode_attention, "BUSY", 64)
    monkeypatch.setattr(
        triton_attention,
        "decode_attention",
        lambda queries, *_: shares.add(decode_attention.shares(len(queries), KV_HEADS)),
    )
    monkeypatch.setattr(
        triton_attention,
        "chunk_attention",
        lambda queries, pool, tables, tiles, *_: sizes.add(tiles.size),
    )
    attention.warm_up(torch.float32)
    assert shares == {decode_attention.shares(n, KV_HEADS) for n in range(1, 5000)}
    assert sizes == {16, 32}
    assert attention.run(0, case.queries[:0], None).shape == (0, 4, 16)


@pytest.mark.parametrize("group", [1, 3, 8, 40])
def test_a_variant_is_launched_for_every_size_of_tile(group: int):
    largest = 128
    steps = [step.chunks for step in every_variant(8, group, largest, 0) if step.chunks]
    launched = {
        chunk_attention.tile_size(np.diff(chunks.qo_indptr), group, largest) for chunks in steps
    }
    needed = {chunk_attention.tile_size(np.array([n]), group, largest) for n in range(1, 300)}
    assert launched == needed


def test_an_empty_step_is_legal(rng: np.random.Generator):
    case = Case(make_batch([]), rng)
    assert case.found().shape == (0, 4, 16)


def test_tiles_cover_every_query_once_and_begin_with_the_longest():
    counts, kv_lens = np.array([5, 1, 40], np.int32), np.array([90, 30, 40], np.int32)
    size = chunk_attention.tile_size(counts, 3, 64)
    of_row, firsts = chunk_attention.tiles(counts, kv_lens, 3, size)
    assert size == 64
    assert list(zip(of_row.tolist(), firsts.tolist(), strict=True)) == [
        (0, 0),
        (1, 0),
        (2, 21),
        (2, 0),
    ]


@pytest.mark.parametrize(
    ("longest", "group", "size"), [(1, 1, 16), (5, 3, 16), (6, 3, 32), (900, 4, 128), (2, 71, 128)]
)
def test_a_tile_is_as_large_as_its_rows_need(longest: int, group: int, size: int):
    assert chunk_attention.tile_size(np.array([1, longest], np.int32), group, 128) == size


@pytest.mark.parametrize(("count", "shares"), [(1, 64), (8, 16), (64, 8), (1000, 8)])
def test_many_rows_have_fewer_shares(monkeypatch: pytest.MonkeyPatch, count: int, shares: int):
    monkeypatch.undo()
    assert decode_attention.shares(count, kv_heads=8) == shares
