"""What is known of one HTTP request, gathered on its way for its log line and its span."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from app.generation import Generation
from app.logs import RequestLine
from app.quota import Budget

KEY = "octavo.record"

CLIENT_CLOSED_REQUEST = 499
"""The status in logs and metrics of a request whose client left before it was answered."""


@dataclass(slots=True)
class Record:
    """Filled in by whoever learns something; `status` 0: no answer was begun.

    generation: what it asked for, once that was read. finish_reasons: of each of its sequences,
    None for those that did not end. decode_s: from the first token to the last.
    limit: the key of the configuration that the request would have exceeded. budget: of its tenant,
    which the reply's head tells about. ab_arm: of the experiment, in charge when it came.
    """

    request_id: str
    status: int = 0
    tenant: str | None = None
    slo_class: str | None = None
    model: str | None = None
    stream: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    cached_tokens: int = 0
    finish_reasons: tuple[str | None, ...] = ()
    generation: Generation | None = None
    client_disconnected: bool = False
    error: str | None = None
    limit: str | None = None
    budget: Budget | None = None
    ab_arm: str | None = None

    def line(self, route: str, duration: float) -> RequestLine:
        """The finished log line; `duration` in seconds."""
        return RequestLine(
            request_id=self.request_id,
            route=route,
            status=self.status,
            tenant=self.tenant,
            slo_class=self.slo_class,
            model=self.model,
            stream=self.stream,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            finish_reason=self.finish_reason,
            queue_s=self.queue_s,
            ttft_s=self.ttft_s,
            duration_s=duration,
            client_disconnected=self.client_disconnected,
            error=self.error,
        )


def record_of(scope: Scope) -> Record:
    """The record of the request that `scope` belongs to."""
    record: Record = scope[KEY]
    return record
