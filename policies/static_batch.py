"""Static batching: a batch is let in together, and nobody else before all of it have finished."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from policies.base import (
    OWN,
    Admitted,
    Arrived,
    Cancelled,
    Event,
    Finished,
    Heads,
    Phase,
    Policy,
    RequestView,
    Services,
    StepView,
    Tokens,
)

QUEUE, BATCH = "queue", "batch"


@dataclass(slots=True)
class Member:
    """A request of a batch, in tokens: its prompt, its answers so far, the longest of them.

    most: how long that may become.
    """

    prompt: int
    sequences: int
    most: int
    tokens: int
    length: int

    @classmethod
    def of(cls, request: RequestView) -> Member:
        output, rows = request.output, request.rows
        return cls(request.prompt, rows, request.max_output, output, output // rows)


@dataclass(slots=True)
class Totals:
    """What became of the batches that are over.

    batches, requests: how many. rows: rows that were computed for the tokens they generated;
    padded_rows: those of a padded batch, in which every sequence goes on to the end of the longest.
    prompt_tokens, padded_prompt_tokens: likewise, each prompt as long as the longest.
    """

    batches: int = 0
    requests: int = 0
    rows: int = 0
    padded_rows: int = 0
    prompt_tokens: int = 0
    padded_prompt_tokens: int = 0

    def add(self, members: Collection[Member]) -> None:
        """Book a batch; an empty one is none."""
        if not members:
            return
        self.batches += 1
        self.requests += len(members)
        self.rows += sum(member.tokens for member in members)
        sequences = sum(member.sequences for member in members)
        self.padded_rows += sequences * max(member.length for member in members)
        self.prompt_tokens += sum(member.prompt for member in members)
        self.padded_prompt_tokens += len(members) * max(member.prompt for member in members)


class StaticBatch(Policy):
    """Request-level batching, the baseline that continuous batching is measured against.

    Orca (OSDI 2022, https://www.usenix.org/conference/osdi22/presentation/yu) calls it batching at
    the granularity of requests: whoever has ended early waits for the longest, and whoever arrives
    waits for all of them. A batch is at most `size` of those who wait when it begins, in order of
    arrival, as many as fit. The engine computes no padding; `export` reports what a padded batch
    would have computed (`Totals`).

    Bound: requests start in order of arrival, each at the latest when everybody before it has
    finished.
    """

    def __init__(self, *, services: Services, size: int = 8) -> None:
        """size: requests of a batch at most. Raises ValueError if it is not positive."""
        super().__init__(services=services)
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self._size = size
        self._totals = Totals()
        self._batch: dict[int, Member] = {}
        self._unfinished: set[int] = set()
        self._seats = 0
        self._newest = self._last = -1  # tickets: of all who came, and of who may join the batch
        self._is_full = False

    # ---------------------------------------------------------------- who is next

    def flow(self, request: RequestView) -> Hashable:
        """Whoever gave way belongs to the batch still, and comes back before anybody else."""
        return BATCH if request.id in self._unfinished else QUEUE

    def pick(self, heads: Heads, step: StepView) -> Hashable | None:
        if BATCH in heads:
            return BATCH
        if QUEUE not in heads:
            return None
        head = heads[QUEUE]
        if not self._may_join(head) and self._is_over(step):
            self._begin(head)
        return QUEUE if self._may_join(head) else None

    def backfill(self, step: StepView) -> int:
        """Asked when a head does not fit: from the next end on the batch is who is in it."""
        self._is_full = True
        return 0

    def _may_join(self, head: RequestView) -> bool:
        return self._seats > 0 and head.ticket <= self._last

    def _is_over(self, step: StepView) -> bool:
        """Nobody of the batch is left, or runs: events are not told to who fails all the time."""
        return not self._unfinished or not (step.prefilling or step.decoding)

    def _begin(self, head: RequestView) -> None:
        """A batch of those who wait now."""
        self._totals.add(self._batch.values())
        self._batch.clear()
        self._unfinished.clear()
        self._is_full = False
        self._seats, self._last = self._size, max(self._newest, head.ticket)

    # ---------------------------------------------------------------- what happens

    def observe(self, events: Sequence[Event]) -> Iterable[int]:
        self._count(event for event in events if isinstance(event, Tokens))
        for event in events:
            match event:
                case Arrived(request):
                    self._newest = max(self._newest, request.ticket)
                case Admitted(request):
                    self._join(request)
                case Finished(request) | Cancelled(request):
                    self._leave(request)
        return ()

    def _count(self, events: Iterable[Tokens]) -> None:
        """Tokens of one step. A group is as long as the steps they take: it may start staggered."""
        grown: dict[int, int] = {}
        for event in events:
            number = event.request.id
            if member := self._batch.get(number):
                member.tokens += event.count
                grown[number] = max(grown.get(number, 0), event.count)
        for number, count in grown.items():
            member = self._batch[number]
            member.length = min(member.length + count, member.most)

    def _join(self, request: RequestView) -> None:
        """A member of the batch, whoever let it in: everybody waits for it."""
        if request.id not in self._batch:
            self._batch[request.id] = Member.of(request)
            self._seats -= 1
        self._unfinished.add(request.id)

    def _leave(self, request: RequestView) -> None:
        if request.id in self._unfinished:
            self._unfinished.remove(request.id)
            if self._is_full:
                self._seats = 0

    # ---------------------------------------------------------------- hand-over and words

    def export(self) -> dict[str, Any]:
        """`static_batch`: the `Totals` of the batches that are over, by name."""
        totals = replace(self._totals)
        if not self._unfinished:
            totals.add(self._batch.values())
        return {"static_batch": asdict(totals)}

    def restore(
        self, state: Mapping[str, Any], live: Sequence[RequestView], step: StepView
    ) -> None:
        """Whoever has started is the batch, and nobody joins it."""
        self._totals = Totals(**state.get(OWN, {}).get("static_batch", {}))
        self._newest = max((request.ticket for request in live), default=-1)
        for request in live:
            if request.phase is not Phase.WAITING:
                self._join(request)
        self._seats = 0

    def explain(self, request: RequestView, step: StepView) -> str:
        if request.id in self._unfinished:
            return "it belongs to the batch that runs, gave way, and comes back when it fits"
        return (
            f"nobody starts before the {len(self._unfinished)} unfinished requests of the batch "
            f"that runs have finished; the next {self._size} start together"
        )
