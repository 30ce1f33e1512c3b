"""GET and DELETE /admin/experiment. Everything below /admin is behind `AdminDoor`."""

from __future__ import annotations

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from app.errors import ApiError
from app.experiment.experiment import Experiment
from app.record import record_of
from app.service import Service


async def get_experiment(service: Service, request: Request) -> Response:
    """Which arm is in charge, and what each was found to do."""
    return _json(_experiment(service))


async def end_experiment(service: Service, request: Request) -> Response:
    """End it: the first arm is put in charge, and stays there."""
    experiment = _experiment(service)
    host = request.client.host if request.client else "an unknown address"
    experiment.stop(f"ended by {host}, request {record_of(request.scope).request_id}")
    return _json(experiment)


def _experiment(service: Service) -> Experiment:
    if service.experiment is None:
        message = "No experiment is configured; experiment.arms has none."
        raise ApiError(404, message, code="not_found")
    return service.experiment


def _json(experiment: Experiment) -> Response:
    """Intervals may be infinite, and parameters anything."""
    body = to_json(experiment.document(), inf_nan_mode="null", fallback=repr)
    headers = {"cache-control": "no-store"}
    return Response(body, media_type="application/json", headers=headers)
