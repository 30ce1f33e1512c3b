"""From what a client wrote to a grammar in the library's own notation.

Imported when it is needed first: most servers are never asked for a grammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import llguidance
import orjson
from llguidance.gbnf_to_lark import any_to_lark

from app.structured.bounds import Unfit, check_grammar, check_regex, check_schema
from app.structured.kinds import WHITESPACE, Kind


def translate(kind: Kind, text: str) -> str:
    """The grammar of a `Source` of this kind and text. Raises Unfit."""
    return _NOTATIONS[kind](text)


def _json(text: str) -> str:
    check_schema(text)
    options: Any = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": False}
    try:
        grammar: str = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=options)
    except ValueError as error:
        raise Unfit(f"cannot be followed: {first_line(str(error))}") from None
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
            raise Unfit(f"is not understood: {first_line(str(error))}") from None
    grammar: str = llguidance.LLMatcher.grammar_from_lark(text)
    return grammar


def _tools(text: str) -> str:
    """What `app.tools` wrote: Lark with schemas that have been checked."""
    grammar: str = llguidance.LLMatcher.grammar_from_lark(text)
    return grammar


_NOTATIONS: Final[Mapping[Kind, Callable[[str], str]]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "tools": _tools,
}


def first_line(error: str) -> str:
    """Enough of an error, on one line and without its full stop."""
    return " ".join(error.split("<non-verbose/>")[0].split())[:300].rstrip(". ")
