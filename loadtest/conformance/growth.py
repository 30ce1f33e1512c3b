"""Whether a step costs no more the more wait: operations counted, and CPU time taken."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from engine.guard import GuardSettings
from engine.simulation import PolicyMaker
from loadtest.crowd import MANY_FLOWS, ONE_FLOW, Crowd, Shape

SIZES: Final = (100, 1_000, 10_000)
SHAPES: Final = (ONE_FLOW, MANY_FLOWS)
ROWS: Final = 8
TURNS: Final = 12

FACTOR: Final = 3.0
"""By how much a step may grow from the first to the last size; its logarithm doubles."""

OPERATIONS: Final = 300
SECONDS: Final = 0.002
"""Growth that is none: what a turn more or less brings about, or a busy machine."""

UNTIMED: Final = GuardSettings(max_step_cpu_s=math.inf)
"""Who grows is to show it, and not to be relieved by FCFS."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What a step costs, by how many wait: lines of Python and calls, and CPU seconds."""

    shape: str
    operations: Mapping[int, int]
    seconds: Mapping[int, float]

    @property
    def linear(self) -> bool:
        """Whether it grows by more than a logarithm would."""
        return _grows(self.operations, OPERATIONS) or _grows(self.seconds, SECONDS)

    def __str__(self) -> str:
        costs = ", ".join(
            f"{self.operations[size]:,} operations and {1e3 * self.seconds[size]:.2f} ms"
            f" with {size:,} waiting"
            for size in (SIZES[0], SIZES[-1])
        )
        return f"{self.shape}: {costs}"


def measure_growth(make: PolicyMaker, shape: Shape) -> Growth:
    """What a step costs under a policy, as the crowd grows."""
    crowd = Crowd(make, shape, ROWS, UNTIMED)
    operations: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for size in SIZES:
        crowd.fill(size)
        seconds[size] = _upper([crowd.turn() for _ in range(TURNS)])
        operations[size] = round(_upper([count_operations(crowd.turn) for _ in range(TURNS)]))
    return Growth(shape.name, operations, seconds)


def count_operations(call: Callable[[], object]) -> int:
    """Lines of Python that run in a call, and calls of functions written in it."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event in ("line", "call")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def _upper(values: list[float] | list[int]) -> float:
    """The upper quartile: tidying up now and then does not count, what every step does counts."""
    return statistics.quantiles(values, n=4)[2]


def _grows(costs: Mapping[int, float], slack: float) -> bool:
    return costs[SIZES[-1]] > FACTOR * costs[SIZES[0]] + slack
