"""What is reported of a simulated run, as numbers by name.

Times are counted from a request's arrival, so that waiting counts, and are over completed requests.
Definitions are those of `vllm bench serve`, on the engine's side of the wire:

    requests             in the trace
    completed            got all their tokens
    shed                 refused: too long for the pool, by the policy or a class's limit, or late
    ttft_s               time to first token: first token - arrival
    itl_s                inter-token latency: every gap between two tokens of a request, pooled
    tpot_s               time per output token: (last - first token) / (tokens - 1)
    e2e_s                end to end: last token - arrival
    queue_s              first admission - arrival
    queue_seconds        all time in the queue, after preemptions too, by what kept its head out:
                         the step in progress, the token budget, the row limit, KV blocks, a limit
                         of the class, a hold, the policy's own choice
    output_tok_s         tokens generated / duration
    goodput_req_s        requests completed within all their targets / duration
    slo_attainment       requests completed within all their targets / requests, shed ones too
    preemptions          how often a running request had to give way
    recomputed_tokens    tokens that were computed again for that
    recomputed_fraction  of all tokens computed
    max_bypass           most requests that arrived after one and were admitted before it
    prefix_hit_rate      prompt tokens found cached / prompt tokens, of admitted requests
    by_tenant, by_class  the same for each
    jain, service_gap    fairness between tenants, see `fairness`: Jain's index, and the largest
                         difference between the service of two in one window
    prediction_error     mean |actual - predicted| / mean seconds, of steps
    forced_admissions    those that the guard gave to the oldest request
    duration_s           from the first arrival to the last token

Percentiles are interpolated linearly. What nothing was measured for is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.simulation import Record, Simulation
from loadtest.fairness import competing_shares, largest_gap, mean_jain
from loadtest.overtaking import count_overtaking

Floats = npt.NDArray[np.float64]

PERCENTILES: Final = (50, 95, 99)
SPREAD: Final = ("mean", *(f"p{each}" for each in PERCENTILES))


def report(run: Simulation) -> dict[str, Any]:
    """The figures of a run, by name."""
    return {
        **of_requests(run.records),
        "forced_admissions": run.forced_admissions,
        "policy_faults": dict(run.policy_faults),
        "prediction_error": run.prediction_error,
        "queue_seconds": dict(run.queue_seconds),
        "steps": run.counters.steps,
    }


def of_requests(records: Sequence[Record]) -> dict[str, Any]:
    """Those figures of a run that are in its requests, wherever they ran."""
    count_overtaking(records)
    seconds = duration(records)
    whole = figures(records, seconds)
    shares = competing_shares(records)
    return {
        **whole,
        "by_tenant": _by(records, lambda record: record.arrival.tenant, seconds, whole),
        "by_class": _by(records, lambda record: record.arrival.slo_class, seconds, whole),
        "jain": mean_jain(shares),
        "service_gap": largest_gap(shares),
        "duration_s": seconds,
    }


def figures(records: Sequence[Record], seconds: float) -> dict[str, Any]:
    """The figures of some of a run's requests; seconds: of the whole run."""
    completed = [record for record in records if record.completed]
    tokens = sum(len(record.token_times) for record in records)
    met = sum(record.met for record in records)
    recomputed = sum(record.recomputed_tokens for record in records)
    computed = sum(record.computed_tokens for record in records)
    return {
        "requests": len(records),
        "completed": len(completed),
        "shed": sum(record.shed is not None for record in records),
        "ttft_s": spread(record.ttft for record in completed),
        "itl_s": spread_of(_gaps(completed)),
        "tpot_s": spread(record.tpot for record in completed if len(record.token_times) > 1),
        "e2e_s": spread(record.e2e for record in completed),
        "queue_s": spread(
            record.admitted_at - record.arrival.at
            for record in completed
            if record.admitted_at is not None
        ),
        "output_tok_s": _rate(tokens, seconds),
        "goodput_req_s": _rate(met, seconds),
        "slo_attainment": met / len(records) if records else None,
        "preemptions": sum(record.preemptions for record in records),
        "recomputed_tokens": recomputed,
        "recomputed_fraction": recomputed / computed if computed else None,
        "max_bypass": max((r.overtaken for r in records if r.overtaken is not None), default=None),
        "prefix_hit_rate": _prefix_hit_rate(records),
    }


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Mean and percentiles; None where there are no values."""
    return spread_of(np.fromiter(values, np.float64))


def spread_of(values: Floats) -> dict[str, float | None]:
    """Mean and percentiles; None where there are no values."""
    if not len(values):
        return dict.fromkeys(SPREAD)
    percentiles = map(float, np.percentile(values, PERCENTILES))
    return dict(zip(SPREAD, [float(values.mean()), *percentiles], strict=True))


def _gaps(records: Sequence[Record]) -> Floats:
    """Seconds between consecutive tokens of a request, over all requests."""
    if not records:
        return np.empty(0)
    return np.concatenate([np.diff(np.frombuffer(record.token_times)) for record in records])


def _by(
    records: Sequence[Record],
    name: Callable[[Record], str],
    seconds: float,
    whole: dict[str, Any],
) -> dict[str, dict[str, Any]]:
    """The figures of each group. whole: those of all records, which may be one group."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(name(record), []).append(record)
    if len(groups) == 1:
        return {group: whole.copy() for group in groups}
    return {group: figures(members, seconds) for group, members in sorted(groups.items())}


def duration(records: Sequence[Record]) -> float:
    """Seconds from the first arrival to the last token."""
    first = min((record.arrival.at for record in records), default=0.0)
    last = max((record.token_times[-1] for record in records if record.token_times), default=first)
    return last - first


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def _prefix_hit_rate(records: Sequence[Record]) -> float | None:
    admitted = [record for record in records if record.admitted_at is not None]
    asked = sum(record.arrival.prompt_tokens for record in admitted)
    return sum(record.cached_tokens for record in admitted) / asked if asked else None


TIMES: Final[Mapping[str, str]] = {
    "ttft_s": "time to first token",
    "itl_s": "inter-token latency",
    "tpot_s": "time per output token",
    "e2e_s": "end to end",
    "queue_s": "wait for admission",
}
"""The latencies of a report, in words."""
