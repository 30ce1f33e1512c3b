"""Priority classes: the more urgent request first, with linear ageing."""

from __future__ import annotations

import math
from typing import Any

from policies.base import Policy, RequestView, Services, StepView


class Priority(Policy):
    """The smallest `request.priority` first; of equals the one that came first.

    A waiting request pushes out running ones of a strictly worse class where that lets it in, worst
    class and youngest first; equals never displace each other, or they would take turns for ever.
    Who gave way keeps its place in its class.

    With ageing a class is worth `ageing_s` seconds of arrival. The order by `priority · ageing_s -
    (now - arrival)` is the same at all times, so `priority · ageing_s + arrival` is a static key.

    Bound: a request of class p is overtaken by class p - k only if that one arrived less than
    k · ageing_s after it, and is displaced by no other either. Strict classes (no ageing) promise
    nothing to the worse: only the engine's guard does.
    """

    def __init__(
        self, *, services: Services, ageing_s: float | None = None, displace: bool = True
    ) -> None:
        """ageing_s: seconds of waiting that are worth one class; None or 0: classes are strict.

        displace: whether a request may push out running ones of a worse class.
        Raises ValueError if `ageing_s` is negative or not finite.
        """
        super().__init__(services=services)
        if ageing_s is not None and not 0 <= ageing_s < math.inf:
            raise ValueError(f"ageing_s must be a finite number of seconds, 0 or more: {ageing_s}")
        self._ageing_s = ageing_s or 0.0
        self._displace = displace

    def key(self, request: RequestView) -> tuple[Any, ...]:
        return (self._urgency(request), request.ticket)

    def victim(self, request: RequestView, step: StepView) -> tuple[Any, ...] | None:
        return (-self._urgency(request), -request.ticket)

    def displaces(self, newcomer: RequestView, running: RequestView) -> bool:
        """A better class, and one that may overtake: else ageing would admit only to displace."""
        return (
            self._displace
            and newcomer.priority < running.priority
            and self._urgency(newcomer) < self._urgency(running)
        )

    def explain(self, request: RequestView, step: StepView) -> str:
        if not self._ageing_s:
            return (
                f"requests of a priority below {request.priority} go first, "
                f"and those of priority {request.priority} that came before this one"
            )
        return (
            f"of priority {request.priority}: better classes go first unless they came more than "
            f"{self._ageing_s:g} s a class after this one, and so does whoever came that much "
            f"before it"
        )

    def _urgency(self, request: RequestView) -> float:
        """Smaller is more urgent: the class, or the arrival put off by `ageing_s` for each."""
        if not self._ageing_s:
            return request.priority
        return request.priority * self._ageing_s + request.arrival
