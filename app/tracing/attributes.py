"""What a span says of a request, in the words of OpenTelemetry's conventions for generative AI.

Names: github.com/open-telemetry/semantic-conventions-genai. It has none for the time in a queue
and its kin; `gen_ai.latency.*` and `gen_ai.request.id` are vLLM's. No prompt, answer or key is
among them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from app.generation import Generation
from app.record import Record
from app.schemas.sampling import REQUEST_ID

OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
}
"""What is asked for, by the path of a POST; nothing else makes spans."""

PROVIDER: Final = "octavo"
ABORT: Final = "abort"
"""How sequences end whose client left; vLLM's word."""

_SESSION: Final = re.compile(REQUEST_ID)

Value: TypeAlias = str | bool | int | float | Sequence[str]


def attributes(
    record: Record, *, operation: str, model: str, duration: float, stop_strings: bool
) -> dict[str, Value]:
    """The attributes of a request that is over; `duration` in seconds.

    model: the one that is served. stop_strings: whether the client's are among them.
    """
    found: dict[str, Value | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": None if record.error == "model_not_found" else model,
        "gen_ai.request.id": record.request_id,
        "gen_ai.latency.e2e": duration,
        "http.response.status_code": record.status,
        "octavo.tenant": record.tenant,
        "octavo.class": record.slo_class,
        "octavo.limit": record.limit,
        "error.type": record.error,
    }
    if record.generation is not None:
        found |= _asked(record.generation, stop_strings)
    if record.finish_reasons:
        found |= _answered(record)
    return {name: value for name, value in found.items() if value is not None}


def _asked(generation: Generation, stop_strings: bool) -> dict[str, Value | None]:
    """The request as it was understood: with the defaults of what it did not say."""
    first = generation.submissions[0]
    controls, session = first.controls, generation.session_id
    stops = generation.stops.strings
    return {
        "gen_ai.request.max_tokens": first.max_tokens,
        "gen_ai.request.temperature": controls.temperature,
        "gen_ai.request.top_p": controls.top_p,
        "gen_ai.request.top_k": controls.top_k or None,  # 0 is all of them
        "gen_ai.request.seed": controls.seed,
        "gen_ai.request.stop_sequences": stops if stops and stop_strings else None,
        "gen_ai.request.choice.count": generation.answers.count,
        "gen_ai.request.stream": generation.stream,
        "gen_ai.conversation.id": session if session and _SESSION.fullmatch(session) else None,
        "gen_ai.usage.input_tokens": sum(len(each.prompt) for each in generation.submissions),
    }


def _answered(record: Record) -> dict[str, Value | None]:
    """What became of a request that the engine was given."""
    generation = record.generation
    assert generation is not None, "nothing was asked for"
    cut = "error" if record.error else ABORT
    queue, first = record.queue_s, record.ttft_s
    return {
        "gen_ai.response.id": generation.identity.id,
        "gen_ai.response.model": record.model,
        "gen_ai.response.finish_reasons": [each or cut for each in record.finish_reasons],
        "gen_ai.response.time_to_first_chunk": first if generation.stream else None,
        "gen_ai.usage.output_tokens": record.completion_tokens or 0,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.latency.time_in_queue": queue,
        "gen_ai.latency.time_to_first_token": first,
        "gen_ai.latency.time_in_model_prefill": (
            None if queue is None or first is None else first - queue
        ),
        "gen_ai.latency.time_in_model_decode": record.decode_s,
    }
