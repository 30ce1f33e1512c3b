"""Draft models that say what they are told, and how often that is right."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from engine.backends.base import Backend
from engine.backends.scripted import Script, ScriptedBackend, echo
from engine.clock import VirtualClock
from engine.controls import SampleRow
from engine.cost import LinearCost
from engine.drafting.model import DraftModel, DraftSettings

TARGET = LinearCost(base=4e-3, decode=4e-4, chunk_context=1e-7)
"""About what the default model takes on two cores."""

SMALL = LinearCost(base=4e-4, prompt_token=1e-5, decode=4e-5)
"""What a model of a tenth of its size would take."""


def wrong_in(eighths: int, script: Script = echo) -> Script:
    """The script, but for so many of eight places."""

    def says(row: SampleRow) -> int:
        token = script(row)
        place = crc32(bytes((row.prompt_length % 256, row.index, row.position % 256)))
        return max(0, token - (place % 8 < eighths))

    return says


def draft_model(
    wrong: int = 0,
    *,
    blocks: int = 64,
    backend: Backend | None = None,
    cost: LinearCost = TARGET,
    draft_cost: LinearCost = SMALL,
    **settings: Any,
) -> DraftModel:
    """A draft model whose guesses are wrong in `wrong` of eight cases, where the script is `echo`.

    It checks its block tables, as scripted backends do.
    """
    made = DraftSettings(cost, draft_cost, VirtualClock(), **settings)
    return DraftModel(backend or ScriptedBackend(blocks, wrong_in(wrong)), made)
