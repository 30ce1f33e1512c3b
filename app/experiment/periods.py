"""A period of an experiment, and what is booked to it.

      in charge ├── arm ─────────────────────────┤├── next arm …
      washout   ├──────┤
      measured         ├─────────────────────────┤
      requests         those that arrive here, whenever they are served
      tokens           those that come here, whoever's they are

A request counts for the arm that was in charge when it arrived, wherever it ends: whatever else one
did, which of them are counted would depend on how fast they were. Its end may be another arm's
work; the shorter requests are beside a period, the less that matters, and `spanned` says how many
they are.
"""

from __future__ import annotations

from collections import defaultdict

from app.experiment.measures import Tally
from app.experiment.schedule import Turn
from engine.inbox import Submission


class Period:
    """One turn of an arm. opens: when measuring begins, by the engine's clock; closes: None yet."""

    def __init__(self, turn: Turn, opens: float) -> None:
        self.turn = turn
        self.opens = opens
        self.closes: float | None = None
        self.whole = Tally()
        self.of_class: defaultdict[str, Tally] = defaultdict(Tally)
        self.of_tenant: defaultdict[str, Tally] = defaultdict(Tally)
        self.requests = 0
        self.spanned = 0
        self._open: dict[int, Submission] = {}
        self._begun: set[int] = set()

    def measures(self, at: float) -> bool:
        """Whether what happens at this time counts."""
        return at >= self.opens and (self.closes is None or at < self.closes)

    def settled(self, now: float, patience: float) -> bool:
        """Whether it has closed, and everybody has ended or is waited for no longer."""
        return self.closes is not None and (not self._open or now >= self.closes + patience)

    # ---------------------------------------------------------------- booking

    def arrive(self, submission: Submission) -> None:
        """A request came that counts for this period."""
        self.requests += 1
        self._open[submission.id] = submission

    def begin(self, submission: Submission, seconds: float) -> None:
        """A request of this period has its first token after `seconds`."""
        if submission.id in self._open and submission.id not in self._begun:
            self._begun.add(submission.id)
            for tally in self._tallies(submission):
                tally.first += 1
                tally.waited += seconds

    def take(self, submission: Submission, tokens: int, gap: float | None) -> None:
        """Tokens came in this period, of whichever request; gap: seconds before each."""
        for tally in self._tallies(submission):
            tally.tokens += tokens
        if gap is not None:
            self.whole.gaps.add(gap, tokens)

    def end(self, submission: Submission, *, failed: bool, met: bool | None, at: float) -> None:
        """A request of this period is over; met: whether it got its targets, None without any."""
        if self._open.pop(submission.id, None) is None:
            return
        self._begun.discard(submission.id)
        self.spanned += self.closes is not None and at >= self.closes
        for tally in self._tallies(submission):
            tally.over += 1
            tally.failed += failed
            if met is not None:
                tally.promised += 1
                tally.met += met

    def give_up(self, now: float) -> None:
        """Count who still waits as having waited until now: it is that long at least."""
        for submission in list(self._open.values()):
            self.begin(submission, now - submission.arrival)
        self.spanned += len(self._open)
        self._open.clear()
        self._begun.clear()

    # ---------------------------------------------------------------- reading

    def seconds(self, now: float) -> float:
        """How long it has been measuring by now."""
        return max(0.0, (now if self.closes is None else self.closes) - self.opens)

    def ttft_so_far(self, now: float) -> float | None:
        """Mean seconds to the first token, who waits counted as long as it has."""
        waiting = [each for key, each in self._open.items() if key not in self._begun]
        count = self.whole.first + len(waiting)
        waited = self.whole.waited + sum(now - each.arrival for each in waiting)
        return waited / count if count else None

    def so_far(self, measure: str, now: float) -> float | None:
        """A measure of what has been seen by now."""
        if measure == "ttft_s":
            return self.ttft_so_far(now)
        return self.whole.measured(self.seconds(now))[measure]

    def _tallies(self, submission: Submission) -> tuple[Tally, Tally, Tally]:
        of_class, of_tenant = self.of_class, self.of_tenant
        return self.whole, of_class[submission.slo_class], of_tenant[submission.tenant]
