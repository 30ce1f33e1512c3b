"""What dashboards, gateways and autoscalers read of vLLM, under the names that it has there.

Prometheus keeps colons for recording rules, but these are the names that are read. No label is
added to model_name and engine: boards divide one series by another. Numbers are the same ones that
stand under our own names.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.metrics import snapshot
from app.metrics.histograms import Histogram
from app.metrics.requests import ABORT, ERROR, LENGTH, STOP, RequestBook
from engine.batch import BLOCK
from engine.outputs import Stats

Labels = dict[str, str]


def families(model: str, stats: Stats, requests: RequestBook) -> Iterable[Metric]:
    """All of them but the histograms, for the model of this name."""
    labels = _labels(model)
    yield from _gauges(labels, stats)
    yield from _counters(labels, stats)
    yield _by(
        CounterMetricFamily,
        "vllm:request_success",
        "Sequences by how they ended",
        "finished_reason",
        labels,
        {reason: requests.ends[reason] for reason in (STOP, LENGTH, ABORT, ERROR)},
    )


def histograms(model: str, requests: RequestBook, step_tokens: Histogram) -> Iterable[str]:
    """The lines of the histograms."""
    labels = _labels(model)
    for name, histogram in (
        ("time_to_first_token_seconds", requests.ttft),
        ("inter_token_latency_seconds", requests.itl),
        ("request_time_per_output_token_seconds", requests.tpot),
        ("e2e_request_latency_seconds", requests.e2e),
        ("request_queue_time_seconds", requests.queue),
        ("request_prefill_time_seconds", requests.prefill),
        ("request_decode_time_seconds", requests.decode),
        ("request_inference_time_seconds", requests.inference),
        ("request_prompt_tokens", requests.prompt),
        ("request_generation_tokens", requests.generated),
        ("request_max_num_generation_tokens", requests.longest),
        ("request_params_max_tokens", requests.max_tokens),
        ("request_params_n", requests.n),
        ("iteration_tokens_total", step_tokens),
    ):
        yield histogram.lines(f"vllm:{name}", labels)


def _labels(model: str) -> Labels:
    return {"model_name": model, "engine": "0"}


def _gauges(labels: Labels, stats: Stats) -> Iterable[Metric]:
    for name, help, value in (
        ("num_requests_running", "Requests that have been admitted", stats.running),
        ("num_requests_waiting", "Requests that wait for admission", stats.waiting),
        ("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1", snapshot.usage(stats)),
    ):
        yield _one(GaugeMetricFamily, name, help, labels, value)
    yield _by(
        GaugeMetricFamily,
        "vllm:num_requests_waiting_by_reason",
        "Requests that wait: for room, or for their class to fall below its limit",
        "reason",
        labels,
        {"capacity": stats.waiting - stats.gated, "deferred": stats.gated},
    )
    cache = labels | {"block_size": str(BLOCK), "num_gpu_blocks": str(stats.blocks_total)}
    yield _one(GaugeMetricFamily, "cache_config_info", "The KV cache", cache, 1)


def _counters(labels: Labels, stats: Stats) -> Iterable[Metric]:
    totals = stats.counters
    for name, help, value in (
        ("prompt_tokens", "Prompt tokens of who was let in", totals.admitted_tokens),
        ("generation_tokens", "Tokens generated", totals.generated_tokens),
        ("prompt_tokens_cached", "Prompt tokens found in the cache", totals.cached_tokens),
        ("prefix_cache_queries", "Tokens looked for in the cache", totals.looked_up_tokens),
        ("prefix_cache_hits", "Tokens found in the cache", totals.cached_tokens),
        ("num_preemptions", "Requests that gave their blocks back", totals.preemptions),
        ("spec_decode_num_drafts", "Rows that verified guesses", totals.drafts),
        ("spec_decode_num_draft_tokens", "Guesses that were verified", totals.draft_tokens),
        ("spec_decode_num_accepted_tokens", "Guesses that were right", totals.accepted_tokens),
    ):
        yield _one(CounterMetricFamily, name, help, labels, value)
    yield _by(
        CounterMetricFamily,
        "vllm:prompt_tokens_by_source",
        "Prompt tokens by where their KV came from",
        "source",
        labels,
        {
            "local_compute": totals.admitted_tokens - totals.cached_tokens,
            "local_cache_hit": totals.cached_tokens,
            "external_kv_transfer": 0,
        },
    )


Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]


def _one(kind: Kind, name: str, help: str, labels: Labels, value: float) -> Metric:
    family = kind(f"vllm:{name}", help, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


def _by(
    kind: Kind, name: str, help: str, label: str, labels: Labels, values: dict[str, int]
) -> Metric:
    """A series for each value of one more label."""
    family = kind(name, help, labels=(*labels, label))
    for value, count in values.items():
        family.add_metric((*labels.values(), value), count)
    return family
