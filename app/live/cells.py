"""The KV pool as cells of a map: few enough to draw, whatever the size of the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from engine.outputs import Inspection

MOST_CELLS: Final = 4096
"""In a pool with more blocks, a cell stands for several."""

FREE, CACHED, OTHERS, OTHERS_SHARED, FIRST = range(5)
"""What a cell can be. OTHERS: owned by requests that are not listed, or still being written; from
FIRST on 2 · n + FIRST is owned by the n-th request that is listed, and one more if it is shared."""


@dataclass(frozen=True, slots=True)
class Cells:
    """blocks_per_cell: how many blocks each of `marks` stands for."""

    blocks_per_cell: int
    marks: Sequence[int]

    def render(self) -> dict[str, Any]:
        """As runs of equal cells: a mark, how many, the next mark, and so on."""
        runs = [part for mark, run in groupby(self.marks) for part in (mark, sum(1 for _ in run))]
        return {"blocks_per_cell": self.blocks_per_cell, "cells": runs}


def cells(seen: Inspection) -> Cells:
    """What each cell is; of several blocks the commonest owner's, if anybody owns one of them."""
    marks = _marks(seen)
    scale = max(1, -(-len(marks) // MOST_CELLS))
    if scale == 1:
        return Cells(1, marks)
    return Cells(scale, [_one(marks[at : at + scale]) for at in range(0, len(marks), scale)])


def _marks(seen: Inspection) -> list[int]:
    """One mark a block."""
    owners = seen.pool.owners
    marks = [OTHERS + (count > 1) if count else FREE for count in owners]
    for block in seen.pool.cached:
        marks[block] = CACHED
    for block, place in _listed(seen).items():
        if owners[block]:
            marks[block] = FIRST + 2 * place + (owners[block] > 1)
    return marks


def _listed(seen: Inspection) -> Mapping[int, int]:
    """Whose each block is: the first of those that are listed and own it."""
    first: dict[int, int] = {}
    for place, block in _owned(seen):
        first.setdefault(block, place)
    return first


def _owned(seen: Inspection) -> Iterator[tuple[int, int]]:
    for place, request in enumerate(seen.requests):
        for table in request.blocks:
            for block in table:
                yield place, block


def _one(marks: Sequence[int]) -> int:
    """The mark of a cell that stands for blocks with these."""
    owned = [mark for mark in marks if mark >= OTHERS]
    if owned:
        return Counter(owned).most_common(1)[0][0]
    return CACHED if CACHED in marks else FREE
