"""How long requests have waited in the queue, and for what."""

from __future__ import annotations

from typing import Final

REASONS: Final = ("step", "tokens", "rows", "blocks", "class", "hold", "policy")
"""What may keep who waits out, in the words of `engine.outputs.Blocker`: the step in progress, the
token budget, the row limit, KV blocks, a limit of the class, a hold, or the policy's own choice."""


class QueueTime:
    """Adds up request-seconds in the queue, preempted requests' too, by reason.

        arrival        plan          plan        plan lets it in
           │── step ───▶│── rows ─────▶│── blocks ──▶│

    Each plan says what kept its head out, and until the next one all who wait, the head or somebody
    behind it, wait for that. Before the first plan a request waits for the step in progress.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(REASONS, 0.0)
        self._since = 0.0
        self._waiting = 0
        self._reason = "step"

    def arrived(self, seconds: float) -> None:
        """A request has been taken in, so long after it arrived."""
        self.seconds["step"] += max(0.0, seconds)

    def passed(self, now: float) -> None:
        """Book the time since the last plan; another is made now."""
        if self._waiting:
            self.seconds[self._reason] += self._waiting * (now - self._since)
        self._since = now

    def planned(self, waiting: int, reason: str) -> None:
        """A plan leaves so many waiting, for this reason."""
        self._waiting, self._reason = waiting, reason
