import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks import BlockPool
from engine.controls import RowControls
from engine.heap import AddressableHeap
from engine.inbox import Submission
from engine.memory import KVMemory
from engine.queues import WaitingQueue
from engine.request import Request

MOVES = st.lists(
    st.tuples(st.sampled_from(["push", "remove", "pop"]), st.integers(0, 9), st.integers(0, 5)),
    max_size=60,
)


@settings(max_examples=200)
@given(MOVES)
def test_the_heap_equals_a_sorted_dictionary_under_any_moves(moves) -> None:
    heap: AddressableHeap[int] = AddressableHeap()
    model: dict[int, tuple[int, int]] = {}
    for turn, (move, item, key) in enumerate(moves):
        if move == "push":
            heap.push(item, key)
            model[item] = (key, turn)
        elif move == "remove" and item in model:
            heap.remove(item)
            del model[item]
        elif move == "pop" and model:
            smallest = min(model, key=model.__getitem__)
            assert heap.peek() == smallest
            heap.remove(smallest)
            del model[smallest]
        assert len(heap) == len(model)
        assert set(heap) == set(model)


def test_dead_entries_never_outnumber_the_living_for_long() -> None:
    heap: AddressableHeap[int] = AddressableHeap()
    for item in range(10_000):
        heap.push(item % 10, item)
    assert len(heap._heap) <= 2 * len(heap) + 64
    assert heap.peek() == 0


def test_an_empty_heap_says_so() -> None:
    with pytest.raises(LookupError):
        AddressableHeap().peek()
    with pytest.raises(KeyError):
        AddressableHeap().remove(1)


def request(ticket: int) -> Request:
    memory = KVMemory(BlockPool(1), cache=False)
    return Request(Submission(ticket, [1], 1, RowControls(), arrival=0.0), ticket, memory)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=40
    )
)
def test_heads_best_and_oldest_hold_under_any_arrivals_and_departures(arrivals) -> None:
    queue = WaitingQueue()
    waiting: dict[Request, tuple[int, int]] = {}
    for ticket, (flow, key, leaves) in enumerate(arrivals):
        newcomer = request(ticket)
        queue.push(newcomer, flow, key)
        waiting[newcomer] = (flow, key)
        if leaves:
            leaver = min(waiting, key=lambda r: (waiting[r][1], -r.ticket))
            queue.remove(leaver)
            del waiting[leaver]
        order = heapq.nsmallest(1, waiting, key=lambda r: (waiting[r][1], r.ticket))
        assert queue.requests == len(waiting)
        assert set(queue.heads) == {flow for flow, _ in waiting.values()}
        if order:
            assert queue.heads[queue.heads.best()].id == order[0].id
            assert queue.oldest().ticket == min(r.ticket for r in waiting)
    assert set(queue.reset(None)) == set(waiting)
    assert queue.requests == len(queue.heads) == 0
