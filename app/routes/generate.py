"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from starlette.requests import Request

from app.body import read_body
from app.generation import Generation
from app.record import record_of
from app.service import Service
from app.stream import GenerationResponse

Prepare: TypeAlias = Callable[[Service, bytes, float], Generation]
"""Body and arrival (engine time) in, checked request out; may run on any thread."""


async def generate(service: Service, prepare: Prepare, request: Request) -> GenerationResponse:
    """Read a request; the response that is returned opens it, once it is called.

    A full house says so before it reads a body, so that a flood of large ones costs nothing.
    """
    service.bridge.require_room()
    record = record_of(request.scope)
    body = await read_body(request, service.max_body_bytes)
    arrival = service.clock.now()
    generation = await service.off_loop(len(body), prepare, service, body, arrival)
    record.model = service.model_id
    record.stream = generation.stream
    record.prompt_tokens = len(generation.submission.prompt)
    return GenerationResponse(service, generation, record)
