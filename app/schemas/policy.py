"""POST /admin/policy."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from app.schemas.parsing import WireModel

MAX_PARAMS: Final = 64
"""More than any policy takes; each that it does not take is a reason in the answer."""


class PolicyRequest(WireModel):
    """Which policy shall be in charge, with which parameters."""

    policy: Annotated[str, Field(min_length=1, max_length=200)]
    params: Annotated[dict[str, Any], Field(max_length=MAX_PARAMS)] | None = None
