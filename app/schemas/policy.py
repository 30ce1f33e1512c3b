"""POST /admin/policy."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from app.schemas.parsing import WireModel


class PolicyRequest(WireModel):
    """Which policy shall be in charge, with which parameters."""

    policy: Annotated[str, Field(min_length=1, max_length=200)]
    params: dict[str, Any] | None = None
