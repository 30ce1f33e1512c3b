"""Who waits: addressable heaps by flow and key, by ticket and by deadline, one lane per class."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

from engine.heap import AddressableHeap, Looks
from engine.read_only import OnWrite, ReadOnly, unheard
from engine.request import Request, RequestProxy


class FlowOrder(Protocol):
    """The waiting requests of one flow (see `AddressableHeap`)."""

    def __len__(self) -> int: ...
    def push(self, item: Request, key: Any, /) -> None: ...
    def remove(self, item: Request, /) -> None: ...
    def first(self) -> tuple[Any, Request]: ...
    def before(self, item: Request, looks: Looks, /) -> Iterator[Request]: ...


MakeFlow = Callable[[], FlowOrder]


NO_CLASS: frozenset[str] = frozenset()


class Lane:
    """The waiting requests of one class: a heap per flow, one over the heads, one by ticket.

    make_flow: makes the order of a flow that does not move by itself; given None, flows are plain
    heaps. Those that do move have no heap over their heads: `best_flow` looks at each.
    """

    def __init__(self, make_flow: MakeFlow | None) -> None:
        self.flows: dict[Hashable, FlowOrder] = {}
        self.tickets: AddressableHeap[Request] = AddressableHeap()
        self._make_flow: MakeFlow = make_flow or AddressableHeap[Request]
        self._heads: AddressableHeap[Hashable] | None = None if make_flow else AddressableHeap()

    def push(self, request: Request, flow: Hashable, key: Any) -> None:
        order = self.flows.get(flow)
        if order is None:
            order = self.flows[flow] = self._make_flow()
        order.push(request, key)
        self.tickets.push(request, request.ticket)
        self._refresh(flow)

    def remove(self, request: Request, flow: Hashable) -> None:
        self.flows[flow].remove(request)
        self.tickets.remove(request)
        self._refresh(flow)

    def best(self) -> tuple[Any, Hashable]:
        """The smallest key of all heads, and its flow. Somebody must wait."""
        if self._heads is not None:
            return self._heads.first()
        entries = ((order.first()[0], flow) for flow, order in self.flows.items())
        return min(entries, key=lambda entry: entry[0])

    def _refresh(self, flow: Hashable) -> None:
        """Keep the heap of heads true after a change in `flow`."""
        order = self.flows[flow]
        if not order:
            del self.flows[flow]
            if self._heads is not None:
                self._heads.remove(flow)
        elif self._heads is not None:
            self._heads.push(flow, order.first()[0])


class WaitingQueue:
    """Everybody who waits.

    heads: what a policy picks from. closed: classes that may not have anybody admitted now. Their
    requests wait on, and neither `heads` nor `oldest` shows them; closing and opening a class costs
    nothing.
    """

    def __init__(self, on_write: OnWrite = unheard) -> None:
        self.closed: set[str] = set()
        self.heads = HeadsProxy(self, on_write)
        self._make_flow: MakeFlow | None = None
        self._lanes: dict[str, Lane] = {}
        self._deadlines: AddressableHeap[Request] = AddressableHeap()
        self._places: dict[Request, tuple[Lane, Hashable]] = {}

    @property
    def requests(self) -> int:
        return len(self._places)

    @property
    def anybody(self) -> bool:
        """Whether somebody of an open class waits."""
        return bool(self._open())

    def holds(self, request: Request) -> bool:
        """Whether the request is in the queue."""
        return request in self._places

    def of_class(self, slo_class: str) -> int:
        """How many of a class wait."""
        lane = self._lanes.get(slo_class)
        return len(lane.tickets) if lane else 0

    def by_class(self) -> dict[str, int]:
        """How many of each class wait; for metrics, made once a step."""
        return {name: len(lane.tickets) for name, lane in self._lanes.items()}

    @property
    def gated(self) -> int:
        """How many wait in classes that are closed."""
        return sum(self.of_class(name) for name in self.closed) if self.closed else 0

    def shut(self) -> frozenset[str]:
        """The closed classes in which somebody waits."""
        if not self.closed:
            return NO_CLASS
        return frozenset(name for name in self.closed if self.of_class(name))

    def line_of(self, request: Request) -> tuple[str, Hashable]:
        """The class and the flow in which a request waits. Raises KeyError if it does not."""
        return request.slo_class, self._places[request][1]

    def lines(self) -> int:
        """In how many classes and flows somebody waits."""
        return sum(len(lane.flows) for lane in self._lanes.values())

    def before(self, request: Request, looks: Looks) -> tuple[list[Request], int]:
        """Who goes before a request in its line, as far as `looks` reach, and how long that is."""
        lane, flow = self._places[request]
        order = lane.flows[flow]
        return list(order.before(request, looks)), len(order)

    def reset(self, make_flow: MakeFlow | None) -> list[Request]:
        """Take everybody out, and keep the flows of who comes from now on in orders made like this.

        None: in heaps by key. Returns who waited, in no particular order.
        """
        requests = list(self._places)
        self._make_flow = make_flow
        self._lanes.clear()
        self._places.clear()
        self._deadlines = AddressableHeap()
        return requests

    def push(self, request: Request, flow: Hashable, key: Any) -> None:
        """Let the request wait in `flow` under `key`; the ticket breaks ties."""
        lane = self._lanes.get(request.slo_class)
        if lane is None:
            lane = self._lanes[request.slo_class] = Lane(self._make_flow)
        self._places[request] = (lane, flow)
        lane.push(request, flow, (key, request.ticket))
        if request.submission.queue_deadline < math.inf and request.preemptions == 0:
            self._deadlines.push(request, request.submission.queue_deadline)

    def remove(self, request: Request) -> None:
        """Take the request out, wherever it waits. Raises KeyError if it does not wait."""
        lane, flow = self._places.pop(request)
        lane.remove(request, flow)
        if request in self._deadlines:
            self._deadlines.remove(request)

    def oldest(self) -> Request:
        """The lowest ticket of the open classes. Raises LookupError if nobody is there."""
        heads = (lane.tickets.first() for lane in self._open())
        ticket_and_request = min(heads, default=None, key=lambda entry: entry[0])
        if ticket_and_request is None:
            raise LookupError("nobody waits in an open class")
        return ticket_and_request[1]

    def head(self, flow: Hashable) -> Request:
        """The first of a flow, of the open classes. Raises KeyError if nobody is there."""
        firsts = [lane.flows[flow].first() for lane in self._open() if flow in lane.flows]
        if not firsts:
            raise KeyError(flow)
        return firsts[0][1] if len(firsts) == 1 else min(firsts, key=lambda entry: entry[0])[1]

    def next_deadline(self) -> float:
        """When the next request is no longer worth starting; inf if there is none."""
        return self._deadlines.first()[0] if self._deadlines else math.inf

    def overdue(self, now: float) -> list[Request]:
        """Take out every request whose queue deadline has passed."""
        requests: list[Request] = []
        while self._deadlines and self._deadlines.first()[0] <= now:
            requests.append(self._deadlines.peek())
            self.remove(requests[-1])
        return requests

    def _open(self) -> list[Lane]:
        """Lanes of open classes in which somebody waits."""
        return [
            lane
            for slo_class, lane in self._lanes.items()
            if lane.flows and slo_class not in self.closed
        ]

    def flows(self) -> Iterator[Hashable]:
        """Flows of open classes in which somebody waits."""
        return iter(dict.fromkeys(flow for lane in self._open() for flow in lane.flows))

    def has_flow(self, flow: Hashable) -> bool:
        """Whether somebody of an open class waits in the flow."""
        return any(flow in lane.flows for lane in self._open())

    def count_flows(self) -> int:
        lanes = self._open()
        return len(lanes[0].flows) if len(lanes) == 1 else sum(1 for _ in self.flows())

    def best_flow(self) -> Hashable:
        """The flow whose head has the smallest key. Raises LookupError if nobody waits."""
        lanes = self._open()
        if not lanes:
            raise LookupError("nobody waits in an open class")
        return min((lane.best() for lane in lanes), key=lambda entry: entry[0])[1]


class HeadsProxy(ReadOnly):
    """What a policy sees of the queue (`policies.base.Heads`): no way to move anybody."""

    __slots__ = ("_queue",)

    _queue: WaitingQueue

    def __init__(self, queue: WaitingQueue, on_write: OnWrite) -> None:
        object.__setattr__(self, "_on_write", on_write)
        object.__setattr__(self, "_queue", queue)

    def __contains__(self, flow: Hashable) -> bool:
        return self._queue.has_flow(flow)

    def __getitem__(self, flow: Hashable) -> RequestProxy:
        return self._queue.head(flow).view

    def __iter__(self) -> Iterator[Hashable]:
        return self._queue.flows()

    def __len__(self) -> int:
        return self._queue.count_flows()

    def best(self) -> Hashable:
        return self._queue.best_flow()
