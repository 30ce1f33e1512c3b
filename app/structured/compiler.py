"""From the text of a grammar to a matcher over the tokens of a model, by llguidance.

Imported when it is needed first: most servers are never asked for a grammar.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import llguidance
import orjson
from llguidance.gbnf_to_lark import any_to_lark

from app.structured.bounds import Unfit, check_grammar, check_regex, check_schema
from app.structured.source import WHITESPACE, Kind, Source
from app.text.tokenizer import Tokenizer

FIRST_MASK_S: Final = 0.25
"""CPU time that the first mask may take. What is found out for it serves the later ones, which the
whole batch waits for."""

_UNKNOWN: Final = re.compile(r"Unimplemented keys: (\[.*?\])")
_DISJOINT: Final = re.compile(r"patternProperty regexes")


class Compiler:
    """Compiles for one tokenizer. Thread-safe.

    Parsers stop at limits that keep a mask or a token below some 10 ms, whatever the grammar. All
    schemas of JSONSchemaBench that the library supports stay within them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(tokenizer)),
            eos_token=sorted(tokenizer.eos_ids),
        )
        self._limits = llguidance.LLParserLimits(
            max_items_in_row=200,
            step_lexer_fuel=20_000,
            step_max_items=5_000,
            max_lexer_states=50_000,
            verbose_errors=False,
        )
        self._grammars: Mapping[Kind, Callable[[str], str]] = {
            "json": _json,
            "regex": _regex,
            "choice": _choice,
            "grammar": _grammar,
            "tools": llguidance.LLMatcher.grammar_from_lark,
        }

    def compile(self, source: Source) -> Any:
        """A matcher at the start, whose first mask is known. Raises Unfit."""
        grammar = self._grammars[source.kind](source.text)
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


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_ids)
        self.special_token_ids = sorted(tokenizer.control.values())
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, continues=True)


def _json(text: str) -> str:
    check_schema(text)
    options: Any = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}
    try:
        grammar: str = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=options)
    except ValueError as error:
        raise Unfit(_explain(str(error))) from None
    return grammar


def _regex(text: str) -> str:
    check_regex(text)
    grammar: str = llguidance.LLMatcher.grammar_from_regex(text)
    return grammar


def _choice(text: str) -> str:
    """One terminal, which is an automaton: a rule of so many would be too complex to parse."""
    options = " | ".join(json.dumps(each, ensure_ascii=False) for each in orjson.loads(text))
    grammar: str = llguidance.LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {options}")
    return grammar


def _grammar(text: str) -> str:
    """A grammar in Lark's notation, or in GBNF, which has `::=`."""
    check_grammar(text)
    if "::=" in text:
        try:
            text = any_to_lark(text)
        except Exception as error:
            raise Unfit(f"is not understood: {_first_line(str(error))}") from None
    grammar: str = llguidance.LLMatcher.grammar_from_lark(text)
    return grammar


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
        return f"is not supported: patternProperties overlap ({_first_line(error)})"
    return f"cannot be followed: {_first_line(error)}"


def _first_line(error: str) -> str:
    """Enough of an error, on one line and without its full stop."""
    return " ".join(error.split("<non-verbose/>")[0].split())[:300].rstrip(". ")
