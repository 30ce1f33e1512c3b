"""What every part of the configuration has in common."""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def header_name(name: str) -> str:
    """The name of an HTTP header (RFC 9110, section 5.1) in lower case; raises ValueError."""
    if not _HEADER.fullmatch(name):
        raise ValueError("expected the name of an HTTP header")
    return name.lower()


def label(name: str) -> str:
    """Accept what can stand in logs, metrics and headers; raises ValueError for anything else."""
    if not _LABEL.fullmatch(name):
        raise ValueError("a name has at most 64 letters, digits and -._, and no sign first")
    return name


Name: TypeAlias = Annotated[str, Field(min_length=1)]
Label: TypeAlias = Annotated[str, AfterValidator(label)]
HeaderName: TypeAlias = Annotated[str, AfterValidator(header_name)]


class Section(BaseModel):
    """A part of the configuration: frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
