"""The engine's latest snapshot as gauges and counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.metrics.labels import Label
from engine.outputs import Stats


def families(stats: Stats, classes: Label) -> Iterable[Metric]:
    """Everything that one snapshot says."""
    yield from _gauges(stats)
    yield _by_class(
        "octavo_requests_running_by_class",
        "Requests that have been admitted, by service class",
        classes.sums(stats.running_by_class),
    )
    yield _by_class(
        "octavo_requests_waiting_by_class",
        "Requests that wait for admission, by service class",
        classes.sums(stats.waiting_by_class),
    )
    yield from _counters(stats)


def waits(seconds: Mapping[str, float], classes: Label) -> Metric:
    """What first tokens are expected to take, as the door estimates it."""
    return _by_class(
        "octavo_expected_wait_seconds",
        "What the first token of a request that came now is expected to take, by service class",
        classes.longest(seconds),
    )


def usage(stats: Stats) -> float:
    """The share of the KV blocks that somebody owns, 0 to 1; cached blocks are free ones."""
    if not stats.blocks_total:
        return 0.0
    return 1 - stats.blocks_free / stats.blocks_total


def _by_class(name: str, help: str, counts: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=("class",))
    for label, count in counts.items():
        family.add_metric((label,), count)
    return family


def _gauges(stats: Stats) -> Iterable[Metric]:
    yield GaugeMetricFamily(
        "octavo_requests_running", "Requests that have been admitted", value=stats.running
    )
    yield GaugeMetricFamily(
        "octavo_requests_waiting", "Requests that wait for admission", value=stats.waiting
    )
    yield GaugeMetricFamily(
        "octavo_kv_usage_ratio",
        "Share of the KV blocks that requests hold, 0 to 1; cached blocks are free ones",
        value=usage(stats),
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
        (
            "octavo_prefix_queried_tokens",
            "Prompt tokens looked for in the cache, once a request",
            totals.looked_up_tokens,
        ),
        ("octavo_recomputed_tokens", "Tokens computed again", totals.recomputed_tokens),
        ("octavo_preemptions", "Requests that gave their blocks back", totals.preemptions),
        ("octavo_offloaded_blocks", "KV blocks moved to host memory", totals.offloaded_blocks),
        ("octavo_restored_blocks", "KV blocks moved back", totals.restored_blocks),
        ("octavo_drafts", "Rows that verified guesses", totals.drafts),
        ("octavo_draft_tokens", "Guesses that were verified", totals.draft_tokens),
        ("octavo_late_masks", "Rows whose grammar was not ready in time", totals.late_rows),
        ("octavo_accepted_tokens", "Guesses that were right", totals.accepted_tokens),
        (
            "octavo_draft_faults",
            "Failures of who guesses; then nothing is guessed any more",
            totals.draft_faults,
        ),
        (
            "octavo_forced_tokens",
            "Tokens that a grammar left no choice about",
            totals.forced_tokens,
        ),
        ("octavo_requests_arrived", "Requests that reached the engine", totals.arrived),
        ("octavo_requests_admitted", "Requests that were let in", totals.admitted),
        ("octavo_forced_admissions", "Admissions the guard gave away", stats.forced_admissions),
        ("octavo_policy_faults", "What the policy did wrong, of any kind", stats.policy_faults),
        ("octavo_fallback_steps", "Steps FCFS did in the policy's place", stats.fallback_steps),
    ):
        yield CounterMetricFamily(name, help, value=value)
    waited = CounterMetricFamily(
        "octavo_queue_seconds",
        "Seconds that requests have waited in the queue, by what kept its head out",
        labels=("reason",),
    )
    for reason, seconds in stats.queue_seconds.items():
        waited.add_metric((reason,), seconds)
    yield waited
    ended = CounterMetricFamily("octavo_requests_ended", "Requests by outcome", labels=("outcome",))
    for outcome in ("finished", "rejected", "cancelled", "failed", "expired"):
        ended.add_metric((outcome,), getattr(totals, outcome))
    yield ended
