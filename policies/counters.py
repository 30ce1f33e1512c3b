"""What tenants got, as counters, and who of those that wait got least: for policies that share."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping

from policies.base import Heads, RequestView

Flow = tuple[str, str]
"""Class and tenant. A class at its limit is closed as a whole, so each has a heap of its own."""

Entry = tuple[float, int, str]

QUIET = 1024
"""Counters that are kept without a look at whether they still mean something."""


class TenantCounters:
    """A counter for each tenant, and a heap over those with requests waiting.

    A tenant that comes back is lifted: its counter becomes at least the smallest of those who wait;
    if nobody waits, at least that of the tenant who waited last. Everything is O(log tenants) for
    each class in which somebody waits.

    Counters mostly grow, so an entry of the heap that is too small is moved when it comes to the
    top, not before.
    """

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._requests: dict[int, Flow] = {}
        self._flows: Counter[Flow] = Counter()
        self._waiting: Counter[str] = Counter()
        self._heaps: dict[str, list[Entry]] = {}
        self._entries: dict[Flow, Entry] = {}
        self._pushes = 0
        self._last: str | None = None
        self._tidy_at = QUIET

    # ---------------------------------------------------------------- reading

    def __getitem__(self, tenant: str) -> float:
        return self._counters.get(tenant, 0.0)

    @property
    def smallest(self) -> float:
        """The smallest counter of those who wait; of who waited last if nobody does."""
        if self._waiting:
            return min(entry[0] for entry in map(self._top, list(self._heaps)) if entry)
        return self[self._last] if self._last is not None else 0.0

    @property
    def waiting(self) -> list[str]:
        """The tenants with somebody waiting; if nobody waits, the one who did last."""
        return list(self._waiting) or ([] if self._last is None else [self._last])

    def least(self, heads: Heads) -> Hashable:
        """The flow of those to pick from whose tenant has the smallest counter.

        Of two classes of the same tenant the one whose head came first.
        """
        best: tuple[float, int, Flow] | None = None
        for slo_class in list(self._heaps):
            entry = self._top(slo_class)
            flow = (slo_class, entry[2]) if entry else None
            if entry and flow and flow in heads:  # else the class is closed
                candidate = (entry[0], heads[flow].ticket, flow)
                best = min(best, candidate) if best else candidate
        if best is not None:
            return best[2]
        return min(heads, key=lambda flow: heads[flow].ticket)  # the books missed somebody

    def _top(self, slo_class: str) -> Entry | None:
        """The entry with the smallest counter of a class; a class without any is forgotten."""
        heap = self._heaps[slo_class]
        while heap:
            entry = heap[0]
            flow = (slo_class, entry[2])
            counter = self[entry[2]]
            if self._entries.get(flow) is not entry:
                heapq.heappop(heap)
            elif counter > entry[0]:
                self._entries[flow] = fresh = self._entry(counter, entry[2])
                heapq.heapreplace(heap, fresh)
            else:
                return entry
        del self._heaps[slo_class]
        return None

    # ---------------------------------------------------------------- moving

    def join(self, request: RequestView, *, lift: bool = True) -> None:
        """A request waits from now on; lift: as a tenant that comes back, if nobody of it waits."""
        if request.id in self._requests:
            return
        tenant, flow = request.tenant, (request.slo_class, request.tenant)
        if lift and tenant not in self._waiting:
            self._counters[tenant] = max(self[tenant], self.smallest)
        self._counters.setdefault(tenant, 0.0)
        self._requests[request.id] = flow
        self._waiting[tenant] += 1
        self._flows[flow] += 1
        if self._flows[flow] == 1:
            self._push(flow)

    def leave(self, request: RequestView) -> bool:
        """A request waits no more. False if it did not."""
        flow = self._requests.pop(request.id, None)
        if flow is None:
            return False
        self._last = tenant = flow[1]
        self._waiting[tenant] -= 1
        self._flows[flow] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
        if not self._flows[flow]:
            del self._flows[flow], self._entries[flow]
        return True

    def charge(self, tenant: str, amount: float) -> None:
        """Add to a counter; a negative amount is given back."""
        self._counters[tenant] = self[tenant] + amount
        if amount < 0:
            for slo_class in self._heaps:
                if (slo_class, tenant) in self._entries:
                    self._push((slo_class, tenant))

    def _push(self, flow: Flow) -> None:
        self._entries[flow] = entry = self._entry(self[flow[1]], flow[1])
        heapq.heappush(self._heaps.setdefault(flow[0], []), entry)

    def _entry(self, counter: float, tenant: str) -> Entry:
        self._pushes += 1
        return (counter, self._pushes, tenant)

    def tidy(self, running: Iterable[str]) -> None:
        """Forget the counters that returning would lift anyway.

        running: the tenants of running requests, which may still be charged. Costs nothing most of
        the time.
        """
        if len(self._counters) < self._tidy_at:
            return
        floor = self.smallest
        present = {*self._waiting, *running, self._last}
        self._counters = {
            tenant: counter
            for tenant, counter in self._counters.items()
            if counter > floor or tenant in present
        }
        self._tidy_at = max(QUIET, 2 * len(self._counters))

    # ---------------------------------------------------------------- swaps

    def copy(self) -> dict[str, float]:
        """All counters by tenant, that of who left last included."""
        return dict(self._counters)

    def start(self, counters: Mapping[str, float], waited: Collection[str]) -> None:
        """Begin with these counters, when nobody waits. waited: those who did last, if any."""
        self._counters.update(counters)
        self._last = min(waited, key=self.__getitem__, default=None)


def clamped(counters: Mapping[str, float], span: float) -> dict[str, float]:
    """The counters, none of them more than `span` below the largest."""
    floor = max(counters.values(), default=-math.inf) - span
    return {tenant: max(counter, floor) for tenant, counter in counters.items()}
