"""What dashboards, gateways and autoscalers look for is there, with its type and its labels."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.config.metrics_schema import MetricsConfig
from app.metrics import Metrics, Subject
from engine.outputs import Counters, Stats

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"\| `(?P<name>[a-z0-9_:]+)` \| (?P<type>\w+) \| (?P<labels>[^|]*) \|.*")

ALIASES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:num_requests_waiting_by_reason": "gauge",
    "vllm:prompt_tokens_total": "counter",
    "vllm:generation_tokens_total": "counter",
    "vllm:prompt_tokens_by_source_total": "counter",
    "vllm:prompt_tokens_cached_total": "counter",
    "vllm:prefix_cache_queries_total": "counter",
    "vllm:prefix_cache_hits_total": "counter",
    "vllm:num_preemptions_total": "counter",
    "vllm:spec_decode_num_drafts_total": "counter",
    "vllm:spec_decode_num_draft_tokens_total": "counter",
    "vllm:spec_decode_num_accepted_tokens_total": "counter",
    "vllm:request_success_total": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_max_num_generation_tokens": "histogram",
    "vllm:request_params_max_tokens": "histogram",
    "vllm:request_params_n": "histogram",
    "vllm:iteration_tokens_total": "histogram",
}
"""As vLLM exports them."""

OWN_LABELS = {
    "vllm:num_requests_waiting_by_reason": {"reason"},
    "vllm:prompt_tokens_by_source_total": {"source"},
    "vllm:request_success_total": {"finished_reason"},
    "vllm:cache_config_info": {"block_size", "num_gpu_blocks"},
}


def page(metrics: Metrics) -> dict:
    """The families of /metrics by the name that is queried, which ends in _total for counters."""
    families = text_string_to_metric_families(metrics.render().decode())
    total = {"counter": "_total"}
    return {family.name + total.get(family.type, ""): family for family in families}


def values(family) -> dict[str, float]:
    """The samples of a family with one label that matters, by its value."""
    return {[*sample.labels.values()][-1]: sample.value for sample in family.samples}


def test_every_alias_is_there_with_its_type():
    assert {
        name: family.type for name, family in page(Metrics()).items() if name.startswith("vllm:")
    } == ALIASES


def test_aliases_have_the_labels_that_boards_divide_by_and_no_others():
    for name, family in page(Metrics(subject=Subject(model="m"))).items():
        if name not in ALIASES:
            continue
        assert family.samples, name
        for sample in family.samples:
            labels = dict(sample.labels)
            labels.pop("le", None)
            assert (labels.pop("model_name"), labels.pop("engine")) == ("m", "0"), name
            assert labels.keys() == OWN_LABELS.get(name, set()), name


def test_aliases_can_be_left_out():
    names = page(Metrics(MetricsConfig(vllm_names=False)))
    assert names
    assert not any(name.startswith("vllm:") for name in names)


def test_the_document_names_every_metric_with_its_type_and_no_other():
    told = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if match := ROW.fullmatch(line):
            told[match["name"]] = match["type"]
    own = {
        name: family.type
        for name, family in page(Metrics()).items()
        if not name.startswith("process_")
    }
    assert told == own


def test_kv_usage_is_a_ratio_of_the_blocks_that_somebody_owns():
    metrics = Metrics()
    assert page(metrics)["vllm:kv_cache_usage_perc"].samples[0].value == 0
    metrics.observe([], Stats(blocks_free=3, blocks_total=4))
    families = page(metrics)
    assert families["vllm:kv_cache_usage_perc"].samples[0].value == 0.25
    assert families["octavo_kv_usage_ratio"].samples[0].value == 0.25
    assert families["vllm:cache_config_info"].samples[0].labels["num_gpu_blocks"] == "4"


def test_who_waits_waits_for_room_or_for_the_class():
    metrics = Metrics()
    metrics.observe([], Stats(waiting=5, gated=2))
    waiting = page(metrics)["vllm:num_requests_waiting_by_reason"]
    assert values(waiting) == {"capacity": 3, "deferred": 2}


def test_prompt_tokens_are_the_sum_of_their_sources():
    metrics = Metrics()
    counters = Counters(admitted_tokens=10, cached_tokens=4, looked_up_tokens=9)
    metrics.observe([], Stats(counters=counters))
    families = page(metrics)
    assert families["vllm:prompt_tokens_total"].samples[0].value == 10
    sources = values(families["vllm:prompt_tokens_by_source_total"])
    assert sources == {"local_compute": 6, "local_cache_hit": 4, "external_kv_transfer": 0}
    assert families["vllm:prefix_cache_queries_total"].samples[0].value == 9
    assert families["vllm:prefix_cache_hits_total"].samples[0].value == 4


@pytest.mark.parametrize(
    ("knob", "names"),
    [
        ("ttft_s", ["octavo_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"]),
        ("queue_s", ["octavo_queue_time_seconds", "vllm:request_queue_time_seconds"]),
        ("request_s", ["octavo_request_seconds", "vllm:e2e_request_latency_seconds"]),
        ("token_s", ["octavo_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"]),
        ("step_s", ["octavo_step_seconds"]),
        ("tokens", ["octavo_request_prompt_tokens", "vllm:request_generation_tokens"]),
    ],
)
def test_buckets_are_those_of_the_configuration(knob, names):
    config = MetricsConfig.model_validate({"buckets": {knob: [0.5, 2]}})
    families = page(Metrics(config))
    for name in names:
        bounds = [s.labels["le"] for s in families[name].samples if s.name.endswith("_bucket")]
        assert bounds == ["0.5", "2.0", "+Inf"]


@pytest.mark.parametrize("bounds", [[], [0.0, 1.0], [-1.0], [2.0, 1.0], [1.0, 1.0], [1.0] * 65])
def test_buckets_out_of_order_are_refused(bounds):
    with pytest.raises(ValueError, match="bounds"):
        MetricsConfig.model_validate({"buckets": {"ttft_s": bounds}})
