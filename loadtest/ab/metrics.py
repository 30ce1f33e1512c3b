"""What is compared: figures of a run by name, and which way each is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loadtest.ab.verdicts import Better

LOWER, HIGHER = Better.LOWER, Better.HIGHER


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run. key: where it stands in the run's report, parts joined by a dot."""

    key: str
    words: str
    better: Better
    unit: str = ""


_LATENCIES: Final = {
    "ttft_s": "time to first token",
    "itl_s": "inter-token latency",
    "tpot_s": "time per output token",
    "e2e_s": "end to end",
    "queue_s": "wait for admission",
}

OF_GROUPS: Final = (
    *(
        Metric(f"{key}.{part}", f"{words}, {part}", LOWER, "s")
        for key, words in _LATENCIES.items()
        for part in ("mean", "p50", "p99")
    ),
    Metric("output_tok_s", "output tokens a second", HIGHER),
    Metric("goodput_req_s", "goodput, requests a second", HIGHER),
    Metric("met", "part that met its targets", HIGHER, "ratio"),
    Metric("shed", "requests refused", LOWER),
    Metric("preemptions", "preemptions", LOWER),
    Metric("recomputed_tokens", "tokens computed again", LOWER),
)
"""Of all requests, of a class, of a tenant."""

OF_ALL: Final = (
    *OF_GROUPS,
    Metric("prefix_hit_rate", "prompt tokens found cached", HIGHER, "ratio"),
    Metric("jain", "fairness, Jain's index", HIGHER),
    Metric("service_gap", "largest service gap, token prices", LOWER),
    Metric("running", "requests that run at once", HIGHER),
    Metric("wasted_kv", "part of the KV held that is empty", LOWER, "ratio"),
    Metric("wasted_rows", "part of the rows that pads a batch", LOWER, "ratio"),
)
"""Of all requests only."""

PRIMARY: Final = (
    "ttft_s.mean",
    "itl_s.p99",
    "e2e_s.mean",
    "output_tok_s",
    "goodput_req_s",
    "jain",
)
"""What a comparison is about, unless something else is said."""

METRICS: Final[Mapping[str, Metric]] = {metric.key: metric for metric in OF_ALL}
