"""What a scrape of /metrics costs the event loop while many requests run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from app.metrics import Metrics, Subject
from engine.controls import RowControls
from engine.inbox import Submission
from engine.outputs import Output, Stats, Timing

RUNNING: Final = 256
NAMES: Final = 100
"""Tenants and classes with series of their own: as many as `metrics.max_names` lets in."""

ROUTES: Final = ("/v1/chat/completions", "/v1/completions", "/health")
STATUSES: Final = (200, 400, 429, 503)


def measure_scrapes(rounds: int) -> dict[str, float]:
    """CPU milliseconds to render the page with RUNNING requests, the medians of some rounds.

    scrape_ms: nobody has a name. scrape_names_ms: NAMES tenants and as many classes have one.
    """
    return {
        "scrape_ms": 1e3 * _scrape(("default",), rounds),
        "scrape_names_ms": 1e3 * _scrape(tuple(f"name-{i}" for i in range(NAMES)), rounds),
    }


def _scrape(names: tuple[str, ...], rounds: int) -> float:
    """Seconds."""
    metrics = Metrics(subject=Subject(tenants=lambda: names, classes=lambda: names))
    with _running(metrics, names):
        pass  # who has ended is in the counters of tenants and classes
    with _running(metrics, names):
        return statistics.median(_seconds(metrics) for _ in range(rounds))


@contextmanager
def _running(metrics: Metrics, names: tuple[str, ...]) -> Iterator[None]:
    """RUNNING requests, each with a token already."""
    with ExitStack() as running:
        for number in range(RUNNING):
            submission = _submission(number, names[number % len(names)])
            running.enter_context(metrics.follow([submission], _served))
        _generate(metrics, names)
        yield


def _seconds(metrics: Metrics) -> float:
    started = time.thread_time()
    metrics.render()
    return time.thread_time() - started


def _submission(number: int, name: str) -> Submission:
    return Submission(
        number,
        [1],
        64,
        RowControls(),
        0.0,
        tenant=name,
        slo_class=name,
        ttft_deadline=1.0,
        tpot_target=0.1,
    )


def _served(key: tuple[int, int]) -> str:
    return "stop"


def _generate(metrics: Metrics, names: tuple[str, ...]) -> None:
    """A token for everybody."""
    timing = Timing(0.0, 0.5)
    outputs = [Output(number, 0, 1.0, (1,), timing=timing) for number in range(RUNNING)]
    by_class = dict.fromkeys(names, 1)
    stats = Stats(running=RUNNING, running_by_class=by_class, waiting_by_class=by_class)
    metrics.observe(outputs, stats)
    for route in ROUTES:
        for status in STATUSES:
            metrics.count_http(route, "POST", status)
