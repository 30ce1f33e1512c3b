"""Who waits: one addressable heap per flow, one over the flows' heads, one by ticket."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

from engine.request import Request, RequestProxy

Item = TypeVar("Item", bound=Hashable)


class AddressableHeap(Generic[Item]):
    """A heap from which any item can be removed or re-keyed, in O(log n) amortised.

    Removed entries stay in the list, marked dead, until they surface or outnumber the living.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, Item]] = []
        self._live: dict[Item, tuple[Any, int, Item]] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: Item) -> bool:
        return item in self._live

    def __iter__(self) -> Iterator[Item]:
        return iter(self._live)

    def push(self, item: Item, key: Any) -> None:
        """Add the item, or change its key. Equal keys leave in the order of their push."""
        self._sequence += 1
        entry = (key, self._sequence, item)
        self._live[item] = entry
        heapq.heappush(self._heap, entry)
        self._compact()

    def remove(self, item: Item) -> None:
        """Take the item out. Raises KeyError if it is not in."""
        del self._live[item]
        self._compact()

    def peek(self) -> Item:
        """The item with the smallest key. Raises LookupError if the heap is empty."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._live.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(heap)
        raise LookupError("the heap is empty")

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)


class WaitingQueue:
    """Everybody who waits, by flow and by ticket. Also the `Heads` that a policy picks from."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, AddressableHeap[Request]] = {}
        self._heads: AddressableHeap[Hashable] = AddressableHeap()
        self._tickets: AddressableHeap[Request] = AddressableHeap()
        self._places: dict[Request, tuple[Hashable, Any]] = {}

    @property
    def requests(self) -> int:
        return len(self._places)

    def everybody(self) -> Iterator[Request]:
        """All waiting requests, in no particular order."""
        return iter(self._places)

    def oldest(self) -> Request:
        """The waiting request with the lowest ticket. Raises LookupError if nobody waits."""
        return self._tickets.peek()

    def head(self, flow: Hashable) -> Request:
        """The first of a flow. Raises KeyError if nobody waits in it."""
        return self._flows[flow].peek()

    def push(self, request: Request, flow: Hashable, key: Any) -> None:
        """Let the request wait in `flow` under `key`; the ticket breaks ties."""
        full_key = (key, request.ticket)
        self._places[request] = (flow, full_key)
        self._flows.setdefault(flow, AddressableHeap()).push(request, full_key)
        self._tickets.push(request, request.ticket)
        self._refresh(flow)

    def remove(self, request: Request) -> None:
        """Take the request out, wherever it waits. Raises KeyError if it does not wait."""
        flow, _ = self._places.pop(request)
        self._flows[flow].remove(request)
        self._tickets.remove(request)
        self._refresh(flow)

    def _refresh(self, flow: Hashable) -> None:
        """Keep the heap of heads true after a change in `flow`."""
        heap = self._flows[flow]
        if heap:
            self._heads.push(flow, self._places[heap.peek()][1])
        else:
            del self._flows[flow]
            self._heads.remove(flow)

    # What `Heads` promises to policies.

    def __contains__(self, flow: Hashable) -> bool:
        return flow in self._flows

    def __getitem__(self, flow: Hashable) -> RequestProxy:
        return self.head(flow).view

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._flows)

    def __len__(self) -> int:
        return len(self._flows)

    def best(self) -> Hashable:
        return self._heads.peek()
