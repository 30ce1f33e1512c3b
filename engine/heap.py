"""A heap whose items can be moved and removed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Looks:
    """How many more entries somebody may look at who is not to hold everybody up."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self) -> bool:
        """Take one; False if there is none left."""
        self.left -= self.left > 0
        return self.left > 0


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

    def discard(self, item: Item) -> None:
        """Take the item out if it is in."""
        if item in self._live:
            self.remove(item)

    def key(self, item: Item) -> Any:
        """The key of an item. Raises KeyError if it is not in."""
        return self._live[item][0]

    def first(self) -> tuple[Any, Item]:
        """The smallest key and its item. Raises LookupError if the heap is empty."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._live.get(entry[2]) is entry:
                return entry[0], entry[2]
            heapq.heappop(heap)
        raise LookupError("the heap is empty")

    def peek(self) -> Item:
        """The item with the smallest key. Raises LookupError if the heap is empty."""
        return self.first()[1]

    def before(self, item: Item, looks: Looks) -> Iterator[Item]:
        """The items that leave before `item`, in no order, as far as `looks` reach.

        Raises KeyError if it is not in.
        """
        bound = self._live[item]
        return self.leaving(lambda key, other: self._live[other] < bound, looks)

    def leaving(self, first: Callable[[Any, Item], bool], looks: Looks) -> Iterator[Item]:
        """The items of which `first`, given key and item, is true, in no order.

        It must be true of all that leave before one of which it is. Takes one of `looks` for each
        of these items and their neighbours, and ends when there are none left.
        """
        heap, places = self._heap, [0]
        while places:
            place = places.pop()
            if place >= len(heap):
                continue
            if not looks.take():
                return
            key, _, item = entry = heap[place]
            alive = self._live.get(item) is entry
            if not alive or first(key, item):
                places += (2 * place + 1, 2 * place + 2)
                if alive:
                    yield item

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._live) + 64:
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)
