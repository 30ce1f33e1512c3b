"""Kernels find blocks in pools of more numbers than 32 bits count.

Such a pool is asked of the system, which gives memory for what is written to only.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from support.interpreter import interpreted

from engine.backends.cuda.kernels.chunk_attention import Tiles, chunk_attention
from engine.backends.cuda.kernels.decode_attention import decode_attention
from engine.backends.cuda.kernels.paging import Pool, Tables
from engine.backends.cuda.ops import FP8, Heads
from engine.backends.cuda.triton_attention import EVERYTHING
from engine.backends.cuda.triton_ops import TritonOps
from engine.batch import BLOCK
from engine.models.rope import RopeTable

STEP = 1 << 30
"""Numbers from one block to the next, so that the last of three begins where 31 bits end."""

HEAD_DIM = 16
SLOTS = STEP // HEAD_DIM


@pytest.fixture(autouse=True)
def in_the_interpreter() -> Iterator[None]:
    with interpreted():
        yield


@pytest.fixture(scope="module")
def room() -> Tensor:
    return torch.empty(3 * STEP, dtype=torch.uint8)


@pytest.fixture
def pool(room: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [3, BLOCK, 1, HEAD_DIM], of which the last block is filled."""
    torch.manual_seed(3)
    shape, strides = (3, BLOCK, 1, HEAD_DIM), (STEP, HEAD_DIM, HEAD_DIM, 1)
    keys, values = (room.as_strided(shape, strides, first).view(FP8) for first in (0, 4096))
    for part in (keys, values):
        part[2].view(torch.uint8).copy_(torch.randn(shape[1:]).to(FP8).view(torch.uint8))
    return keys, values


def int32(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def expected(pool: tuple[Tensor, Tensor], queries: Tensor, seen: int) -> Tensor:
    keys, values = (part[2, :seen, 0].float() for part in pool)
    return torch.softmax(queries @ keys.T / np.sqrt(HEAD_DIM), -1) @ values


def test_attention_reads_them(pool: tuple[Tensor, Tensor]):
    queries = torch.randn(2, 1, HEAD_DIM)
    tables = Tables(kv_indptr=int32(0, 1), last_page_len=int32(BLOCK), kv_indices=int32(2))
    decoded, prompted = torch.empty(1, 1, HEAD_DIM), torch.empty(2, 1, HEAD_DIM)
    decode_attention(queries[1:], Pool(*pool), tables, EVERYTHING, decoded)
    tiles = Tiles(16, qo_indptr=int32(0, 2), rows=int32(0), firsts=int32(0))
    chunk_attention(queries, Pool(*pool), tables, tiles, EVERYTHING, prompted)
    last = expected(pool, queries[1], BLOCK)
    torch.testing.assert_close(decoded[0], last, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(prompted[1], last, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(prompted[0], expected(pool, queries[0], BLOCK - 1))


def test_keys_and_values_are_written_there(room: Tensor):
    keys, values = (
        room[first : first + 2 * STEP + HEAD_DIM].view(FP8).view(-1, 1, HEAD_DIM)
        for first in (1 << 20, 1 << 21)
    )
    still = RopeTable(torch.ones(1, HEAD_DIM // 2), torch.zeros(1, HEAD_DIM // 2))
    heads = Heads(1, 1, HEAD_DIM, None, None, 1e-5)
    qkv = torch.arange(3.0).repeat_interleave(HEAD_DIM)[None]
    slots = torch.tensor([2 * SLOTS])
    TritonOps().rotate_and_write(qkv, torch.tensor([0]), slots, still, keys, values, heads)
    assert keys[-1].float().tolist() == [[1.0] * HEAD_DIM]
    assert values[-1].float().tolist() == [[2.0] * HEAD_DIM]


def test_they_are_moved(room: Tensor):
    odd = 15  # bytes, which are moved one by one
    part = room.as_strided((1, 3, odd), (3 * STEP, STEP, 1), 1 << 22)
    part[0, 2] = torch.arange(odd)
    TritonOps().move_blocks([part], [part], torch.tensor([2]), torch.tensor([0]))
    TritonOps().move_blocks([part], [part], torch.tensor([0]), torch.tensor([1]))
    assert part[0].tolist() == [list(range(odd))] * 3
