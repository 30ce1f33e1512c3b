"""The virtual token counter: the tenant that got least is next."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from policies.base import (
    OWN,
    SERVICE,
    Admitted,
    Arrived,
    Cancelled,
    Event,
    Finished,
    Heads,
    Phase,
    Policy,
    Preempted,
    RequestView,
    Service,
    Services,
    Shed,
    StepView,
    Tokens,
)
from policies.counters import TenantCounters, clamped

MEMORY: Final = 5
"""Requests of a tenant that the average of its outputs remembers."""

MOST_PRICE: Final = 1e6
"""Counters have to stay finite: beyond that all tenants would be equal for ever."""

COUNTERS: Final = "counters"
AVERAGES: Final = "averages"
WAITING: Final = "waiting"


class FairShare(Policy):
    """Each tenant has a counter of what it got, over its weight; the smallest counter is next.

    Sheng et al., Fairness in Serving Large Language Models, OSDI 2024
    (https://arxiv.org/abs/2401.00588):

        admitted   counter += input_price · prompt tokens to compute / weight
        token      counter += output_price / weight
        returning  counter  = at least the smallest counter of the tenants that wait; if nobody
                              waits, at least that of the tenant that waited last

    So what somebody did not use while away is not owed to them. Only what is computed counts:
    cached prompt tokens are free, and so is whatever a preemption makes the engine compute again.
    Who leaves early gets nothing back.

    Bound: with U = max(input_price · longest prompt, output_price · tokens of the KV pool), over
    the smaller weight, the counters of two tenants that have requests waiting differ by at most U,
    and over any time in which both have, what they got per weight differs by at most 2U. Nobody
    who keeps the machine busy and preempts nobody for fairness can promise less than half of that.
    The proof knows no preemption for want of blocks; with it the bound is what tests hold.

    When blocks run out, who was let in last gives way: it has the least to compute again, was let
    in because its tenant had got least, and so is the next to come back. Rather taking it from who
    got most costs a third more recomputed tokens, and the tenants that wait pay for them.

    With `predict_output` a request is charged at its admission for as many output tokens as the
    last ones of its tenant had on average, and corrected as it goes: tokens beyond are charged as
    they come, and what it did not use is given back at its end. So long answers count before they
    are there; U grows by the largest prediction times the output price.
    """

    def __init__(
        self,
        *,
        services: Services,
        input_price: float = 1.0,
        output_price: float = 2.0,
        predict_output: bool = False,
    ) -> None:
        """input_price, output_price: what a prompt token and a generated token count, not both 0.

        predict_output: charge the expected output at admission.
        Raises ValueError for a price that is negative or above MOST_PRICE.
        """
        super().__init__(services=services)
        for name, price in (("input_price", input_price), ("output_price", output_price)):
            if not 0 <= price <= MOST_PRICE:
                most = f"finite and not negative, and at most {MOST_PRICE:.0f}"
                raise ValueError(f"{name} must be {most}, got {price}")
        if input_price == output_price == 0:
            raise ValueError("input_price and output_price must not both be 0")
        self._input_price = input_price
        self._output_price = output_price
        self._counters = TenantCounters()
        self._running: dict[int, tuple[int, str]] = {}
        self._admissions = 0
        self._forecast = Forecast() if predict_output else None

    # ---------------------------------------------------------------- order

    def flow(self, request: RequestView) -> Hashable:
        return (request.slo_class, request.tenant)

    def pick(self, heads: Heads, step: StepView) -> Hashable:
        return self._counters.least(heads)

    def victim(self, request: RequestView, step: StepView) -> tuple[Any, ...]:
        admission, _ = self._running.get(request.id, (0, ""))
        return (-admission, -request.ticket)

    def explain(self, request: RequestView, step: StepView) -> str:
        own, least = self._counters[request.tenant], self._counters.smallest
        if own <= least:
            return f"tenant {request.tenant} got least of all who wait and is next"
        return (
            f"tenant {request.tenant} got {own - least:.0f} more than the tenant that is next, in "
            f"token prices for each unit of weight"
        )

    # ---------------------------------------------------------------- counters

    def observe(self, events: Sequence[Event]) -> Iterable[int]:
        for event in events:
            match event:
                case Tokens():
                    self._generated(event.request, event.count)
                case Admitted():
                    self._admitted(event.request, event.first_computed)
                case Arrived():
                    self._counters.join(event.request)
                case Preempted():
                    self._running.pop(event.request.id, None)
                    self._counters.join(event.request)
                case Finished() | Cancelled() | Shed():
                    self._ended(event.request)
        self._counters.tidy(tenant for _, tenant in self._running.values())
        return ()

    def _admitted(self, request: RequestView, computed: int) -> None:
        self._counters.leave(request)
        self._started(request)
        expected = self._forecast.admitted(request) if self._forecast else 0.0
        self._charge(request, self._input_price * computed + self._output_price * expected)

    def _started(self, request: RequestView) -> None:
        self._admissions += 1
        self._running[request.id] = (self._admissions, request.tenant)

    def _generated(self, request: RequestView, count: int) -> None:
        beyond = self._forecast.generated(request, count) if self._forecast else count
        self._charge(request, self._output_price * beyond)

    def _ended(self, request: RequestView) -> None:
        self._counters.leave(request)
        self._running.pop(request.id, None)
        if self._forecast:
            self._charge(request, -self._output_price * self._forecast.ended(request))

    def _charge(self, request: RequestView, price: float) -> None:
        self._counters.charge(request.tenant, price / request.weight)

    # ---------------------------------------------------------------- swaps

    def export(self) -> dict[str, Any]:
        """Counters by tenant without what was charged ahead, the tenants that wait, and the
        averages of outputs."""
        counters = self._counters.copy()
        if self._forecast:
            for request, tokens in self._forecast.unused():
                counters[request.tenant] -= self._output_price * tokens / request.weight
        return {
            COUNTERS: counters,
            WAITING: self._counters.waiting,
            AVERAGES: dict(self._forecast.averages) if self._forecast else {},
        }

    def restore(
        self, state: Mapping[str, Any], live: Sequence[RequestView], step: StepView
    ) -> None:
        """Go on where a policy of this class stopped. Without one, start from what each tenant got
        since the engine started, as far as that can be made up for within the bound.

        What others gave the tenants in between counts for nothing: the bound holds over the time in
        charge.
        """
        own = state.get(OWN) or {}
        waited = own.get(WAITING, [])
        if own:
            self._counters.start(own[COUNTERS], waited)
        else:
            pool = step.total_blocks * step.block_size
            counters = self._of_service(state.get(SERVICE, {}))
            self._counters.start(clamped(counters, self._output_price * pool), [])
        if self._forecast:
            self._forecast.averages.update(own.get(AVERAGES, {}))
        waiting = [r for r in live if r.phase in (Phase.WAITING, Phase.PREEMPTED)]
        stayed = set(waited) if own else {request.tenant for request in waiting}
        for request in sorted(waiting, key=lambda request: request.tenant not in stayed):
            self._counters.join(request, lift=request.tenant not in stayed)
        for request in sorted(live, key=lambda request: request.ticket):
            if request.phase in (Phase.PREFILL, Phase.DECODE):
                self._started(request)

    def _of_service(self, service: Mapping[str, Service]) -> dict[str, float]:
        """Counters as they would be had nobody ever been lifted."""
        return {
            tenant: (self._input_price * got.input + self._output_price * got.output) / got.weight
            for tenant, got in service.items()
        }


class Forecast:
    """How many tokens a request will generate: as many as its tenant's last ones, on average.

    averages: by tenant, exponential, over about `MEMORY` requests.
    """

    def __init__(self) -> None:
        self.averages: dict[str, float] = {}
        self._unused: dict[int, tuple[RequestView, float]] = {}

    def admitted(self, request: RequestView) -> float:
        """Tokens to expect of a request; 0 if it was admitted before."""
        if request.preemptions:
            return 0.0
        most = request.max_output * request.rows
        expected = min(self.averages.get(request.tenant, 0.0), most)
        self._unused[request.id] = (request, expected)
        return expected

    def generated(self, request: RequestView, count: int) -> float:
        """`count` tokens were generated; how many of them were not expected."""
        _, left = self._unused.get(request.id, (request, 0.0))
        if left:
            self._unused[request.id] = (request, max(0.0, left - count))
        return max(0.0, count - left)

    def ended(self, request: RequestView) -> float:
        """Tokens that were expected and did not come."""
        known = self._unused.pop(request.id, None)
        if known is None:
            return 0.0
        average = self.averages.get(request.tenant, float(request.output))
        average += (request.output - average) * 2 / (MEMORY + 1)
        self.averages[request.tenant] = average
        return known[1]

    def unused(self) -> list[tuple[RequestView, float]]:
        """Running requests and the tokens of them that are expected still."""
        return list(self._unused.values())
