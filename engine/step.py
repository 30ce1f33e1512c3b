"""The live, read-only view of the step being planned (`policies.base.StepView`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.batch import BLOCK
from engine.read_only import ReadOnly
from policies.base import Phase

if TYPE_CHECKING:
    from engine.roster import Roster


class StepProxy(ReadOnly):
    """Reads the roster it belongs to; what takes a loop is computed when asked for, and kept until
    who runs changes."""

    __slots__ = ("_counts", "_counts_at", "_index", "_now", "_roster")

    _roster: Roster
    _index: int
    _now: float
    _counts_at: int
    _counts: tuple[int, int, float]

    def __init__(self, roster: Roster, index: int, now: float) -> None:
        put = object.__setattr__
        put(self, "_on_write", roster.guard.wrote)
        put(self, "_roster", roster)
        put(self, "_index", index)
        put(self, "_now", now)
        put(self, "_counts_at", -1)

    def _count(self) -> tuple[int, int, float]:
        """Requests that prefill, KV tokens that decodes read, tightest TPOT target."""
        roster = self._roster
        if self._counts_at != roster.moves:
            running = roster.running.values()
            counts = (
                sum(request.phase is Phase.PREFILL for request in running),
                sum(sequence.reached + 1 for sequence in roster.decoding),
                min((r.submission.tpot_target for r in running), default=math.inf),
            )
            object.__setattr__(self, "_counts", counts)
            object.__setattr__(self, "_counts_at", roster.moves)
        return self._counts

    @property
    def now(self) -> float:
        return self._now

    @property
    def index(self) -> int:
        return self._index

    @property
    def budget(self) -> int:
        return self._roster.limits.budget(len(self._roster.decoding))

    @property
    def row_limit(self) -> int:
        return self._roster.limits.rows

    @property
    def block_size(self) -> int:
        return BLOCK

    @property
    def free_blocks(self) -> int:
        return self._roster.memory.pool.free

    @property
    def evictable_blocks(self) -> int:
        return self._roster.memory.pool.cached

    @property
    def total_blocks(self) -> int:
        return self._roster.memory.pool.total

    @property
    def waiting(self) -> int:
        return self._roster.waiting.requests

    @property
    def prefilling(self) -> int:
        return self._count()[0]

    @property
    def decoding(self) -> int:
        return len(self._roster.decoding)

    @property
    def decode_kv_tokens(self) -> int:
        return self._count()[1]

    @property
    def forced_tokens(self) -> int:
        decodes = self._roster.decoding
        return sum(max(0, s.remaining - 1) for s in decodes if s.matcher is not None)

    @property
    def tightest_tpot(self) -> float:
        return self._count()[2]

    @property
    def running_by_class(self) -> Mapping[str, int]:
        return MappingProxyType(self._roster.running_by_class)
