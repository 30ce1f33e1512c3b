"""From a grammar to a matcher over the tokens of a model, by llguidance.

Imported when it is needed first: most servers are never asked for a grammar.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final

import llguidance
import orjson

from app.structured.bounds import Unfit
from app.structured.notation import first_line
from app.structured.vocabulary import Vocabulary

FIRST_MASK_S: Final = 0.25
"""CPU time that the first mask may take. What is found out for it serves the later ones, which the
whole batch waits for."""

_UNKNOWN: Final = re.compile(r"Unimplemented keys: (\[.*?\])")
_DISJOINT: Final = re.compile(r"patternProperty regexes")


class Compiler:
    """Compiles for one vocabulary. Thread-safe. To make one takes some 0.2 s with the GIL held.

    Parsers stop at limits that keep a mask or a token below some 10 ms, whatever the grammar. All
    schemas of JSONSchemaBench that the library supports stay within them.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos = frozenset(vocabulary.eos)
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Words(vocabulary)), eos_token=list(vocabulary.eos)
        )
        self._limits = llguidance.LLParserLimits(
            max_items_in_row=200,
            step_lexer_fuel=20_000,
            step_max_items=5_000,
            max_lexer_states=50_000,
            verbose_errors=False,
        )

    def compile(self, grammar: str) -> Any:
        """A matcher at the start, whose first mask is known. Raises Unfit.

        grammar: in the library's notation (`notation.translate`).
        """
        start = llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=self._limits)
        if error := start.get_error():
            raise Unfit(_explain(error))
        first = start.deep_copy()
        began = time.thread_time()
        first.compute_bitmask()
        if time.thread_time() - began > FIRST_MASK_S:
            raise Unfit("is too complex")
        if first.is_error():
            raise Unfit(_explain(first.get_error()))
        return start


class _Words:
    """A vocabulary as llguidance wants it."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = min(vocabulary.eos)
        self.special_token_ids = list(vocabulary.special)
        self.tokens = list(vocabulary.pieces)
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return list(self._encode(text.encode() if isinstance(text, str) else text))


def _explain(error: str) -> str:
    """What the library says, with the keyword to blame in front where it is known."""
    if error.startswith("NoExtension"):
        return "allows nothing at all"
    if found := _UNKNOWN.search(error):
        names = ", ".join(orjson.loads(found[1]))
        return f"uses keywords that are not supported: {names[:200]}"
    if error.startswith("oneOf"):
        return "uses oneOf with branches that may overlap, which is not supported; anyOf is"
    if error.startswith("Schema intersection"):
        return "is not supported: allOf, anyOf or $ref lead round in a circle"
    if _DISJOINT.search(error):
        return f"is not supported: patternProperties overlap ({first_line(error)})"
    return f"cannot be followed: {first_line(error)}"
