"""Memory in large pages, where the operating system has them.

A step reads all weights and, for each row, KV blocks that lie far apart. In pages of 4 KiB nearly
every block costs a walk through page tables; 2 MiB pages have few of them. Linux gives such pages
to who asks (transparent huge pages, `madvise`); elsewhere this is plain memory.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor

LARGE_PAGE = 2 << 20
CACHE_LINE = 64


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Like `torch.empty`. Memory that nobody has written to yet stays with the operating system."""
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    room = _pages(math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(room, dtype=dtype, count=math.prod(shape)).view(shape)


class Arena:
    """Where tensors that stay are laid one after the other."""

    def __init__(self, chunk: int = 16 * LARGE_PAGE) -> None:
        self._chunk = chunk
        self._room = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy in the arena, which lives as long as any tensor of its chunk."""
        size = tensor.numel() * tensor.itemsize
        if self._used + size > len(self._room):
            self._room, self._used = empty(max(size, self._chunk), dtype=torch.uint8), 0
        place = self._room[self._used : self._used + size]
        self._used += -(-size // CACHE_LINE) * CACHE_LINE
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _pages(size: int) -> mmap.mmap:
    """Anonymous memory; what is too small for a large page gets none."""
    room = mmap.mmap(-1, max(size, 1))
    if size >= LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            room.madvise(mmap.MADV_HUGEPAGE)
    return room
