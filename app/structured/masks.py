"""Masks of the sequences of a step, for which nobody waits longer than for the step itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

import numpy as np

from engine.grammar import LATE, Late, Mask, Masks

log = logging.getLogger("octavo.structured")

LEAST_PATIENCE_S: Final = 0.005
"""How long a step waits for masks that takes no time itself."""

GLANCE_S: Final = 0.001
"""How long a step waits where all its masks were late already in an earlier one."""

MOST_LATE: Final = 256
"""Steps after which a mask that has not come is given up."""

CREW: Final = 4
"""Most threads that masks are computed on; where nothing holds it up, one does it all."""


class Fillable(Protocol):
    """What masks are made by. row: its mask, from when it is begun until it is taken."""

    row: MaskRow | None

    def fill(self, mask: Mask) -> bool:
        """Write the mask of what may come next. False if there is none: all may, or nothing."""
        ...

    def give_up(self) -> None:
        """Let there be no mask any more, for a reason that the client may read.

        From the engine's thread, while `fill` may still be at it.
        """
        ...


class MaskRow:
    """A mask, or what will be one. late: how many steps went on without it."""

    __slots__ = ("begun", "done", "late", "mask", "matcher", "wanted")

    def __init__(self, matcher: Fillable, mask: Mask) -> None:
        self.matcher = matcher
        self.mask: Mask | None = mask
        self.begun = self.done = self.wanted = False
        self.late = 0


class MaskCrew:
    """Computes masks on threads of its own; asked by one thread. words: 32-bit words of a mask.

    The masks of a step are one thread's work, one after the other. If they take half as long as
    may be waited for them, another thread takes those behind the one that holds them up. Who is
    late is left to finish, and taken by a later step.
    """

    def __init__(self, words: int) -> None:
        self._words = words
        self._pool = ThreadPoolExecutor(CREW, thread_name_prefix="octavo-masks")
        self._progress = threading.Condition()
        self._missing = 0  # of the rows that are waited for

    def begin(self, matchers: Sequence[Fillable]) -> MaskRound:
        """Begin to compute the masks of these, and return at once."""
        space = np.empty((len(matchers), self._words), np.int32)
        rows: list[MaskRow] = []
        for matcher, mask in zip(matchers, space, strict=True):
            if matcher.row is None:
                matcher.row = MaskRow(matcher, mask)
            rows.append(matcher.row)
        if not all(row.begun for row in rows):
            self.compute(rows)
        return MaskRound(self, rows)

    def compute(self, rows: Sequence[MaskRow]) -> None:
        """Have a thread compute those that no other one has begun."""
        self._pool.submit(self._work, rows)

    def wait(self, rows: Sequence[MaskRow], seconds: float) -> bool:
        """Whether all of these are done after so long at most."""
        with self._progress:
            wanted = [row for row in rows if not row.done]
            self._missing = len(wanted)
            for row in wanted:
                row.wanted = True
            done = self._progress.wait_for(lambda: not self._missing, seconds)
            for row in wanted:
                row.wanted = False
        return done

    def close(self) -> None:
        """Give the threads back."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, rows: Sequence[MaskRow]) -> None:
        for row in rows:
            with self._progress:
                if row.begun:
                    continue
                row.begun = True
            mask = _filled(row)
            with self._progress:
                row.mask = mask
                row.done = True
                if row.wanted:
                    self._missing -= 1
                    if not self._missing:
                        self._progress.notify()


class MaskRound:
    """The masks of one step."""

    __slots__ = ("_began", "_crew", "_rows")

    def __init__(self, crew: MaskCrew, rows: list[MaskRow]) -> None:
        self._crew = crew
        self._rows = rows
        self._began = time.monotonic()

    def wait(self) -> Masks:
        """The masks that are there when as much time has passed again as the step took."""
        fresh = [row for row in self._rows if not row.late]
        if fresh:
            patience = max(time.monotonic() - self._began, LEAST_PATIENCE_S)
            if not self._crew.wait(fresh, patience / 2):
                if not all(row.begun for row in fresh):
                    self._crew.compute(fresh)
                self._crew.wait(fresh, patience / 2)
        else:
            self._crew.wait(self._rows, GLANCE_S)
        return [_taken(row) for row in self._rows]


def _filled(row: MaskRow) -> Mask | None:
    """The mask of a row, computed here and now."""
    assert row.mask is not None
    try:
        return row.mask if row.matcher.fill(row.mask) else None
    except Exception:
        log.exception("a mask could not be computed")
        row.matcher.give_up()
        return None


def _taken(row: MaskRow) -> Mask | Late | None:
    """What a step gets of a row."""
    if not row.done:
        row.late += 1
        if row.late <= MOST_LATE:
            return LATE
        row.matcher.give_up()
    row.matcher.row = None
    return row.mask if row.done else None
