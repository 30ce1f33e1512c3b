"""What Prometheus reads: the engine's latest snapshot and latencies seen on the event loop.

Nothing here touches the engine thread. Outputs are booked once per delivery, in plain numbers on
the event loop, which is also where they are rendered: no lock is taken for a token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from engine.inbox import Submission
from engine.outputs import Output, Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

UNMATCHED = "unmatched"
"""The route of a request whose path is none of ours: paths are never label values."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

WAIT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
GAP_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
SIZE_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Histogram:
    """Counts of observations per bucket. Not thread-safe: one thread observes and reads."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def family(self) -> HistogramMetricFamily:
        """As Prometheus wants it: cumulative counts under the upper bounds."""
        bounds = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(self.counts)), strict=True))
        return HistogramMetricFamily(self.name, self.help, buckets=buckets, sum_value=self.sum)


class Metrics(Collector):
    """Books what happens and renders it."""

    def __init__(self) -> None:
        self._stats = Stats()
        self._http: Counter[tuple[str, str, str]] = Counter()
        self._last_token: dict[tuple[int, int], float | None] = {}
        self.ttft = Histogram(
            "octavo_time_to_first_token_seconds",
            "From a request's arrival to its first token, time in the queue included",
            WAIT_BUCKETS,
        )
        self.itl = Histogram(
            "octavo_inter_token_latency_seconds", "Between two tokens of a sequence", GAP_BUCKETS
        )
        self.queue = Histogram(
            "octavo_queue_time_seconds", "From a request's arrival to its admission", WAIT_BUCKETS
        )
        self.e2e = Histogram(
            "octavo_request_seconds",
            "From the arrival of a request that was served in full to its last token",
            WAIT_BUCKETS,
        )
        self.step_seconds = Histogram("octavo_step_seconds", "Seconds of a step", GAP_BUCKETS)
        self.step_tokens = Histogram(
            "octavo_step_tokens", "Tokens computed in a step", SIZE_BUCKETS
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)

    @contextmanager
    def follow(self, submissions: Sequence[Submission]) -> Iterator[None]:
        """Measure the gaps between requests' tokens for as long as somebody waits for them."""
        keys = [(each.id, index) for each in submissions for index in range(each.n)]
        self._last_token.update(dict.fromkeys(keys))
        try:
            yield
        finally:
            for key in keys:
                self._last_token.pop(key, None)

    def observe(self, outputs: Sequence[Output], stats: Stats) -> None:
        """Book one delivery of the engine."""
        for output in outputs:
            if output.tokens and (output.request, output.index) in self._last_token:
                self._observe_tokens(output)
        if stats.counters.steps != self._stats.counters.steps:
            self.step_seconds.observe(stats.step_seconds)
            self.step_tokens.observe(stats.step_tokens)
        self._stats = stats

    @property
    def followed(self) -> int:
        """Sequences whose tokens are being measured."""
        return len(self._last_token)

    def served(self, submission: Submission, last_token_at: float) -> None:
        """Book a request that was served in full."""
        self.e2e.observe(last_token_at - submission.arrival)

    def count_http(self, route: str, method: str, status: int) -> None:
        """Book an answered request under its route template."""
        self._http[route, method if method in METHODS else "other", str(status)] += 1

    def render(self) -> bytes:
        """The whole page, in Prometheus's text format."""
        return generate_latest(self._registry)

    def _observe_tokens(self, output: Output) -> None:
        key = (output.request, output.index)
        last, count = self._last_token[key], len(output.tokens)
        if last is not None:
            for _ in range(count):
                self.itl.observe((output.at - last) / count)
        self._last_token[key] = output.at
        if output.timing is not None:
            self.queue.observe(output.timing.admitted - output.timing.arrival)
            self.ttft.observe(output.at - output.timing.arrival)

    # ---------------------------------------------------------------- rendering

    def collect(self) -> Iterable[Metric]:
        yield from _gauges(self._stats)
        yield from _counters(self._stats)
        yield self._http_family()
        latencies = (self.ttft, self.itl, self.queue, self.e2e)
        for histogram in (*latencies, self.step_seconds, self.step_tokens):
            yield histogram.family()

    def describe(self) -> Iterable[Metric]:
        """Nothing to check at registration: this is the registry's only collector."""
        return ()

    def _http_family(self) -> Metric:
        family = CounterMetricFamily(
            "octavo_http_requests", "HTTP requests answered", labels=("route", "method", "status")
        )
        for labels, count in sorted(self._http.items()):
            family.add_metric(labels, count)
        return family


def _gauges(stats: Stats) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "octavo_requests_running", "Requests that have been admitted", value=stats.running
    )
    yield GaugeMetricFamily(
        "octavo_requests_waiting", "Requests that wait for admission", value=stats.waiting
    )
    blocks = GaugeMetricFamily(
        "octavo_kv_blocks",
        "KV blocks of 16 tokens; free ones include those that are cached",
        labels=("state",),
    )
    blocks.add_metric(("free",), stats.blocks_free)
    blocks.add_metric(("cached",), stats.blocks_cached)
    blocks.add_metric(("total",), stats.blocks_total)
    yield blocks
    host = GaugeMetricFamily(
        "octavo_host_blocks", "Blocks of host memory to offload to", labels=("state",)
    )
    host.add_metric(("free",), stats.host_blocks_free)
    host.add_metric(("total",), stats.host_blocks_total)
    yield host


def _counters(stats: Stats) -> Iterable[Metric]:
    totals = stats.counters
    for name, help, value in (
        ("octavo_steps", "Steps computed", totals.steps),
        ("octavo_rows_computed", "Rows computed, over all steps", totals.computed_rows),
        ("octavo_prompt_tokens", "Prompt tokens computed", totals.prompt_tokens),
        ("octavo_generated_tokens", "Tokens generated", totals.generated_tokens),
        ("octavo_cached_tokens", "Prompt tokens found in the cache", totals.cached_tokens),
        ("octavo_recomputed_tokens", "Tokens computed again", totals.recomputed_tokens),
        ("octavo_preemptions", "Requests that gave their blocks back", totals.preemptions),
        ("octavo_offloaded_blocks", "KV blocks moved to host memory", totals.offloaded_blocks),
        ("octavo_restored_blocks", "KV blocks moved back", totals.restored_blocks),
        ("octavo_requests_arrived", "Requests that reached the engine", totals.arrived),
        ("octavo_requests_admitted", "Requests that were let in", totals.admitted),
        ("octavo_forced_admissions", "Admissions the guard gave away", stats.forced_admissions),
        ("octavo_policy_faults", "What the policy did wrong, of any kind", stats.policy_faults),
    ):
        yield CounterMetricFamily(name, help, value=value)
    ended = CounterMetricFamily("octavo_requests_ended", "Requests by outcome", labels=("outcome",))
    for outcome in ("finished", "rejected", "cancelled", "failed", "expired"):
        ended.add_metric((outcome,), getattr(totals, outcome))
    yield ended
