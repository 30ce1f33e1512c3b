"""What Prometheus reads, and that clients cannot make it grow."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.metrics import Metrics
from app.metrics.histograms import Histogram
from engine.controls import RowControls
from engine.inbox import Submission
from engine.outputs import Counters, Output, Stats, Timing


def submission(number: int = 1) -> Submission:
    return Submission(number, [1], 4, RowControls(), arrival=10.0)


def output(at: float, *, tokens=(5,), timing=None, request=1) -> Output:
    return Output(request, 0, at, tokens=tokens, timing=timing)


def samples(metrics: Metrics) -> dict[tuple[str, frozenset], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_gauges_and_counters_are_the_latest_snapshot(metrics):
    counters = Counters(
        steps=3, generated_tokens=7, cancelled=2, offloaded_blocks=5, restored_blocks=4
    )
    blocks = {"blocks_free": 3, "blocks_cached": 4, "blocks_total": 9}
    blocks |= {"host_blocks_free": 6, "host_blocks_total": 8}
    metrics.observe([], Stats(running=5))
    metrics.observe([], Stats(running=1, waiting=2, counters=counters, **blocks))
    assert value(metrics, "octavo_requests_running") == 1
    assert value(metrics, "octavo_requests_waiting") == 2
    assert value(metrics, "octavo_kv_blocks", state="free") == 3
    assert value(metrics, "octavo_kv_blocks", state="cached") == 4
    assert value(metrics, "octavo_kv_blocks", state="total") == 9
    assert value(metrics, "octavo_host_blocks", state="free") == 6
    assert value(metrics, "octavo_host_blocks", state="total") == 8
    assert value(metrics, "octavo_offloaded_blocks_total") == 5
    assert value(metrics, "octavo_restored_blocks_total") == 4
    assert value(metrics, "octavo_steps_total") == 3
    assert value(metrics, "octavo_generated_tokens_total") == 7
    assert value(metrics, "octavo_requests_ended_total", outcome="cancelled") == 2


def test_latencies_are_measured_from_arrival_and_between_tokens(metrics):
    with metrics.follow([submission()]):
        metrics.observe([output(11.0, timing=Timing(10.0, 10.25))], Stats())
        metrics.observe([output(11.5), output(12.5)], Stats())
        metrics.served(submission(), 12.5, [3])
    assert value(metrics, "octavo_queue_time_seconds_sum") == 0.25
    assert value(metrics, "octavo_time_to_first_token_seconds_sum") == 1.0
    assert value(metrics, "octavo_inter_token_latency_seconds_count") == 2
    assert value(metrics, "octavo_inter_token_latency_seconds_sum") == 1.5
    assert value(metrics, "octavo_request_seconds_sum") == 2.5


def test_tokens_that_come_together_share_the_gap(metrics):
    with metrics.follow([submission()]):
        metrics.observe([output(1.0), output(2.0, tokens=(5, 6))], Stats())
    assert value(metrics, "octavo_inter_token_latency_seconds_count") == 2
    assert value(metrics, "octavo_inter_token_latency_seconds_sum") == 1.0


def test_a_request_that_is_gone_leaves_nothing_behind(metrics):
    with metrics.follow([submission()]):
        metrics.observe([output(1.0)], Stats())
    metrics.observe([output(2.0, timing=Timing(0.0, 0.0)), output(3.0)], Stats())
    assert metrics.followed == 0
    assert value(metrics, "octavo_inter_token_latency_seconds_count") == 0


def test_a_step_is_observed_once(metrics):
    step = Stats(step_tokens=12, step_seconds=0.02, counters=Counters(steps=1))
    metrics.observe([], step)
    metrics.observe([], step)
    assert value(metrics, "octavo_step_tokens_count") == 1
    assert value(metrics, "octavo_step_tokens_sum") == 12
    assert value(metrics, "octavo_step_seconds_sum") == 0.02


def test_requests_are_counted_by_route_and_status(metrics):
    metrics.count_http("/health", "GET", 200)
    metrics.count_http("/health", "GET", 200)
    metrics.count_http("/health", "BREW", 405)
    counted = {"route": "/health", "method": "GET", "status": "200"}
    assert value(metrics, "octavo_http_requests_total", **counted) == 2
    odd = {"route": "/health", "method": "other", "status": "405"}
    assert value(metrics, "octavo_http_requests_total", **odd) == 1


def test_histogram_buckets_are_cumulative_with_upper_bounds_included():
    histogram = Histogram("octavo_x", "x", (1, 2))
    for observed in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(observed)
    buckets = [
        (float(sample.labels["le"]), sample.value)
        for sample in histogram.family().samples
        if sample.name.endswith("_bucket")
    ]
    assert buckets == [(1.0, 2.0), (2.0, 3.0), (math.inf, 4.0)]
