"""The map of the KV pool: a mark a block, or for several, as runs."""

from __future__ import annotations

from app.live.cells import CACHED, FIRST, FREE, MOST_CELLS, OTHERS, OTHERS_SHARED, cells
from engine.outputs import Inspection, PoolSnapshot, RequestSnapshot, Stats


def look(owners: list[int], cached: list[int], tables: list[list[int]]) -> Inspection:
    """Requests with a sequence each, that hold these blocks."""
    requests = [
        RequestSnapshot(
            id=place + 10,
            ticket=place,
            phase="decode",
            tenant="t",
            slo_class="c",
            priority=0,
            arrival=0.0,
            prompt=1,
            computed=1,
            generated=0,
            preemptions=0,
            blocks=(tuple(table),),
        )
        for place, table in enumerate(tables)
    ]
    pool = PoolSnapshot(tuple(owners), tuple(cached))
    return Inspection(Stats(), pool, "FCFS", False, "", tuple(requests))


def test_every_state_has_a_mark_of_its_own() -> None:
    seen = look([0, 0, 1, 2, 1, 1, 2], [1], [[2, 3], [3, 4]])
    marks = [FREE, CACHED, FIRST, FIRST + 1, FIRST + 2, OTHERS, OTHERS_SHARED]
    assert list(cells(seen).marks) == marks


def test_equal_neighbours_are_one_run() -> None:
    seen = look([1, 1, 0, 0, 0], [4], [[0, 1]])
    drawn = cells(seen).render()
    assert drawn == {"blocks_per_cell": 1, "cells": [FIRST, 2, FREE, 2, CACHED, 1]}


def test_a_large_pool_is_drawn_in_cells_that_stand_for_several_blocks_and_show_who_owns_one() -> (
    None
):
    owners = [0] * (3 * MOST_CELLS - 1)
    owners[3] = owners[4] = owners[7] = owners[8] = 1
    seen = look(owners, [0, 9], [[3], [4], [7, 8]])
    drawn = cells(seen)
    assert drawn.blocks_per_cell == 3
    assert len(drawn.marks) == MOST_CELLS
    assert list(drawn.marks[:5]) == [CACHED, FIRST, FIRST + 4, CACHED, FREE]


def test_a_table_that_a_step_has_given_up_since_does_not_own_what_is_free() -> None:
    assert list(cells(look([0], [], [[0]])).marks) == [FREE]


def test_a_pool_without_blocks_is_an_empty_map() -> None:
    assert cells(look([], [], [])).render() == {"blocks_per_cell": 1, "cells": []}
