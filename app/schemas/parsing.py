"""From body bytes to a checked model, or to an error that names the field."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from heapq import nsmallest
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from app.errors import ApiError, invalid
from app.schemas.parts import MOST_LEVELS, MOST_PARTS, too_many_levels, too_many_parts

log = logging.getLogger("octavo.schemas")

IGNORED = frozenset(
    {
        "store",
        "prompt_cache_key",
        "prompt_cache_options",
        "safety_identifier",
        "verbosity",
        "reasoning_effort",
        "prediction",
        "modalities",
    }
)
"""OpenAI's fields that change nothing here; accepted even when fields are checked strictly."""

UNSUPPORTED = "unsupported_value"
MAX_NAMES = 16
"""Unknown fields that a log line names."""
MAX_REASONS = 5
"""Fields that an error message names; a body may have any number of wrong ones."""

_CODES = frozenset({UNSUPPORTED, "invalid_value"})
_OBJECT_TYPES = frozenset({"model_type", "model_attributes_type", "dict_type"})


class WireModel(BaseModel):
    """A JSON object from a client: no type coercion; unknown fields are kept apart."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, protected_namespaces=())


Model = TypeVar("Model", bound=WireModel)


def parse(model: type[Model], body: bytes, *, strict_fields: bool) -> Model:
    """Read and check a JSON body.

    Raises ApiError (400) for what is not JSON, not an object, has too many parts or levels, or has
    a field of a wrong type or out of range, and with `strict_fields` for fields that nobody reads.
    """
    document = _loads(body)
    try:
        request = model.model_validate(document)
    except ValidationError as error:
        raise _from_validation(error) from None
    unknown = nsmallest(MAX_NAMES, (request.model_extra or {}).keys() - IGNORED)
    if unknown and strict_fields:
        name = unknown[0]
        raise invalid(f"Unknown parameter: {name[:120]!r}.", name[:120], "unknown_parameter")
    if unknown:
        log.debug("ignored fields: %s", [name[:120] for name in unknown])
    return request


def unsupported(message: str) -> PydanticCustomError:
    """To be raised in a validator: legal in OpenAI's API, not supported here."""
    return PydanticCustomError(UNSUPPORTED, "{reason}", {"reason": message})


def refused(message: str) -> PydanticCustomError:
    """To be raised in a validator: never legal."""
    return PydanticCustomError("invalid_value", "{reason}", {"reason": message})


def _loads(body: bytes) -> dict[str, Any]:
    if too_many_parts(body):
        message = f"The body has more than {MOST_PARTS} objects, lists and keys."
        raise invalid(message, code="invalid_json")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(document, dict):
        raise invalid("The body must be a JSON object.", code="invalid_json")
    if body.count(b"{") + body.count(b"[") > MOST_LEVELS and too_many_levels(document):
        raise invalid(f"The body has more than {MOST_LEVELS} levels.", code="invalid_json")
    return document


def _from_validation(error: ValidationError) -> ApiError:
    """One message for the first few fields that are wrong; `param` and `code` are the first's."""
    details = error.errors(include_url=False, include_input=False)
    reasons = [_reason(detail) for detail in details[:MAX_REASONS]]
    if len(details) > MAX_REASONS:
        reasons.append(f"and {len(details) - MAX_REASONS} more")
    return invalid(f"{'; '.join(reasons)}.", _path(details[0]["loc"]), _code(details[0]))


def _reason(detail: ErrorDetails) -> str:
    kind = detail["type"]
    reason = detail["msg"]
    if kind in _OBJECT_TYPES:
        reason = "must be an object"
    elif kind == "too_short":
        reason = "must not be empty"
    param = _path(detail["loc"])
    return f"{param}: {reason}" if param else reason


def _code(error: ErrorDetails) -> str:
    if error["type"] in _CODES:
        return error["type"]
    if error["type"] == "missing":
        return "missing_required_parameter"
    return "invalid_type" if error["type"].endswith("_type") else "invalid_value"


def _path(parts: Iterable[int | str]) -> str | None:
    return ".".join(str(part)[:120] for part in parts) or None
