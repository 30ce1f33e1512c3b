"""The KV cache keeps what is written to it, in every format, wherever blocks are moved."""

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.backends.kv_cache import FORMATS, KVCache
from engine.batch import BLOCK
from engine.capacity import KV_DTYPES
from tests.engine.backends.batches import Work, make_batch
from tests.engine.backends.caches import poison
from tests.engine.models.tiny_llama import CONFIG

SLOTS = 6 * BLOCK

every_format = pytest.mark.parametrize("kv_dtype", FORMATS)


def vectors(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Keys and values of `count` tokens of one layer, of sizes from 1e-3 to 1e3."""
    rng = np.random.default_rng(seed)
    shape = (2, count, CONFIG.kv_heads, CONFIG.head_dim)
    sizes = 10.0 ** rng.integers(-3, 4, (*shape[:-1], 1))
    keys, values = torch.from_numpy(rng.standard_normal(shape) * sizes).float()
    return keys, values


def filled(kv_dtype: str, host_blocks: int = 0) -> KVCache:
    """A cache of six blocks with different vectors in every slot of every layer."""
    cache = KVCache(CONFIG, 6, kv_dtype, host_blocks)
    for seed, layer in enumerate(cache.layers):
        layer.write(torch.arange(SLOTS), *vectors(SLOTS, seed))
    return cache


def blocks_of(cache: KVCache, *blocks: int) -> list[Tensor]:
    """All bits of these blocks, layers first."""
    return [part[:, list(blocks)].clone() for part in cache.parts]


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(map(torch.equal, found, expected))


@every_format
def test_what_is_read_is_what_was_written_or_the_nearest_there_is(kv_dtype: str):
    cache = KVCache(CONFIG, 6, kv_dtype)
    poison(cache.parts)
    slots = torch.randperm(SLOTS)[:40]
    written = vectors(40)
    cache.layers[1].write(slots, *written)
    for found, expected in zip(cache.layers[1].read(slots), written, strict=True):
        largest = expected.abs().amax(-1, keepdim=True)
        off = {
            "float32": torch.zeros_like(largest),
            "bfloat16": expected.abs() * 2**-8,
            "int8": largest / 127 / 2 * (1 + 1e-4),
        }[kv_dtype]
        assert found.dtype == torch.float32
        assert ((found - expected).abs() <= off).all()


@every_format
def test_vectors_of_zeros_stay_zeros(kv_dtype: str):
    cache = KVCache(CONFIG, 1, kv_dtype)
    poison(cache.parts)
    zeros = torch.zeros(1, CONFIG.kv_heads, CONFIG.head_dim)
    cache.layers[0].write(torch.tensor([3]), zeros, zeros)
    assert all(torch.equal(found, zeros) for found in cache.layers[0].read(torch.tensor([3])))


@every_format
@pytest.mark.parametrize("size", [1e-40, 1e-45, 3e38])
def test_very_small_and_very_large_vectors_stay_finite(kv_dtype: str, size: float):
    cache = KVCache(CONFIG, 1, kv_dtype)
    written = torch.full((1, CONFIG.kv_heads, CONFIG.head_dim), size)
    cache.layers[0].write(torch.tensor([0]), written, -written)
    keys, values = cache.layers[0].read(torch.tensor([0]))
    np.testing.assert_allclose(keys, written, rtol=1e-2, atol=1e-38)
    assert torch.equal(values, -keys)


@every_format
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_does_not_become_a_number(kv_dtype: str, bad: float):
    """Else a fault would pass for a result."""
    cache = KVCache(CONFIG, 1, kv_dtype)
    written = torch.ones(1, CONFIG.kv_heads, CONFIG.head_dim)
    written[0, 0, 5] = bad
    cache.layers[0].write(torch.tensor([0]), written, written)
    for found in cache.layers[0].read(torch.tensor([0])):
        assert not found[0, 0, 5].isfinite()
        assert found[0, 1].isfinite().all()


@every_format
def test_layers_and_slots_are_apart(kv_dtype: str):
    cache = filled(kv_dtype)
    before = blocks_of(cache, *range(6))
    cache.layers[0].write(torch.tensor([17]), *vectors(1, seed=9))
    changed = [now != was for now, was in zip(blocks_of(cache, *range(6)), before, strict=True)]
    for part in changed:
        assert part[0, 1, 1].any()
        part[0, 1, 1] = False
        assert not part.any()


@every_format
def test_the_cache_is_as_large_as_the_arithmetic_says(kv_dtype: str):
    cache = KVCache(CONFIG, 5, kv_dtype, host_blocks=3)
    token = CONFIG.kv_bytes_per_token(KV_DTYPES[kv_dtype])
    assert sum(part.nbytes for part in cache.parts) == 5 * BLOCK * token
    assert cache.block_bytes == BLOCK * token


@every_format
def test_a_way_to_the_host_and_back_changes_no_bit(kv_dtype: str):
    cache = filled(kv_dtype, host_blocks=4)
    before = blocks_of(cache, 1, 4)
    cache.move(make_batch([Work([0], 0, [1])], offloads=[(1, 3), (4, 0)]))
    poison(cache.parts)
    cache.move(make_batch([Work([0], 0, [1])], restores=[(3, 2), (0, 5)]))
    assert equal(blocks_of(cache, 2, 5), before)


@every_format
def test_offloads_come_before_restores_and_restores_before_copies(kv_dtype: str):
    """Block 1 goes to the host, is filled from there, and what it is filled with is copied."""
    cache = filled(kv_dtype, host_blocks=2)
    cache.move(make_batch([Work([0], 0, [1])], offloads=[(0, 0)]))
    zero, one = blocks_of(cache, 0), blocks_of(cache, 1)
    moves = {"offloads": [(1, 1)], "restores": [(0, 1)], "copies": [(1, 2)]}
    cache.move(make_batch([Work([0], 0, [1])], **moves))
    assert equal(blocks_of(cache, 1), zero)
    assert equal(blocks_of(cache, 2), zero)
    cache.move(make_batch([Work([0], 0, [1])], restores=[(1, 3)]))
    assert equal(blocks_of(cache, 3), one)


@every_format
def test_moved_blocks_leave_the_others_alone(kv_dtype: str):
    cache = filled(kv_dtype, host_blocks=2)
    before = blocks_of(cache, 0, 1, 2, 4, 5)
    moves = {"offloads": [(0, 0), (1, 1)], "restores": [(1, 3)]}
    cache.move(make_batch([Work([0], 0, [1])], **moves))
    assert equal(blocks_of(cache, 0, 1, 2, 4, 5), before)
    assert equal(blocks_of(cache, 3), blocks_of(cache, 1))


@pytest.mark.parametrize("moves", [{"offloads": [(0, 0)]}, {"restores": [(0, 0)]}])
def test_moves_to_a_host_without_room_are_refused(moves: dict):
    with pytest.raises(IndexError):
        KVCache(CONFIG, 2).move(make_batch([Work([0], 0, [1])], **moves))


@every_format
def test_a_move_takes_time_where_there_is_a_host_to_move_to(kv_dtype: str):
    assert KVCache(CONFIG, 2, kv_dtype).move_seconds == 0
    assert KVCache(CONFIG, 2, kv_dtype, host_blocks=1).move_seconds > 0
