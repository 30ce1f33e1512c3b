"""Watches an engine step by step for what must always hold."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Set

from engine.backends.scripted import ScriptedBackend
from engine.batch import Batch
from engine.decisions import DecisionLog
from engine.scheduler import Scheduler

Key = tuple[int, int]
"""A sequence: request and index."""


class StepWatch:
    """Holds E2, E8 and E13 against each step, and E1, E3 and E6 by `Scheduler.check`.

    Call `before` and `after` around each step of the loop. What does not hold raises
    AssertionError; its message starts with the name of the invariant.
    """

    def __init__(self, scheduler: Scheduler, backend: ScriptedBackend, log: DecisionLog) -> None:
        self._scheduler = scheduler
        self._backend = backend
        self._log = log
        self._window = scheduler.guard.settings.window
        self._plans = 0
        self._served: dict[Key, int] = {}
        self._prompt_tokens: deque[tuple[int, bool]] = deque(maxlen=self._window)
        self._batches = 0
        self._busy = False
        self._lacking = 0
        self._prefilling: set[int] = set()
        self._preemptions = 0

    def before(self) -> None:
        """A step is about to begin."""
        scheduler = self._scheduler
        self._batches = len(self._backend.batches)
        self._busy = scheduler.in_flight > 0
        self._lacking = scheduler.planner.lacking()
        self._prefilling = {each.request.id for each in scheduler.roster.prefilling}
        self._preemptions = scheduler.counters.preemptions

    def after(self) -> None:
        """The step is over."""
        scheduler = self._scheduler
        scheduler.check()
        if len(self._backend.batches) > self._batches:
            self._plans += 1
            left = self._prefilling - scheduler.roster.requests.keys()
            if left or scheduler.counters.preemptions > self._preemptions:
                self._lacking = 0  # the prompts that ran may be among those who are gone
            self._hold_against(self._backend.batches[-1])
        elif not self._busy:
            held = scheduler.planner.hold_until < math.inf
            waiting = scheduler.roster.waiting
            assert held or not waiting.anybody, "E8: somebody waits and nothing was computed"
            assert not scheduler.roster.running, "E8: a running request was not computed"

    def _hold_against(self, batch: Batch) -> None:
        limits = self._scheduler.limits
        assert len(batch.rows) <= limits.rows, "E2: rows"
        rows = {(row.request, row.index): row for row in batch.rows}
        assert len(rows) == len(batch.rows), "E2: two rows of a sequence"
        dry = self._scheduler.pool.free == 0
        self._hold_decodes(rows.keys(), dry=dry)
        decoded = self._decoded()
        assert batch.tokens <= limits.budget(len(decoded)), "E2: tokens"
        granted = sum(row.count for key, row in rows.items() if key not in decoded)
        self._prompt_tokens.append((granted, dry or self._lacking < self._window))
        if len(self._prompt_tokens) == self._window and not any(x for _, x in self._prompt_tokens):
            total = sum(count for count, _ in self._prompt_tokens)
            assert total >= self._window, f"E13: prompts got {total} tokens in {self._window} steps"

    def _hold_decodes(self, rows: Set[Key], *, dry: bool) -> None:
        """Each running decode was served within the window, or pauses for blocks."""
        running = {(s.request.id, s.index): s for s in self._scheduler.roster.decoding}
        self._served = {key: step for key, step in self._served.items() if key in running}
        for key, sequence in running.items():
            if key in rows or dry or sequence.remaining == 0:
                self._served[key] = self._plans
            gap = self._plans - self._served.setdefault(key, self._plans)
            assert gap <= self._window, f"E13: {key} got no token for {gap} steps"

    def _decoded(self) -> set[Key]:
        """Sequences that the last step granted a token as decodes, by the decision log."""
        keys: set[Key] = set()
        for entry in reversed(self._log.entries):
            if entry[0] == "decode":
                keys.update(zip(entry[1][::2], entry[1][1::2], strict=True))
            if entry[0] == "step":
                break
        return keys
