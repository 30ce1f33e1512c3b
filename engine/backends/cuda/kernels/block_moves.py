"""Whole blocks from some places to others, of all layers, keys and values in one launch.

    axis 0    moves · pieces      a piece is 8 KiB of a block of one layer
    axis 1    layers
    axis 2    two parts

A block is copied as the widest whole numbers that it consists of, so its bits stay as they are.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

PIECE = 1024
"""Numbers that a program copies: in int64, 16 bytes a thread of four warps, four times."""

WIDTHS = torch.int64, torch.int32, torch.int16, torch.uint8


def move_blocks(
    source: Sequence[Tensor],
    destination: Sequence[Tensor],
    sources: Tensor,
    destinations: Tensor,
) -> None:
    """See `ops.Ops`. Raises ValueError for parts that are not alike: they share a launch."""
    pairs = [(_words(a), _words(b)) for a, b in zip(source, destination, strict=True)]
    if len({(a.stride(), b.stride(), a.dtype, b.dtype) for a, b in pairs}) > 1:
        raise ValueError("parts of blocks differ in shape or type")
    for first in range(0, len(pairs), 2):
        _move(pairs[first : first + 2], sources, destinations)


def _move(parts: list[tuple[Tensor, Tensor]], sources: Tensor, destinations: Tensor) -> None:
    """The blocks of one part or two."""
    taken, given = parts[0]
    layers, words = taken.shape[0], taken.shape[2]
    pieces = triton.cdiv(words, PIECE)
    _copy[(len(sources) * pieces, layers, len(parts))](
        taken,
        parts[-1][0],
        given,
        parts[-1][1],
        sources,
        destinations,
        taken.stride(0),
        taken.stride(1),
        given.stride(0),
        given.stride(1),
        WORDS=words,
        PIECES=pieces,
        PIECE=PIECE,
        num_warps=4,
    )


def _words(part: Tensor) -> Tensor:
    """The part [layers, blocks, ...] as whole numbers [layers, blocks, words], the same memory."""
    blocks = part.view(*part.shape[:2], -1)
    size = blocks.shape[2] * blocks.itemsize
    return blocks.view(next(width for width in WIDTHS if size % width.itemsize == 0))


@triton.jit(do_not_specialize_on_alignment=["sources", "destinations"])
def _copy(
    source,
    other_source,
    destination,
    other_destination,
    sources,
    destinations,
    source_layer,
    source_block,
    destination_layer,
    destination_block,
    WORDS: tl.constexpr,
    PIECES: tl.constexpr,
    PIECE: tl.constexpr,
):
    move = tl.program_id(0) // PIECES
    word = (tl.program_id(0) % PIECES) * PIECE + tl.arange(0, PIECE)
    layer = tl.program_id(1).to(tl.int64)
    taken = tl.load(sources + move).to(tl.int64) * source_block + layer * source_layer
    given = tl.load(destinations + move).to(tl.int64) * destination_block
    given += layer * destination_layer
    inside = word < WORDS
    if tl.program_id(2) == 0:
        moved = tl.load(source + taken + word, mask=inside)
        tl.store(destination + given + word, moved, mask=inside)
    else:
        moved = tl.load(other_source + taken + word, mask=inside)
        tl.store(other_destination + given + word, moved, mask=inside)
