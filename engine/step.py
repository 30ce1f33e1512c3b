"""The live, read-only view of the step being planned (`policies.base.StepView`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.batch import BLOCK
from policies.base import Phase

if TYPE_CHECKING:
    from engine.roster import Roster


class StepProxy:
    """Reads the roster it belongs to; what takes a loop is computed when asked for."""

    __slots__ = ("_index", "_now", "_roster")

    def __init__(self, roster: Roster, index: int, now: float) -> None:
        self._roster = roster
        self._index = index
        self._now = now

    @property
    def now(self) -> float:
        return self._now

    @property
    def index(self) -> int:
        return self._index

    @property
    def budget(self) -> int:
        return self._roster.limits.step_tokens

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
        return sum(r.phase is Phase.PREFILL for r in self._roster.running.values())

    @property
    def decoding(self) -> int:
        return len(self._roster.decoding)

    @property
    def decode_kv_tokens(self) -> int:
        return sum(sequence.reached + 1 for sequence in self._roster.decoding)

    @property
    def tightest_tpot(self) -> float:
        targets = (r.submission.tpot_target for r in self._roster.running.values())
        return min(targets, default=float("inf"))

    @property
    def running_by_class(self) -> Mapping[str, int]:
        return MappingProxyType(self._roster.running_by_class)
