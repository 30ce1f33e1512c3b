"""What an answer may be held to, as far as the shape of the fields goes."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import orjson
from pydantic import AfterValidator, BeforeValidator

from app.schemas.parsing import refused, unsupported
from app.schemas.shapes import documented, list_of

TEXT: Final = {"type": "object", "properties": {"type": {"const": "text"}}, "required": ["type"]}
OBJECT: Final = {
    "type": "object",
    "properties": {"type": {"const": "json_object"}},
    "required": ["type"],
}
MOST_CHOICES: Final = 1024
"""Texts that an answer may be one of."""

SOURCES: Final = ("json", "regex", "choice", "grammar", "json_object")
"""Members of structured_outputs, of which there must be one."""


def _kind(value: Any) -> Any:
    """The type of a format; raises for what has none."""
    if not isinstance(value, dict):
        raise refused("must be an object with a type")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in ("text", "json_object", "json_schema"):
        raise unsupported(f"type {str(kind)[:40]!r} is not supported")
    return kind


def _schema(holder: Any, where: str) -> dict[str, Any]:
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if not isinstance(schema, dict):
        raise refused(f"{where} must have a schema, which is an object")
    return schema


def schema_of(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """The JSON schema that a checked format asks for; None for plain text."""
    if value is None or value["type"] == "text":
        return None
    if value["type"] == "json_object":
        return {"type": "object"}
    schema: dict[str, Any] = value.get("json_schema", value)["schema"]
    return schema


def answer_format(value: Any) -> Any:
    """Check a chat's response_format."""
    if value is not None and _kind(value) == "json_schema":
        _schema(value.get("json_schema"), "json_schema")
    return value


def response_format(value: Any) -> Any:
    """Check the format of a response, `text.format`."""
    if value is not None and _kind(value) == "json_schema":
        _schema(value, "the format")
    return value


def structure(value: Any) -> Any:
    """Check what vLLM's structured_outputs name: one grammar, in one of its forms."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise refused("must be an object")
    given = {name: member for name, member in value.items() if member not in (None, False)}
    if unknown := sorted(given.keys() - set(SOURCES)):
        raise unsupported(f"{unknown[0][:40]!r} is not supported")
    if len(given) != 1:
        raise refused(f"must have one of {', '.join(SOURCES)}")
    ((name, member),) = given.items()
    return {name: CHECKS[name](member)}


def schema(value: Any) -> dict[str, Any] | None:
    """A JSON schema, as an object or as its text."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise refused("is not valid JSON") from None
    if not isinstance(value, dict):
        raise refused("must be a JSON schema, which is an object")
    return value


def text(value: Any) -> str:
    """A regular expression or a grammar."""
    if not isinstance(value, str) or not value:
        raise refused("must be a string that is not empty")
    return value


def choices(value: Any) -> list[str]:
    """The texts that an answer may be."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_CHOICES:
        raise refused(f"must be a list of 1 to {MOST_CHOICES} strings")
    if not all(isinstance(each, str) and each for each in value):
        raise refused("must be a list of strings that are not empty")
    return value


def any_object(value: Any) -> bool:
    """Whether an answer is to be any JSON object."""
    if value is not True:
        raise refused("must be a boolean")
    return True


CHECKS: Final = {
    "json": schema,
    "regex": text,
    "choice": choices,
    "grammar": text,
    "json_object": any_object,
}


def _optional(check: Any) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value is None else check(value))


JSON_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "type": {"const": "json_schema"},
        "json_schema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "schema": {"type": "object"}},
            "required": ["schema"],
        },
    },
    "required": ["type", "json_schema"],
}
RESPONSE_SCHEMA: Final = {
    "type": "object",
    "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
    "required": ["type", "schema"],
}
NOTHING: Final = {"type": "null"}

AnswerFormat: TypeAlias = Annotated[
    Any, AfterValidator(answer_format), documented(TEXT, OBJECT, JSON_SCHEMA, NOTHING)
]
ResponseFormat: TypeAlias = Annotated[
    Any, AfterValidator(response_format), documented(TEXT, OBJECT, RESPONSE_SCHEMA, NOTHING)
]
Structure: TypeAlias = Annotated[
    Any,
    AfterValidator(structure),
    documented(
        *({"type": "object", "properties": {name: {}}, "required": [name]} for name in SOURCES),
        NOTHING,
    ),
]
GuidedSchema: TypeAlias = Annotated[
    dict[str, Any] | None,
    _optional(schema),
    documented({"type": "object"}, {"type": "string"}, NOTHING),
]
GuidedText: TypeAlias = Annotated[
    str | None, _optional(text), documented({"type": "string", "minLength": 1}, NOTHING)
]
GuidedChoice: TypeAlias = Annotated[
    list[str] | None,
    _optional(choices),
    documented(list_of({"type": "string", "minLength": 1}, least=1), NOTHING),
]
