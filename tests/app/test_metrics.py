"""What Prometheus reads, and that clients cannot make it grow."""

import math
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import ClientDisconnect

from app.errors import ApiError
from app.metrics import Metrics, Subject
from app.metrics.histograms import Histogram
from app.metrics.labels import Label
from engine.clock import VirtualClock
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
    [family] = text_string_to_metric_families(histogram.lines())
    buckets = [
        (float(sample.labels["le"]), sample.value)
        for sample in family.samples
        if sample.name.endswith("_bucket")
    ]
    assert buckets == [(1.0, 2.0), (2.0, 3.0), (math.inf, 4.0)]


@pytest.mark.parametrize("labels", [{}, {"model_name": 'a"b\\c\nd', "engine": "0"}])
def test_a_histogram_is_rendered_as_the_client_library_would(labels):
    histogram = Histogram("octavo_x", "What it is", (0.001, 1, 2500))
    for observed in (0.5, 1e-7, 1.0, 9e4):
        histogram.observe(observed, 3)
    family = HistogramMetricFamily("octavo_y", "What it is", labels=labels)
    buckets = [("0.001", 3), ("1.0", 9), ("2500.0", 9), ("+Inf", 12)]
    family.add_metric([*labels.values()], buckets, histogram.sum)
    shown = SimpleNamespace(collect=lambda: [family])
    assert histogram.lines("octavo_y", labels) == generate_latest(shown).decode()


# -------------------------------------------------------------------- how requests end


def follow(metrics: Metrics, error: Exception | None, ending=lambda key: None, **fields) -> None:
    """Follow one request that ends with an error, or with nobody waiting any more."""
    with suppress(Exception), metrics.follow([replace(submission(), **fields)], ending):
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "abort"),
        (ClientDisconnect(), "abort"),
        (ApiError(429, "full", code="queue_full"), "rejected"),
        (ApiError(500, "broken", code="internal_error"), "error"),
        (KeyError("a bug"), "error"),
    ],
)
def test_a_request_without_an_answer_ends_for_a_reason(metrics, error, reason):
    follow(metrics, error)
    assert value(metrics, "octavo_sequences_ended_total", reason=reason) == 1
    counted = {"tenant": "default", "outcome": reason}
    assert value(metrics, "octavo_tenant_requests_total", **counted) == 1
    assert metrics.followed == 0


def test_a_request_that_fails_after_its_first_token_is_an_error(metrics):
    shutdown = ApiError(503, "bye", code="shutting_down")
    with suppress(ApiError), metrics.follow([submission()]):
        metrics.observe([output(11.0, timing=Timing(10.0, 10.5))], Stats())
        raise shutdown
    assert value(metrics, "octavo_sequences_ended_total", reason="error") == 1


def test_each_sequence_ends_for_itself(metrics):
    ends = {(1, 0): "stop", (1, 1): "length"}
    follow(metrics, None, ends.get, n=2)
    for reason in ("stop", "length"):
        assert value(metrics, "octavo_sequences_ended_total", reason=reason) == 1
    counted = {"tenant": "default", "outcome": "served"}
    assert value(metrics, "octavo_tenant_requests_total", **counted) == 1


def slo(metrics: Metrics, slo: str, met: str) -> float:
    labels = frozenset({"class": "default", "slo": slo, "met": met}.items())
    return samples(metrics).get(("octavo_request_slo_total", labels), 0)


def test_targets_are_met_or_missed_one_by_one(metrics):
    promised = replace(submission(), ttft_deadline=11.0, tpot_target=0.5)
    with metrics.follow([promised], lambda key: "stop"):
        metrics.observe([output(10.5, timing=Timing(10.0, 10.25))], Stats())
        metrics.observe([output(11.5), output(12.5)], Stats())
    assert (slo(metrics, "ttft", "true"), slo(metrics, "ttft", "false")) == (1, 0)
    assert (slo(metrics, "tpot", "true"), slo(metrics, "tpot", "false")) == (0, 1)
    assert (slo(metrics, "all", "true"), slo(metrics, "all", "false")) == (0, 1)


def test_who_was_refused_has_missed_its_targets_and_who_left_is_not_judged(metrics):
    follow(metrics, ApiError(503, "late", code="deadline_exceeded"), ttft_deadline=11.0)
    follow(metrics, ClientDisconnect(), ttft_deadline=11.0)
    follow(metrics, ApiError(503, "late", code="deadline_exceeded"))
    assert (slo(metrics, "ttft", "false"), slo(metrics, "all", "false")) == (1, 1)
    assert slo(metrics, "ttft", "true") == slo(metrics, "all", "true") == 0


def test_the_phases_of_a_request_add_up(metrics):
    with metrics.follow([submission()]):
        metrics.observe([output(11.0, timing=Timing(10.0, 10.25))], Stats())
        metrics.observe([output(11.5), output(12.5)], Stats())
        metrics.served(submission(), 12.5, [3])
    assert value(metrics, "octavo_prefill_seconds_sum") == 0.75
    assert value(metrics, "octavo_decode_seconds_sum") == 1.5
    assert value(metrics, "octavo_inference_seconds_sum") == 2.25
    assert value(metrics, "octavo_time_per_output_token_seconds_sum") == 0.75
    assert value(metrics, "octavo_request_generated_tokens_sum") == 3
    assert value(metrics, "octavo_request_max_tokens_sum") == 4


# -------------------------------------------------------------------- labels, heartbeat


def test_names_that_nobody_configured_are_other_and_so_is_one_too_many():
    names = ["a"]
    label = Label(lambda: names, most=2)
    assert [label.of(name) for name in ("default", "a", "b", "a")] == [
        "default",
        "a",
        "other",
        "a",
    ]
    names[:] = ["b", "c"]  # a reload
    assert [label.of(name) for name in ("a", "b", "c")] == ["a", "other", "other"]
    assert label.sums({"b": 1, "zzz": 2, "default": 4}) == {"default": 4, "other": 3}


def test_reloads_without_end_make_no_more_than_so_many_labels():
    names = [""]
    label = Label(lambda: names, most=10)
    seen = set()
    for number in range(1000):
        names[:] = [f"tenant-{number}"]
        seen.add(label.of(f"tenant-{number}"))
    assert len(seen) == 10


def test_classes_that_only_a_policy_knows_are_other(metrics):
    metrics.observe([], Stats(waiting_by_class={"default": 1, "made-up": 2, "too": 3}))
    name = "octavo_requests_waiting_by_class"
    assert value(metrics, name, **{"class": "default"}) == 1
    assert value(metrics, name, **{"class": "other"}) == 5


def test_the_heartbeat_ages_only_while_somebody_waits():
    clock = VirtualClock(100.0)
    metrics = Metrics(subject=Subject(clock=clock))
    age = "octavo_engine_heartbeat_age_seconds"
    metrics.observe([], Stats(now=10.0))
    assert value(metrics, age) == 0
    with metrics.follow([submission()]):
        assert value(metrics, age) == 0  # not 90: nothing was to be heard until now
        clock.advance(3.0)
        assert value(metrics, age) == 3
        metrics.observe([], Stats(now=102.0))
        assert value(metrics, age) == 1
    clock.advance(50.0)
    assert value(metrics, age) == 0


def test_the_build_and_the_policy_are_told():
    metrics = Metrics(subject=Subject(model="m", version="1.2", policy=lambda: "srpt"))
    text = metrics.render().decode()
    assert 'model="m"' in text
    assert 'version="1.2"' in text
    assert value(metrics, "octavo_policy_info", policy="srpt") == 1
