"""How many requests are open and wait, and whether there is room for one more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from app.tenancy import Tenant
from engine.inbox import Submission

ANYBODY = Tenant()
RETRY_AFTER_S = 1.0


class Overloaded(Exception):
    """The house is full: nothing crossed to the engine."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QuotaExceeded(Exception):
    """The tenant has as many requests open as it may: nothing crossed to the engine."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Room:
    """Counts what is open. Who enters asks `require` first, with nothing awaited in between.

    max_open: sequences at once. max_waiting_tokens: of prompts, together, that have no token of
    their answer yet; None is no limit.
    """

    def __init__(self, max_open: int, max_waiting_tokens: int | None = None) -> None:
        self._max_open = max_open
        self._max_waiting = math.inf if max_waiting_tokens is None else max_waiting_tokens
        self._sequences = 0
        self._of_tenant: Counter[str] = Counter()
        self._waiting: dict[int, int] = {}
        """Requests without a token yet, and how long their prompts are."""
        self._waiting_tokens = 0

    def require(self, tenant: Tenant = ANYBODY, sequences: int = 1, tokens: int = 1) -> None:
        """Raise Overloaded or QuotaExceeded if there is no room.

        tokens: of the prompts. If nobody waits there may be any number of them.
        """
        if self._sequences + sequences > self._max_open:
            raise Overloaded(
                f"the server holds {self._sequences} sequences and takes {self._max_open} at most; "
                "try again later",
                RETRY_AFTER_S,
            )
        if self._waiting and self._waiting_tokens + tokens > self._max_waiting:
            raise Overloaded(
                f"prompts of {self._waiting_tokens} tokens wait to be answered and "
                f"{self._max_waiting} may at most; try again later",
                RETRY_AFTER_S,
            )
        most, has = tenant.most_open, self._of_tenant[tenant.name]
        if most is not None and has + sequences > most:
            message = f"tenant {tenant.name} has {has} sequences open and may have {most} at most"
            raise QuotaExceeded(message, RETRY_AFTER_S)

    def enter(self, tenant: Tenant, submissions: Sequence[Submission]) -> None:
        """Count these in, all of them or none. Raises what `require` raises."""
        sequences = sum(submission.sequences for submission in submissions)
        tokens = sum(len(submission.prompt) for submission in submissions)
        self.require(tenant, sequences, tokens)
        self._sequences += sequences
        self._of_tenant[tenant.name] += sequences
        self._waiting_tokens += tokens
        for submission in submissions:
            self._waiting[submission.id] = len(submission.prompt)

    def answered(self, request: int) -> None:
        """The request waits no more: it got a token, or its end. Told as often as one likes."""
        if self._waiting:
            self._waiting_tokens -= self._waiting.pop(request, 0)

    def leave(self, tenant: Tenant, submissions: Sequence[Submission]) -> None:
        """Count these out."""
        sequences = sum(submission.sequences for submission in submissions)
        self._sequences -= sequences
        self._of_tenant[tenant.name] -= sequences
        for submission in submissions:
            self.answered(submission.id)
