"""Shortest uncached prompt first, with an ageing bound."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

from policies.base import Policy, RequestView, Services, StepView


class ShortestFirst(Policy):
    """The prompt with the fewest tokens to compute first, so that short ones have short waits.

    Shortest job first minimises the mean wait (Smith 1956, Naval Research Logistics Quarterly 3).
    The length of the prompt is known and that of the answer is not, so only the first counts, less
    what the prefix cache holds of it; a request moves when that changes.

    Each token to compute puts a request off by 1 / `tokens_per_s` seconds, which is a static key:
    arrival + uncached / tokens_per_s. Who was preempted comes back by its arrival alone: it was let
    in already.

    Bound: a request with u uncached tokens is overtaken only by requests that arrived less than
    u / tokens_per_s seconds after it.
    """

    def __init__(self, *, services: Services, tokens_per_s: float = 100.0) -> None:
        """tokens_per_s: uncached prompt tokens that a second of waiting makes up for.

        The smaller, the more length counts and the longer a long prompt may have to wait.
        Raises ValueError if it is not a positive, finite number.
        """
        super().__init__(services=services)
        if not 0 < tokens_per_s < math.inf:
            raise ValueError(f"tokens_per_s must be positive and finite, got {tokens_per_s}")
        self._tokens_per_s = tokens_per_s

    def flow(self, request: RequestView) -> Hashable:
        """Two queues: what is cached of a prompt moves only those who have not started yet."""
        return "again" if request.preemptions else "new"

    def key(self, request: RequestView) -> tuple[Any, ...]:
        return self.prefix_key(request, 0)

    def prefix_key(self, request: RequestView, cached: int) -> tuple[Any, ...]:
        at_worst = request.arrival + request.prompt / self._tokens_per_s
        if request.preemptions:
            return (request.arrival, request.ticket)
        return (at_worst - cached / self._tokens_per_s, at_worst, request.ticket)

    def rank(self, request: RequestView) -> tuple[Any, ...]:
        return self.prefix_key(request, request.cached)

    def explain(self, request: RequestView, step: StepView) -> str:
        if request.preemptions:
            return "it gave way while it ran; whoever came before it goes first"
        uncached = self._uncached(request)
        return (
            f"prompts with fewer than its {uncached} uncached tokens go first, unless they came "
            f"more than {uncached / self._tokens_per_s:.3g} s after it"
        )

    @staticmethod
    def _uncached(request: RequestView) -> int:
        """Prompt tokens that are left to compute if it started now."""
        return max(0, request.prompt - request.cached)
