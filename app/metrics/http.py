"""What is counted of HTTP requests, whatever became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from app.metrics.labels import OTHER

UNMATCHED: Final = "unmatched"
"""The route of a request whose path is none of ours: paths are never label values."""

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

GENERATING: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
"""Routes whose requests want tokens."""

REASONS: Final = (
    "queue_full",
    "rate_limit_exceeded",
    "deadline_exceeded",
    "context_length_exceeded",
    "invalid_api_key",
    "model_not_found",
    "not_ready",
    "shutting_down",
    "client_lagged",
    "internal_error",
    "invalid_request",
)
"""Codes of the errors that are told apart; the rest of 4xx is `invalid_request`."""

LIMITS: Final = (
    "limits.max_open_requests",
    "limits.max_waiting",
    "limits.max_waiting_tokens",
    "limits.max_wait_s",
    "classes.max_waiting_tokens",
    "classes.max_wait_s",
    "tenants.max_open_requests",
    "tenants.max_waiting",
    "tenants.max_waiting_tokens",
    "tenants.requests_per_minute",
    "tenants.tokens_per_minute",
)
"""Keys of the configuration that can turn a request away at the door."""


class HttpBook:
    """Counts requests under their route templates, and why they got no (full) answer."""

    def __init__(self) -> None:
        self._answered: Counter[tuple[str, str, str]] = Counter()
        self._rejected: Counter[str] = Counter(dict.fromkeys((*REASONS, OTHER), 0))
        self._turned_away: Counter[str] = Counter(dict.fromkeys(LIMITS, 0))
        self._left = 0

    def count(
        self,
        route: str,
        method: str,
        status: int,
        error: str | None,
        left: bool,
        limit: str | None = None,
    ) -> None:
        """Book a request that is over.

        error: the code of its error; left: its client has; limit: that was in its way.
        """
        known = method if method in METHODS else OTHER
        self._answered[route, known, str(status)] += 1
        if route not in GENERATING:
            return
        if limit is not None and limit in self._turned_away:
            self._turned_away[limit] += 1
        if error is not None:
            self._rejected[_reason(error, status)] += 1
        elif left:
            self._left += 1

    def families(self) -> Iterable[Metric]:
        answered = CounterMetricFamily(
            "octavo_http_requests", "HTTP requests answered", labels=("route", "method", "status")
        )
        for labels, count in sorted(self._answered.items()):
            answered.add_metric(labels, count)
        yield answered
        rejected = CounterMetricFamily(
            "octavo_requests_rejected",
            "Requests for tokens that were answered, or cut short, with an error",
            labels=("reason",),
        )
        for reason, count in self._rejected.items():
            rejected.add_metric((reason,), count)
        yield rejected
        turned_away = CounterMetricFamily(
            "octavo_requests_turned_away",
            "Requests for tokens that never reached the engine, by the limit in their way",
            labels=("limit",),
        )
        for limit, count in self._turned_away.items():
            turned_away.add_metric((limit,), count)
        yield turned_away
        yield CounterMetricFamily(
            "octavo_client_disconnects",
            "Requests for tokens whose client left before the answer was complete",
            value=self._left,
        )


def _reason(code: str, status: int) -> str:
    if code in REASONS:
        return code
    return "invalid_request" if 400 <= status < 500 else OTHER
