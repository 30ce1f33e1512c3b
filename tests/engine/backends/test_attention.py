"""Paged attention in torch equals the float64 reference, whatever the batch and the format."""

import numpy as np
import pytest
import torch

from engine.backends import attention, reference
from engine.backends.attention import PagedAttention
from engine.batch import BLOCK, Batch
from tests.engine.backends.batches import Work, make_batch
from tests.engine.backends.caches import layer_of

BLOCKS = 200
KV_HEADS = 3

TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-2, "int8": 2e-2}
"""Norm of a token's error over the norm of its attention to keys and values as they were."""


def row(table: list[int], kv_len: int, count: int) -> Work:
    return Work(table, kv_len - count, [0] * count)


def tables(rng: np.random.Generator, *kv_lens: int) -> list[list[int]]:
    """Disjoint tables of random blocks, the highest id among them."""
    ids = [BLOCKS - 1, *rng.permutation(BLOCKS - 1).tolist()]
    return [[ids.pop(0) for _ in range(-(-kv_len // BLOCK))] for kv_len in kv_lens]


def assert_equals_reference(
    batch: Batch,
    rng: np.random.Generator,
    group: int = 3,
    head_dim: int = 16,
    window: int | None = None,
    kv_dtype: str = "float32",
) -> None:
    """Compare over a random cache in which every slot that no query sees is NaN."""
    shape = (BLOCKS, BLOCK, KV_HEADS, head_dim)
    keys, values = rng.standard_normal((2, *shape), dtype=np.float32)
    kv = layer_of(kv_dtype, keys, values, written=seen(batch, window))
    queries = rng.standard_normal((batch.tokens, KV_HEADS * group, head_dim), dtype=np.float32)
    out = PagedAttention(batch)(torch.from_numpy(queries), kv, window)
    expected = reference.paged_attention(batch, queries, keys, values, window)
    if kv_dtype == "float32":
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=2e-6)
    assert (error(out.numpy(), expected) < TOLERANCE[kv_dtype]).all()


def error(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Relative error of each token [tokens], in norm over its heads."""
    return np.linalg.norm(found - expected, axis=(1, 2)) / np.linalg.norm(expected, axis=(1, 2))


def seen(batch: Batch, window: int | None) -> np.ndarray:
    """Which slots [blocks, BLOCK] hold a token that a query of its row sees."""
    slots = np.zeros((BLOCKS, BLOCK), dtype=bool)
    for i, kv_len in enumerate(batch.kv_lens):
        table = batch.kv_indices[batch.kv_indptr[i] : batch.kv_indptr[i + 1]]
        first_query = kv_len - (batch.qo_indptr[i + 1] - batch.qo_indptr[i])
        for j in range(0 if window is None else max(first_query - window + 1, 0), kv_len):
            slots[table[j // BLOCK], j % BLOCK] = True
    return slots


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
def test_mixed_rows_for_every_group_and_head_size(group: int, head_dim: int):
    rng = np.random.default_rng(group * 100 + head_dim)
    kv_lens = 5, 16, 40, 33, 9
    counts = 1, 1, 1, 20, 9
    batch = make_batch(
        [row(*each) for each in zip(tables(rng, *kv_lens), kv_lens, counts, strict=True)]
    )
    assert_equals_reference(batch, rng, group, head_dim)


@pytest.mark.parametrize("kv_len", [1, 2, 15, 16, 17, 32, 200])
def test_a_decode_at_and_around_block_borders(kv_len: int):
    rng = np.random.default_rng(kv_len)
    (table,) = tables(rng, kv_len)
    assert_equals_reference(make_batch([row(table, kv_len, 1)]), rng)


@pytest.mark.parametrize("count", [2, 15, 16, 17])
@pytest.mark.parametrize("before", [0, 1, 16, 37])
def test_a_chunk_sees_what_is_before_it_and_not_what_comes_after(before: int, count: int):
    rng = np.random.default_rng(before * 100 + count)
    (table,) = tables(rng, before + count)
    assert_equals_reference(make_batch([row(table, before + count, count)]), rng)


@pytest.mark.parametrize("tile", [1, 7, 16, 64])
def test_tiles_do_not_change_a_chunk(tile: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "TILE", tile)
    rng = np.random.default_rng(tile)
    (table,) = tables(rng, 60)
    assert_equals_reference(make_batch([row(table, 60, 40)]), rng)


@pytest.mark.parametrize(
    ("window", "kv_dtype"),
    [
        *((window, "float32") for window in (1, 2, 15, 16, 17, 40, 500)),
        *((17, kv_dtype) for kv_dtype in ("bfloat16", "int8")),
    ],
)
@pytest.mark.parametrize("tile", [7, 256])
def test_a_window_hides_what_lies_before_it(
    window: int, tile: int, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attention, "TILE", tile)
    rng = np.random.default_rng(window)
    kv_lens = 5, 100, 17, 60, 33, 48
    counts = 1, 1, 1, 20, 33, 2
    batch = make_batch(
        [row(*each) for each in zip(tables(rng, *kv_lens), kv_lens, counts, strict=True)]
    )
    assert_equals_reference(batch, rng, window=window, kv_dtype=kv_dtype)


def test_layers_of_different_windows_share_one_attention():
    rng = np.random.default_rng(3)
    batch = make_batch(
        [row(t, n, c) for t, n, c in zip(tables(rng, 40, 40), (40, 40), (1, 9), strict=True)]
    )
    shape = (BLOCKS, BLOCK, KV_HEADS, 16)
    kv = layer_of("float32", *rng.standard_normal((2, *shape), dtype=np.float32))
    queries = torch.from_numpy(rng.standard_normal((batch.tokens, KV_HEADS, 16), dtype=np.float32))
    shared = PagedAttention(batch)
    for window in (None, 8, 3, None, 8):
        alone = PagedAttention(batch)(queries, kv, window)
        assert torch.equal(shared(queries, kv, window), alone)


def test_decodes_of_very_different_lengths():
    rng = np.random.default_rng(1)
    kv_lens = 1, 700, 16, 17, 90, 64, 65, 300
    work = [row(t, kv_len, 1) for t, kv_len in zip(tables(rng, *kv_lens), kv_lens, strict=True)]
    assert_equals_reference(make_batch(work), rng)


@pytest.mark.parametrize("kv_dtype", TOLERANCE)
def test_rows_that_share_blocks(kv_dtype: str):
    rng = np.random.default_rng(2)
    shared, a, b, c = tables(rng, 48, 16, 16, 32)
    batch = make_batch([row(shared + a, 50, 1), row(shared + b, 64, 1), row(shared + c, 70, 22)])
    assert_equals_reference(batch, rng, kv_dtype=kv_dtype)


@pytest.mark.parametrize(
    ("kv_dtype", "seed"),
    [
        *(("float32", seed) for seed in range(20)),
        *((kv_dtype, seed) for kv_dtype in ("bfloat16", "int8") for seed in range(20, 26)),
    ],
)
def test_random_batches(seed: int, kv_dtype: str):
    rng = np.random.default_rng(seed)
    kv_lens = rng.integers(1, 100, size=rng.integers(1, 9)).tolist()
    counts = [1 if rng.random() < 0.5 else int(rng.integers(1, n + 1)) for n in kv_lens]
    batch = make_batch(
        [row(*each) for each in zip(tables(rng, *kv_lens), kv_lens, counts, strict=True)]
    )
    group = int(rng.choice([1, 2, 3, 4, 8]))
    assert_equals_reference(batch, rng, group, kv_dtype=kv_dtype)
    window = int(rng.integers(1, 50))
    assert_equals_reference(batch, rng, group, window=window, kv_dtype=kv_dtype)
