"""The live, read-only view of the step being planned (`policies.base.StepView`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.batch import BLOCK
from policies.base import Phase

if TYPE_CHECKING:
    from engine.scheduler import Scheduler


class StepProxy:
    """Reads the scheduler it belongs to; what takes a loop is computed when asked for."""

    __slots__ = ("_now", "_scheduler")

    def __init__(self, scheduler: Scheduler, now: float) -> None:
        self._scheduler = scheduler
        self._now = now

    @property
    def now(self) -> float:
        return self._now

    @property
    def index(self) -> int:
        return self._scheduler.counters.steps

    @property
    def budget(self) -> int:
        return self._scheduler.limits.step_tokens

    @property
    def row_limit(self) -> int:
        return self._scheduler.limits.rows

    @property
    def block_size(self) -> int:
        return BLOCK

    @property
    def free_blocks(self) -> int:
        return self._scheduler.pool.free

    @property
    def evictable_blocks(self) -> int:
        return self._scheduler.pool.cached

    @property
    def total_blocks(self) -> int:
        return self._scheduler.pool.total

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting.requests

    @property
    def prefilling(self) -> int:
        return sum(r.phase is Phase.PREFILL for r in self._scheduler.running)

    @property
    def decoding(self) -> int:
        return sum(r.phase is Phase.DECODE for r in self._scheduler.running)

    @property
    def decode_kv_tokens(self) -> int:
        return sum(sequence.computed + 1 for sequence in self._scheduler.decoding)

    @property
    def tightest_tpot(self) -> float:
        targets = (r.submission.tpot_target for r in self._scheduler.running)
        return min(targets, default=float("inf"))

    @property
    def running_by_class(self) -> Mapping[str, int]:
        return Counter(request.slo_class for request in self._scheduler.running)
