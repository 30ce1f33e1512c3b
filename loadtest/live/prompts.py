"""Prompts of wanted lengths, as token ids: random words never seen before, or shared prefixes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import orjson

from loadtest.traces import Arrival

_TEXT: Final = Path(__file__).parents[1] / "texts" / "drama.json"
MOST_TEXT: Final = 6000
"""Characters of the text that words are taken from: several hundred different ones."""


def sample_text(context: int) -> str:
    """A text of ordinary words, whose tokens are ordinary ones; it fits into a context of so many
    tokens, of whatever vocabulary."""
    whole = "\n".join(orjson.loads(_TEXT.read_bytes())["text"])
    return whole[: min(MOST_TEXT, context // 2)]


class Prompts:
    """Makes the prompts of a trace.

    words: ids of ordinary tokens to draw from. seed: other seeds make other prompts, so that what
    an earlier run left in the prefix cache is of no use to a later one.
    """

    def __init__(self, words: Sequence[int], seed: int = 0) -> None:
        if not words:
            raise ValueError("there are no tokens to make prompts of")
        self._words = words
        self._seed = seed
        self._named = lru_cache(maxsize=4096)(self.drawn)

    def of(self, number: int, arrival: Arrival) -> list[int]:
        """The prompt of the trace's `number`-th request. Where it has names of its content, the
        same names are the same tokens; else it has nothing in common with any other."""
        if arrival.prefix is None:
            return self.drawn(f"request {number}", arrival.prompt_tokens)
        each = arrival.prefix.block_tokens
        prompt: list[int] = []
        for name in arrival.prefix.names:
            prompt += self._named(f"block {name}", each)
        return prompt[: arrival.prompt_tokens]

    def drawn(self, name: str, count: int) -> list[int]:
        """So many tokens, the same for the same name."""
        return random.Random(f"{self._seed} {name}").choices(self._words, k=count)
