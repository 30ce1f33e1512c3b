"""First come, first served."""

from __future__ import annotations

from policies.base import Policy, RequestView, Services, StepView


class FCFS(Policy):
    """Admit in order of arrival; a preempted request keeps its place.

    With mixed batches under one token budget this order is work-conserving, hence
    throughput-optimal (https://arxiv.org/abs/2504.07347). It promises nothing about latency: one
    long prompt delays everybody behind it.

    Bound: nobody is overtaken; with `backfill`, by at most so many requests while it lacks blocks
    or rows, and by nobody else.
    """

    def __init__(self, *, services: Services, backfill: int = 0) -> None:
        """backfill: how many younger requests may pass one that does not fit; 0 for none.

        Raises ValueError if it is negative.
        """
        super().__init__(services=services)
        if backfill < 0:
            raise ValueError(f"backfill must not be negative, got {backfill}")
        self._backfill = backfill

    def backfill(self, step: StepView) -> int:
        return self._backfill

    def explain(self, request: RequestView, step: StepView) -> str:
        passing = f", except for {self._backfill} that fit where it does not" * bool(self._backfill)
        return (
            f"requests start in order of arrival: those that came before request {request.id} "
            f"go first, and none that came after it{passing}"
        )
