"""Longest cached prefix first, and tenants take turns."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

from policies.base import Heads, Phase, RequestView, Services, StepView
from policies.fair_share import FairShare


class PrefixFirst(FairShare):
    """Of a tenant's requests the one with the most cached tokens is next: what is cached is used
    before it is evicted. Between tenants it is deficit round robin.

    After "Locality-aware fair scheduling in LLM serving" (https://arxiv.org/abs/2501.14312), with
    the counters of `fair-share`: who got least has the turn and keeps it for `quantum`, over its
    weight. Output is charged when it comes, so a turn may end in debt, and a tenant in debt waits
    until the others got as much. Large quanta use the cache better, small ones are fairer. The
    order within a tenant is exact, however many wait.

    A second of waiting counts as `ageing` cached tokens, so that a prompt of which nothing is
    cached is not passed for ever. Of two requests of a tenant the one with more cached tokens goes
    first unless it came later than by (difference of cached tokens) / ageing seconds. With 0 the
    engine's guard is all that lets a cold one in.

    Bound: over any time in which two tenants have requests waiting, what they got per weight
    differs by at most 2(U + quantum), with U as in `fair-share`, both over the smaller weight.
    """

    def __init__(
        self,
        *,
        services: Services,
        quantum: float = 4096.0,
        ageing: float = 100.0,
        input_price: float = 1.0,
        output_price: float = 2.0,
    ) -> None:
        """quantum: what a tenant gets in a turn, in token prices. ageing: cached tokens that a
        second of waiting makes up for. input_price, output_price: as in `fair-share`.

        Raises ValueError for a quantum that is not positive or anything negative or not finite.
        """
        super().__init__(services=services, input_price=input_price, output_price=output_price)
        if not 0 < quantum < math.inf:
            raise ValueError(f"quantum must be positive and finite, got {quantum}")
        if not 0 <= ageing < math.inf:
            raise ValueError(f"ageing must be finite and not negative, got {ageing}")
        self._quantum = quantum
        self._ageing = ageing
        self._turn: Hashable = None
        self._turn_ends = -math.inf

    def key(self, request: RequestView) -> tuple[Any, ...]:
        return (self._ageing * request.arrival, request.ticket)

    def prefix_key(self, request: RequestView, cached: int) -> tuple[Any, ...]:
        age = self._ageing * request.arrival
        return (age - cached, age, request.ticket)

    def rank(self, request: RequestView) -> tuple[Any, ...]:
        """Running prompts first: what they compute may be what the next head finds cached."""
        return (request.phase in (Phase.WAITING, Phase.PREEMPTED), request.ticket)

    def pick(self, heads: Heads, step: StepView) -> Hashable:
        if self._turn not in heads or self._counters[heads[self._turn].tenant] >= self._turn_ends:
            self._turn = self._counters.least(heads)
            head = heads[self._turn]
            self._turn_ends = self._counters[head.tenant] + self._quantum / head.weight
        return self._turn

    def explain(self, request: RequestView, step: StepView) -> str:
        own = (
            f"of tenant {request.tenant} those go first that have more than its {request.cached} "
            f"tokens cached, or as many and came before"
        )
        if self._turn == self.flow(request):
            return own
        return f"{super().explain(request, step)}; {own}"
