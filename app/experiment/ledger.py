"""Books what happens to the period that it counts for, and keeps what complete blocks came to."""

from __future__ import annotations

from collections import deque
from typing import Final

from app.experiment.comparison import Result
from app.experiment.periods import Period
from app.experiment.schedule import Turn
from app.metrics.requests import ABORT, ERROR, REJECTED
from engine.inbox import Submission

FAILED: Final = frozenset({ERROR, REJECTED})


class Ledger:
    """Listens to the metrics (`app.metrics.requests.Listener`).

    arms: how many there are. patience: seconds after a period's end for which the end of its
    requests is waited for.
    """

    def __init__(self, arms: int, patience: float) -> None:
        self._arms = arms
        self._patience = patience
        self._unsettled: deque[Period] = deque()
        self._of_request: dict[int, Period] = {}
        self._now = 0.0
        self._partial: dict[int, Result] = {}
        self.current: Period | None = None
        self.blocks: list[dict[int, Result]] = []

    # ---------------------------------------------------------------- periods

    def begin(self, turn: Turn, opens: float) -> Period:
        """A turn begins, which is measured from then on."""
        self.current = Period(turn, opens)
        return self.current

    def close(self, now: float) -> None:
        """The turn is over, and measured no more."""
        if self.current is not None:
            self.current.closes = now
            self._unsettled.append(self.current)
            self.current = None

    def drop(self) -> None:
        """The turn was cut short, and says nothing; nor does its block."""
        self.current = None

    def settle(self, now: float) -> bool:
        """Take periods in that are complete, in their order; True if a block came with them."""
        before = len(self.blocks)
        while self._unsettled and self._unsettled[0].settled(now, self._patience):
            period = self._unsettled.popleft()
            period.give_up(now)
            self._partial[period.turn.arm] = Result.of(period)
            if len(self._partial) == self._arms:
                self.blocks.append(self._partial)
                self._partial = {}
        return len(self.blocks) > before

    # ---------------------------------------------------------------- booking

    def arrived(self, submission: Submission) -> None:
        """As of Listener."""
        period = self.current
        if period is not None and period.measures(submission.arrival):
            period.arrive(submission)
            self._of_request[submission.id] = period

    def began(self, submission: Submission, seconds: float, cached: int) -> None:
        """As of Listener."""
        if (period := self._of_request.get(submission.id)) is not None:
            period.begin(submission, seconds)

    def came(self, submission: Submission, tokens: int, gap: float | None, at: float) -> None:
        """As of Listener."""
        self._now = at
        period = self.current
        if period is not None and period.measures(at):
            period.take(submission, tokens, gap)

    def over(self, submission: Submission, outcome: str, met: bool | None) -> None:
        """As of Listener. Who left has not failed, and has met nothing that could be told."""
        if (period := self._of_request.pop(submission.id, None)) is not None:
            failed = outcome in FAILED
            period.end(
                submission, failed=failed, met=None if outcome == ABORT else met, at=self._now
            )
