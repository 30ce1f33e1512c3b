"""Sizes as people write them: 512MiB, 2GiB, or a number of bytes."""

from __future__ import annotations

import re
from typing import Annotated, Final, TypeAlias

from pydantic import BeforeValidator

_UNITS: Final = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_SIZE: Final = re.compile(r"([0-9]+) ?(|KiB|MiB|GiB)")


def parse_size(value: object) -> object:
    """Turn "512MiB" or "2GiB" into bytes; anything else is left for the type to judge."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not match[2]:
        return value
    return int(match[1]) * _UNITS[match[2]]


Size: TypeAlias = Annotated[int, BeforeValidator(parse_size)]
