"""When a waiting request will start, with an interval that the record of errors gives.

    work     seconds of a request: what the cost model says of its prompt, and of as many tokens
             as requests generate on average, with their part of a step's base
    rate     work that a line (a class's part of a flow) lets in for each second, since the
             oldest of those ahead came, or over its WINDOW latest admissions; drawn towards the
             house's rate over the number of lines, as if that had held while each let in DRAWN
    passing  part of a line's admissions since the request began to wait that are younger
    start    (work ahead in the line + its own) / (rate · (1 - passing))

The work ahead is that of who waits now before the request in the policy's order. Whoever will come
later and pass it shows in `passing` only when it has begun. Admissions after a preemption let in
nothing new and are left out. While fewer than two are known the house does a second of work in
each second.

The interval is [start · low, start · high], where low and high are quantiles of actual over
predicted among the latest RECORD forecasts that somebody asked for and that have come true, or are
overdue: so it is as wide as forecasts were wrong of late. Before there are any it spans from a
fifth to five times. (Split conformal prediction, without the exchangeability that its bound
assumes; Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005.)
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from engine.admissions import AdmissionBook, Line, Passage
from policies.base import StepCost

WINDOW = 64
"""Admissions of a line that tell its rate, at most."""

LOOKED_AT = 1024
"""Admissions of the house that are searched for them."""

DRAWN = 8
"""Admissions of each line that the house's rate counts for."""

LEAST = 1e-9
"""Seconds of a request at least: where steps are said to cost nothing, requests are counted."""

FINEST = 1e-3
"""Seconds within which no two starts are told apart, however fast they follow each other."""

RECORD = 256
"""Forecasts whose error counts."""

PENDING = 512
"""Forecasts that are kept until they have come true; more are forgotten, the oldest first."""

MISSED = 0.05
"""Part of the recorded errors that lies beyond either end of the interval."""

PRIOR = tuple(5.0 ** (step / 4) for step in range(-4, 5))
"""Ratios of actual over predicted that are assumed until there are others."""


class Pending(NamedTuple):
    """A forecast that has not come true yet. grain: below it seconds mean nothing."""

    at: float
    seconds: float
    grain: float

    def ratio(self, now: float) -> float:
        """Actual over predicted, if the request starts now."""
        return (now - self.at + self.grain) / (self.seconds + self.grain)


class ForecastRecord:
    """Forecasts that somebody was told, and how wrong they were."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(PRIOR, RECORD)
        self._pending: OrderedDict[int, Pending] = OrderedDict()

    def tell(self, request: int, forecast: Pending) -> None:
        """Somebody is told a forecast; of several for a request the first counts."""
        self._pending.setdefault(request, forecast)
        if len(self._pending) > PENDING:
            self._pending.popitem(last=False)

    def started(self, request: int, now: float) -> None:
        """The request starts."""
        forecast = self._pending.pop(request, None)
        if forecast is not None:
            self._ratios.append(forecast.ratio(now))

    def forget(self, request: int) -> None:
        """The request will never start."""
        self._pending.pop(request, None)

    def spread(self, now: float) -> tuple[float, float]:
        """The factors between which actual over predicted lay, but for MISSED at either end.

        Forecasts that are overdue count as if they came true now: else those that were too long
        would be known first.
        """
        overdue = (forecast.ratio(now) for forecast in self._pending.values())
        ratios = sorted([*self._ratios, *(ratio for ratio in overdue if ratio > 1)])
        beyond = math.ceil(MISSED * (len(ratios) + 1)) - 1
        return ratios[beyond], ratios[-1 - beyond]


class Workload:
    """What requests cost, in seconds of steps.

    output: tokens that one generates on average. decoding: sequences that share a step's base.
    """

    def __init__(self, cost: StepCost, output: float, decoding: int) -> None:
        self._cost = cost
        self._base = cost.seconds(0, 0, 0, 0)
        self._output = output
        self._share = self._base / max(1, decoding)

    def seconds(self, prompts: Sequence[int]) -> float:
        """Of requests with prompts of such lengths, in tokens; step costs are linear in them."""
        if not prompts:
            return 0.0
        mean = sum(prompts) // len(prompts)
        prompt = self._cost.seconds(mean, 0, mean, 0) - self._base
        decode = self._cost.seconds(0, 1, mean, 0) - self._base + self._share
        return len(prompts) * (prompt + self._output * decode + LEAST)


class Rates:
    """How fast lines move, from the latest admissions; made when somebody asks.

    lines: in how many somebody waits. now: engine time. grain: seconds between two admissions.
    """

    def __init__(self, book: AdmissionBook, workload: Workload, lines: int, now: float) -> None:
        self._workload = workload
        self._now = now
        self._of_line: defaultdict[Line, list[Passage]] = defaultdict(list)
        house: list[Passage] = []
        for passage in book.since(max(book.order_since, book.count - LOOKED_AT)):
            of_line = self._of_line[passage.line]
            for latest in (of_line, house):
                if not passage.again and len(latest) < WINDOW:
                    latest.append(passage)
        span = now - house[-1].at if len(house) > 1 else 0.0
        self.grain = max(FINEST, span / len(house)) if house else FINEST
        self._drawn = DRAWN * self.grain * max(1, lines) if span else math.inf
        work = workload.seconds([passage.prompt for passage in house[:-1]])
        self._house = (work / span if span else 1.0) / max(1, lines)

    def latest(self, line: Line) -> list[Passage]:
        """The latest admissions of a line, the last one first."""
        return self._of_line[line]

    def of(self, line: Line, since: float) -> float:
        """Seconds of work for each second since an engine time."""
        if self._drawn == math.inf:
            return self._house
        own = [passage for passage in self.latest(line) if passage.at >= since]
        if len(own) == WINDOW:
            since = own.pop().at
        span = self._now - since + self._drawn
        work = self._workload.seconds([passage.prompt for passage in own])
        return (work + self._drawn * self._house) / span
