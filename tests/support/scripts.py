"""What a scripted backend may say."""

from __future__ import annotations

from engine.controls import SampleRow


def hashed(row: SampleRow) -> int:
    """A token that depends on everything a sampler may look at.

    One token lost, doubled or out of place in the history changes all that follow; so does a
    position or a length of the prompt that is wrong.
    """
    history = tuple(row.tokens[: row.position])
    return hash((history, row.position, row.prompt_length, row.index, row.controls.seed)) % 50_000
