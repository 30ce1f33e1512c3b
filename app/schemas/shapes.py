"""JSON schemas of fields that are read more leniently than their Python type says."""

from __future__ import annotations

from typing import Any

from pydantic import WithJsonSchema


def documented(*shapes: dict[str, Any]) -> WithJsonSchema:
    """What the OpenAPI document says that a field may be: any of `shapes`."""
    return WithJsonSchema(shapes[0] if len(shapes) == 1 else {"anyOf": list(shapes)})


def list_of(item: dict[str, Any], *, least: int = 0) -> dict[str, Any]:
    """An array of `least` items or more."""
    return {"type": "array", "items": item, **({"minItems": least} if least else {})}
