"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from starlette.requests import Request

from app.body import read_body
from app.generation import Generation
from app.middleware import REQUEST_ID
from app.record import record_of
from app.service import Service
from app.stream import GenerationResponse
from app.tenancy import Caller

Prepare: TypeAlias = Callable[[Service, bytes, float, Caller], Generation]
"""Body, arrival (engine time) and sender in, checked request out; may run on any thread."""


async def generate(service: Service, prepare: Prepare, request: Request) -> GenerationResponse:
    """Read a request; the response that is returned opens it, once it is called.

    Who may not enter, or not now, is told so before a body is read: a flood of large ones costs
    nothing.
    """
    record = record_of(request.scope)
    caller = service.tenancy.caller(request.headers)
    record.tenant = caller.tenant.name
    record.budget = caller.tenant.budget
    service.bridge.require_room(caller.tenant, caller.certain_terms)
    body = await read_body(request, service.max_body_bytes)
    arrival = service.clock.now()
    generation = await service.off_loop(
        service.effort(body), prepare, service, body, arrival, caller
    )
    if (source := generation.source) is not None:
        grammar = await service.grammars.get(source)
        within = partial(service.grammars.within, grammar, source, generation.closes)
        generation = generation.under(within)
    record.generation = generation
    record.model = service.model_id
    record.slo_class = generation.submissions[0].slo_class
    record.stream = generation.stream
    record.prompt_tokens = sum(len(each.prompt) for each in generation.submissions)
    if generation.request_id is not None and REQUEST_ID not in request.headers:
        record.request_id = generation.request_id
    return GenerationResponse(service, generation, record)
