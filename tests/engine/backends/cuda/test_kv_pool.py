"""The KV pool of the CUDA backend: blocks come back from the host bit for bit, in the order of a
batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.cpu_device import CPUDevice

from engine.backends.cuda.ops import TorchOps
from engine.backends.cuda.pool import MOVED_AT_ONCE, POOL_DTYPES, KVPool
from engine.batch import BLOCK
from tests.engine.backends.batches import Moves, Work, make_batch
from tests.engine.models.tiny_llama import CONFIG

WORK = [Work([0], 0, [1])]


def made(blocks: int, host_blocks: int = 0, kv_dtype: str = "float32") -> KVPool:
    return KVPool(CPUDevice(), TorchOps(), CONFIG, blocks, kv_dtype, host_blocks)


def fill(pool: KVPool) -> None:
    """Bits of all kinds everywhere, NaN among them."""
    generator = torch.Generator().manual_seed(0)
    for part in (pool.keys, pool.values):
        bits = part.view(torch.uint8)
        bits.copy_(torch.randint(256, bits.shape, generator=generator))


def move(pool: KVPool, **moves: Moves) -> None:
    pool.move(make_batch(WORK, **moves))


def bits(pool: KVPool, block: int) -> torch.Tensor:
    return torch.stack([part[:, block].view(torch.uint8) for part in (pool.keys, pool.values)])


@pytest.mark.parametrize("kv_dtype", POOL_DTYPES)
def test_blocks_that_come_back_from_the_host_hold_the_same_bits(kv_dtype: str) -> None:
    count = MOVED_AT_ONCE + 3
    pool = made(2 * count, count, kv_dtype)
    fill(pool)
    before = [bits(pool, block).clone() for block in range(2 * count)]
    move(pool, offloads=[(block, count - 1 - block) for block in range(count)])
    pool.keys.view(torch.uint8)[:, :count] = 7
    pool.values.view(torch.uint8)[:, :count] = 7
    there = [(3 * block) % count for block in range(count)]
    move(pool, restores=[(count - 1 - block, there[block]) for block in range(count)])
    for block in range(count):
        assert torch.equal(bits(pool, there[block]), before[block])
    for block in range(count, 2 * count):
        assert torch.equal(bits(pool, block), before[block])


@pytest.mark.parametrize("kv_dtype", POOL_DTYPES)
def test_a_copied_block_holds_the_bits_of_its_source(kv_dtype: str) -> None:
    pool = made(6, kv_dtype=kv_dtype)
    fill(pool)
    before = [bits(pool, block).clone() for block in range(6)]
    move(pool, copies=[(1, 4), (1, 5), (3, 0)])
    for block, expected in enumerate([3, 1, 2, 3, 1, 1]):
        assert torch.equal(bits(pool, block), before[expected])


def test_offloads_come_before_restores_and_restores_before_copies() -> None:
    pool = made(4, 2)
    fill(pool)
    before = [bits(pool, block).clone() for block in range(4)]
    move(pool, offloads=[(0, 0)])
    move(pool, offloads=[(1, 1)], restores=[(0, 1)], copies=[(1, 2)])
    assert torch.equal(bits(pool, 1), before[0])
    assert torch.equal(bits(pool, 2), before[0])
    move(pool, restores=[(1, 3)])
    assert torch.equal(bits(pool, 3), before[1])


def test_a_move_does_not_wait() -> None:
    device = CPUDevice()
    pool = KVPool(device, TorchOps(), CONFIG, 6, "float32", 3)
    device.trace.clear()
    move(pool, offloads=[(0, 0), (1, 1)], restores=[(0, 2)], copies=[(3, 4)])
    assert device.waits == 0
    assert device.trace.count("upload") == 3


def test_what_a_copy_needs_is_compiled_before_anybody_waits() -> None:
    class Counting(TorchOps):
        calls = 0

        def move_blocks(self, *arguments) -> None:
            self.calls += 1
            super().move_blocks(*arguments)

    ops = Counting()
    KVPool(CPUDevice(), ops, CONFIG, 3, "float32")
    assert ops.calls == 1
    KVPool(CPUDevice(), ops, CONFIG, 0, "float32")
    assert ops.calls == 1


def test_the_dummy_lies_behind_the_blocks_and_all_is_zero() -> None:
    pool = made(5, kv_dtype="fp8")
    assert (pool.blocks, pool.dummy) == (5, 5)
    assert pool.keys.shape == (CONFIG.layers, 6, BLOCK, CONFIG.kv_heads, CONFIG.head_dim)
    for block in range(6):
        assert not bits(pool, block).any()


def test_slots_and_layers_are_the_pool_itself() -> None:
    pool = made(3)
    pool.slots[1][0][2 * BLOCK + 5] = 3.0
    assert (pool.keys[1, 2, 5] == 3.0).all()
    assert (pool.layers[1][0][2, 5] == 3.0).all()
    assert pool.keys.sum() == 3.0 * CONFIG.kv_heads * CONFIG.head_dim


def test_how_long_a_move_takes_is_measured_where_there_is_host_memory() -> None:
    assert made(3).move_seconds == 0
    assert made(3, 2).move_seconds > 0
    assert made(0, 2).move_seconds == 0


def test_heads_of_any_size_are_whole_words() -> None:
    pool = KVPool(CPUDevice(), TorchOps(), replace(CONFIG, head_dim=18, kv_heads=1), 2, "fp8", 2)
    fill(pool)
    before = bits(pool, 0).clone()
    move(pool, offloads=[(0, 1)])
    move(pool, restores=[(1, 1)])
    assert torch.equal(bits(pool, 1), before)
