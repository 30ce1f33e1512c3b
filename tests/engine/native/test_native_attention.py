"""The native attention equals the float64 reference, and is the same to the last bit however it is
computed."""

import numpy as np
import pytest
import torch

from engine.backends import reference
from engine.batch import BLOCK, Batch
from tests.engine.backends.batches import Work, make_batch
from tests.engine.native.tiny import ISAS, native_model, poisoned, shaped

BLOCKS = 120
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "int8": 2e-2}


def tables(rng: np.random.Generator, *kv_lens: int) -> list[list[int]]:
    """Disjoint tables of random blocks, the highest id among them."""
    ids = [BLOCKS - 1, *rng.permutation(BLOCKS - 1).tolist()]
    return [[ids.pop(0) for _ in range(-(-kv_len // BLOCK))] for kv_len in kv_lens]


def rows(rng: np.random.Generator, kv_lens, counts) -> Batch:
    made = zip(tables(rng, *kv_lens), kv_lens, counts, strict=True)
    return make_batch([Work(t, n - c, [0] * c) for t, n, c in made])


def fill(cache, keys: np.ndarray, values: np.ndarray, slots: np.ndarray, kv_dtype: str) -> None:
    """Write keys and values [blocks, BLOCK, kv_heads, head_dim] into these slots."""
    for slot in slots.tolist():
        block, place = divmod(slot, BLOCK)
        for pool, vectors, scales in zip(
            cache.parts[:2], (keys, values), cache.parts[2:] or (None, None), strict=True
        ):
            vector = torch.from_numpy(vectors[block, place])  # [kv_heads, head_dim]
            if kv_dtype == "int8":
                scale = vector.abs().amax(dim=1) / 127
                scales[0, block, :, place] = scale
                vector = (vector / scale[:, None]).round()
            put(pool[0, block], place, vector, keys=pool is cache.parts[0])


def put(block: torch.Tensor, place: int, vector: torch.Tensor, *, keys: bool) -> None:
    """Write the vector [kv_heads, head_dim] of one token into a block as `abi.h` lays it out."""
    vector = vector.to(block.dtype)
    heads, n = vector.shape
    if block.dtype is torch.int8 and keys:
        block.view(heads, n // 4, BLOCK, 4)[:, :, place] = vector.view(heads, n // 4, 4)
    elif block.dtype is torch.int8:
        block.view(heads, BLOCK // 4, n, 4)[:, place // 4, :, place % 4] = vector
    elif keys:
        block[:, :, place] = vector
    else:
        block[:, place] = vector


def seen(batch: Batch, window: int | None) -> np.ndarray:
    """The slots that a query of the batch sees."""
    slots = set()
    for i, kv_len in enumerate(batch.kv_lens):
        table = batch.kv_indices[batch.kv_indptr[i] : batch.kv_indptr[i + 1]]
        first = kv_len - (batch.qo_indptr[i + 1] - batch.qo_indptr[i])
        begin = 0 if window is None else max(first - window + 1, 0)
        slots |= {int(table[j // BLOCK]) * BLOCK + j % BLOCK for j in range(begin, kv_len)}
    return np.array(sorted(slots))


def compare(rng, batch: Batch, config, kv_dtype: str, isa: str, window: int | None = None) -> None:
    model = native_model(config, isa)
    cache = poisoned(config, BLOCKS, kv_dtype)
    shape = (BLOCKS, BLOCK, config.kv_heads, config.head_dim)
    keys, values = rng.standard_normal((2, *shape), dtype=np.float32)
    fill(cache, keys, values, seen(batch, window), kv_dtype)
    queries = rng.standard_normal((batch.tokens, config.heads, config.head_dim), dtype=np.float32)
    out = model.attention(batch, torch.from_numpy(queries), cache.struct).numpy()
    expected = reference.paged_attention(batch, queries, keys, values, window)
    error = np.linalg.norm(out - expected, axis=(1, 2)) / np.linalg.norm(expected, axis=(1, 2))
    assert error.max() < TOLERANCE[kv_dtype]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(3, 3, 64), (9, 3, 64), (4, 2, 16), (16, 1, 32), (8, 1, 80), (5, 1, 128), (2, 1, 256)],
)
def test_mixed_rows_for_every_group_and_head_size(isa, kv_dtype, heads, kv_heads, head_dim) -> None:
    rng = np.random.default_rng(heads * 1000 + head_dim)
    batch = rows(rng, (5, 16, 40, 33, 9, 1), (1, 1, 1, 20, 9, 1))
    compare(rng, batch, shaped(heads, kv_heads, head_dim), kv_dtype, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", ["float32", "int8"])
def test_contexts_of_several_splits(isa, kv_dtype) -> None:
    rng = np.random.default_rng(7)
    batch = rows(rng, (600, 256, 257, 513), (1, 1, 2, 30))
    compare(rng, batch, shaped(6, 2, 32), kv_dtype, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 100, 300, 900])
def test_a_window_hides_what_lies_before_it(isa, window) -> None:
    rng = np.random.default_rng(window)
    batch = rows(rng, (5, 100, 700, 60, 33), (1, 1, 1, 20, 33))
    config = shaped(6, 2, 32, windows=(window,))
    compare(rng, batch, config, "int8", isa, window)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_share_blocks(isa) -> None:
    rng = np.random.default_rng(3)
    one, other = tables(rng, 64, 40)
    work = [Work(one, 49, [0]), Work([*one[:2], *other[:2]], 45, [0] * 9), Work(one, 20, [0] * 5)]
    compare(rng, make_batch(work), shaped(6, 2, 32), "int8", isa)
