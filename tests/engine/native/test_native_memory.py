"""Memory in large pages is memory like any other."""

from __future__ import annotations

import gc
import mmap
import weakref

import pytest
import torch

from engine.native import memory
from engine.native.memory import CACHE_LINE, LARGE_PAGE, Arena, empty


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(0, 3), (1,), (7, 5, 3), (3, LARGE_PAGE)])
def test_memory_has_the_shape_and_type_that_was_asked_for(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    made = empty(*shape, dtype=dtype)
    assert made.shape == shape
    assert made.dtype is dtype
    assert made.is_contiguous()
    made.fill_(3)
    assert bool((made == 3).all())


def test_an_arena_keeps_what_it_was_given_apart_and_aligned() -> None:
    arena = Arena(chunk=4096)
    given = [torch.arange(n, dtype=torch.float32) for n in (1, 17, 900, 0, 3, 5000)]
    kept = [arena.keep(tensor) for tensor in given]
    for tensor in given:
        tensor.neg_()
    for tensor, copy in zip(given, kept, strict=True):
        assert torch.equal(copy, -tensor)
        assert copy.data_ptr() % CACHE_LINE == 0


def test_a_chunk_goes_with_the_last_tensor_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = []
    make = memory._pages

    def remember(size: int) -> mmap.mmap:
        chunks.append(weakref.ref(room := make(size)))
        return room

    monkeypatch.setattr(memory, "_pages", remember)
    arena = Arena(chunk=4096)
    first, second = arena.keep(torch.ones(8)), arena.keep(torch.zeros(8))
    arena.keep(torch.ones(4096))  # has a chunk of its own, and the arena forgets the first
    del first
    gc.collect()
    assert chunks[0]() is not None
    del second
    gc.collect()
    assert chunks[0]() is None
