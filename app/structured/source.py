"""What an answer is held to, as the text of a grammar."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from app.errors import ApiError, invalid
from app.structured.kinds import Kind

ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
"""The schema of `json_object`."""

OPTIONS: Final = "x-guidance"
"""The member of a schema in which llguidance would take options."""


@dataclass(frozen=True, slots=True)
class Source:
    """A grammar that is not compiled yet.

    text: a JSON schema, a regular expression, a list of texts as JSON, or a grammar in Lark's or
    GBNF's notation. param: the field of the request that it came in. opening: up to this text an
    answer is free; the grammar has it behind any text.
    """

    kind: Kind
    text: str
    param: str
    opening: str = ""

    @property
    def key(self) -> bytes:
        """The same for two sources of the same grammar."""
        return hashlib.sha256(
            f"{self.kind}\n{self.opening}\n{self.text}".encode("utf-8", "replace")
        ).digest()

    def refused(self, reason: str) -> ApiError:
        """400: nothing can be held to this."""
        return invalid(f"The {NAMES[self.kind]} {reason}.", self.param, "invalid_grammar")


NAMES: Final[Mapping[Kind, str]] = {
    "json": "schema",
    "regex": "regular expression",
    "choice": "choice",
    "grammar": "grammar",
    "tools": "definitions of the tools",
}
"""What clients call them."""


def json_source(schema: Mapping[str, Any], param: str) -> Source:
    """Answers that are JSON by a schema. Raises ApiError (400) if it is nested too deeply."""
    return Source("json", schema_text(schema, param), param)


def schema_text(schema: Mapping[str, Any], param: str) -> str:
    """A schema as JSON, its members in their order, without options of llguidance's.

    Raises ApiError (400).
    """
    plain = {name: value for name, value in schema.items() if name != OPTIONS}
    try:
        return orjson.dumps(plain).decode()
    except (orjson.JSONEncodeError, RecursionError):
        raise invalid("The schema is nested too deeply.", param, "invalid_grammar") from None


def choice_source(choices: Sequence[str], param: str) -> Source:
    """Answers that are one of some texts."""
    return Source("choice", orjson.dumps(list(choices)).decode(), param)
