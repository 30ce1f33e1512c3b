"""What waiting requests add to a step: every policy, crowds of several shapes, ever more waiting.

A turn is one arrival, one end, one admission and a step at ROWS rows (`loadtest.crowd`). What is
added is the CPU time of a turn less that of the same turn under FCFS with nobody else waiting.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final

from app.config.schema import SchedulerConfig
from app.policy_loader import ENTRY_POINTS, load_policy
from engine.simulation import PolicyMaker
from loadtest.crowd import COMMON_PREFIX, MANY_FLOWS, ONE_FLOW, Crowd, Shape
from policies.base import Policy, Services
from policies.fcfs import FCFS

ROWS: Final = 64
SHAPES: Final = (ONE_FLOW, MANY_FLOWS, COMMON_PREFIX)
PARAMS: Final[Mapping[str, Mapping[str, Any]]] = {"static-batch": {"size": ROWS}}
"""What a policy needs to keep the rows full."""

LEFT_OUT: Final = 2
"""Turns after a fill that are not measured: whoever comes first finds the caches cold."""


@dataclass(frozen=True, slots=True)
class Added:
    """CPU seconds that a crowd adds to a turn: the median, and the worst of those measured."""

    median: float
    worst: float


def built_in() -> dict[str, PolicyMaker]:
    """The built-in policies by name."""
    names = (e.name for e in entry_points(group=ENTRY_POINTS) if e.value.startswith("policies."))
    return {name: _maker(name) for name in sorted(names)}


def measure_queues(
    policies: Mapping[str, PolicyMaker],
    waiting: Sequence[int],
    turns: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, dict[int, Added]]]:
    """By policy, shape of the crowd, and how many wait; `tick` is called after each crowd."""
    figures: dict[str, dict[str, dict[int, Added]]] = {name: {} for name in policies}
    for shape in SHAPES:  # the crowds of a shape are the same for all policies
        for name, make in policies.items():
            figures[name][shape.name] = _added(make, shape, sorted(waiting), turns)
            tick()
    return figures


def as_json(figures: Mapping[str, Mapping[str, Mapping[int, Added]]]) -> dict[str, Any]:
    """Milliseconds; growth_ms: from the smallest crowd to the largest."""
    return {
        name: {
            shape: {
                "added_ms": {str(size): 1e3 * added.median for size, added in by_size.items()},
                "worst_ms": {str(size): 1e3 * added.worst for size, added in by_size.items()},
                "growth_ms": 1e3 * growth(by_size),
            }
            for shape, by_size in by_shape.items()
        }
        for name, by_shape in figures.items()
    }


def growth(by_size: Mapping[int, Added]) -> float:
    """Seconds from the smallest crowd to the largest."""
    return by_size[max(by_size)].median - by_size[min(by_size)].median


def _added(make: PolicyMaker, shape: Shape, waiting: Sequence[int], turns: int) -> dict[int, Added]:
    """Crowds of all sizes, and nobody, take turns, so that a busy moment meets all of them."""
    nobody = Crowd(FCFS, ONE_FLOW, ROWS)
    crowds = {size: Crowd(make, shape, ROWS) for size in waiting}
    for size, crowd in crowds.items():
        crowd.fill(size)
    alone: list[float] = []
    seconds: dict[int, list[float]] = {size: [] for size in crowds}
    gc.collect()
    gc.disable()  # a collection would meet whichever turn it likes
    try:
        for _ in range(turns + LEFT_OUT):
            alone.append(nobody.turn())
            for size, crowd in crowds.items():
                seconds[size].append(crowd.turn())
    finally:
        gc.enable()
    usual = statistics.median(alone[LEFT_OUT:])
    return {
        size: Added(statistics.median(each[LEFT_OUT:]) - usual, max(each[LEFT_OUT:]) - usual)
        for size, each in seconds.items()
    }


def _maker(name: str) -> PolicyMaker:
    scheduler = SchedulerConfig(policy=name, params=dict(PARAMS.get(name, {})))

    def make(*, services: Services) -> Policy:
        return load_policy(scheduler, services)

    return make
