"""What can be configured of recordings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.config.section import Section
from app.config.sizes import Size

SMALLEST = 2**16


class RecordConfig(Section):
    """What the engine is given, to files, to be replayed: lengths and times, never text."""

    directory: str | None = Field(
        default=None, description="where recordings are written; null: nothing is recorded"
    )
    max_bytes: Annotated[Size, Field(ge=SMALLEST)] = Field(
        default=64 * 2**20, description="size of a compressed file beyond which another is begun"
    )
    keep: Annotated[int, Field(ge=1)] = Field(
        default=64, description="files that are kept; without its first, no recording is exact"
    )
