"""The figures of a run against a server, by the names that a simulated run has, and a few more.

    errors           requests by error code; who was turned away (429, 503) is in `refused` as well
    failed, refused  requests that ended with an error: of any other kind; turned away
    since_sent       ttft_s and e2e_s counted from when a request was sent, not from when it was due
    lag_s            how late the client sent requests: mean, p50, p99, and the largest
    server           running, waiting, kv_usage: the largest seen at /metrics

All other latencies count from when a request was due, so that a client (or a server) that falls
behind does not make them look better. `queue_s` is there if the server tells it for each request
(`api.per_request_metrics`). `shed` counts every request that ended with an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.live.records import LiveRun
from loadtest.live.server_metrics import Look
from loadtest.metrics import of_requests, spread

LOOKED_AT = ("running", "waiting", "kv_usage")


def report(run: LiveRun) -> dict[str, Any]:
    """The figures of a run, by name."""
    sent = [record for record in run.records(since_sent=True) if record.completed]
    lags = [request.lag for request in run.requests]
    refused = sum(request.refused for request in run.requests)
    return {
        "url": run.url,
        "model": run.model,
        **of_requests(run.records()),
        "failed": sum(request.error is not None for request in run.requests) - refused,
        "refused": refused,
        "errors": run.errors(),
        "since_sent": {
            "ttft_s": spread(record.ttft for record in sent),
            "e2e_s": spread(record.e2e for record in sent),
        },
        "lag_s": {**spread(lags), "most": max(lags, default=None)},
        "server": {name: _most(run.looks, name) for name in LOOKED_AT},
    }


def _most(looks: Sequence[Look], name: str) -> float | None:
    """The largest value that was seen."""
    seen = [value for look in looks if (value := getattr(look, name)) is not None]
    return max(seen, default=None)
