"""GET and POST /admin/policy. Everything below /admin is behind `AdminDoor`."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from app.body import read_body
from app.config.schema import SchedulerConfig
from app.errors import ApiError, invalid
from app.problems import BadConfiguration
from app.record import record_of
from app.schemas.parsing import parse
from app.schemas.policy import PolicyRequest
from app.service import Service


async def get_policy(service: Service, request: Request) -> Response:
    """The policy in charge, whether the guard has put FCFS in its place, and which others may be
    asked for, with the parameters that they take and their defaults."""
    seen = await service.bridge.explain(None, 0)
    choices = await service.policies.choices()
    return _json(
        {
            **_named(service.policies.current),
            "fallen_back": seen.fallen_back,
            "last_fault": seen.last_fault or None,
            "faults": seen.stats.policy_faults,
            "forced_admissions": seen.stats.forced_admissions,
            "allowed": [{"policy": name, "params": params} for name, params in choices.items()],
        }
    )


async def post_policy(service: Service, request: Request) -> Response:
    """Put another policy in charge between two steps; answers when it is."""
    body = await read_body(request, service.max_body_bytes)
    wanted = parse(PolicyRequest, body, strict_fields=True)
    try:
        swap = await service.policies.ask_for(wanted.policy, wanted.params or {}, _who(request))
    except BadConfiguration as error:
        raise _bad(error) from None
    return _json(
        {
            "old": _named(swap.old),
            "new": _named(swap.new),
            "step": swap.handover.step,
            "fault": swap.handover.fault or None,
        }
    )


def _named(scheduler: SchedulerConfig) -> dict[str, Any]:
    return {"policy": scheduler.policy, "params": scheduler.params}


def _who(request: Request) -> str:
    """For the audit: there is one admin key, so the address and the request id must do."""
    host = request.client.host if request.client else "an unknown address"
    return f"admin key from {host}, request {record_of(request.scope).request_id}"


def _bad(error: BadConfiguration) -> ApiError:
    """400 in the fields of the body, of which the configuration's keys are made."""
    keys = [problem.key.removeprefix("scheduler.") for problem in error.problems]
    reasons = zip(keys, (problem.message for problem in error.problems), strict=True)
    message = "; ".join(f"{key}: {why}" for key, why in reasons)
    return invalid(message if message.endswith("?") else f"{message}.", keys[0])


def _json(document: Any) -> Response:
    """Parameters may be anything: numbers beyond 64 bits, and defaults that JSON does not have."""
    body = to_json(document, inf_nan_mode="null", fallback=repr)
    return Response(body, media_type="application/json")
