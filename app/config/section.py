"""What every part of the configuration has in common."""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict

_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def header_name(name: str) -> str:
    """The name of an HTTP header (RFC 9110, section 5.1) in lower case; raises ValueError."""
    if not _HEADER.fullmatch(name):
        raise ValueError("expected the name of an HTTP header")
    return name.lower()


HeaderName: TypeAlias = Annotated[str, AfterValidator(header_name)]


class Section(BaseModel):
    """A part of the configuration: frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
