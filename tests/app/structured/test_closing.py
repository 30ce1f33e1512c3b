"""JSON that is closed before it would be cut, whatever the model goes on with."""

from __future__ import annotations

import contextlib
import json

import pytest
from support.guided import accepts

from app.structured import closing
from app.structured.closing import RESERVE, Closers, ClosingGrammar
from app.structured.compiler import Compiler
from app.structured.masks import MaskCrew
from app.structured.matching import CompiledGrammar
from app.structured.notation import translate
from app.structured.vocabulary import Vocabulary
from app.text.tokenizer import ByteTokenizer
from engine.grammar import Late, allows, first_allowed

TOKENIZER = ByteTokenizer()
VOCABULARY = Vocabulary.of(TOKENIZER)
CLOSERS = Closers(VOCABULARY)
EOS = min(TOKENIZER.eos_ids)

REQUIRED = {
    "type": "object",
    "properties": {
        "note": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "size": {"type": "number"},
        "when": {"type": "string", "format": "date-time"},
        "kind": {"enum": ["round", "square"]},
    },
    "required": ["note", "tags", "size", "when", "kind"],
}
ENDLESS = [
    ({"type": "object"}, '{"a": "' + "x" * 500),
    ({"type": "object"}, '{"' + "x" * 500),
    ({"type": "object"}, '{"a": {"b": ' * 100),
    ({"type": "object"}, '{"a": "]}' + "]}" * 300),
    ({"type": "array", "items": {"type": "integer"}}, "[" + "1, " * 300),
    ({"type": "array", "items": {"type": "number"}}, "[1." + "3" * 300),
    ({"type": "array"}, "[" * 300),
    ({"type": "string"}, '"' + "\\u00e9" * 100),
    ({"type": "string", "minLength": 20}, '"' + "y" * 500),
    (REQUIRED, '{"note": "' + "x" * 500),
    (REQUIRED, '{"note": "", "tags": ["' + '", "' * 500),
    (REQUIRED, '{"note": "", "tags": [], "size": 3, "when": "2020-01-01T00:00:00.' + "1" * 400),
]


@pytest.fixture(scope="module")
def compiler():
    return Compiler(VOCABULARY)


@pytest.fixture(scope="module")
def masks():
    with contextlib.closing(MaskCrew(-(-TOKENIZER.vocab_size // 32))) as crew:
        yield crew


def compiled(compiler, masks, schema):
    start = compiler.compile(translate("json", json.dumps(schema)))
    return CompiledGrammar(start, TOKENIZER, masks, lambda: None)


def mask_of(grammar, matcher):
    """The mask of what may come next, however long it takes."""
    while True:
        (mask,) = grammar.prepare([matcher])()
        assert mask is not None, matcher.fault
        if not isinstance(mask, Late):
            return mask


def say(grammar, text, most, forces=False):
    """What a model says that would say `text`: else the first that it may. None: it was cut."""
    matcher = grammar.matcher()
    said = []
    wanted = list(text.encode())
    while len(said) < most:
        mask = mask_of(grammar, matcher)
        token = wanted.pop(0) if wanted else EOS
        if not allows(mask, token):
            wanted, token = [], first_allowed(mask)
        said.append(token)
        matcher.accept(token)
        while forces and not matcher.over and (forced := matcher.forced()):
            wanted = wanted[len(forced) :] if wanted[: len(forced)] == forced else []
            said += forced
            for each in forced:
                matcher.accept(each)
        assert not matcher.fault
        if matcher.over:
            return bytes(each for each in said if each < 256).decode()
    return None


@pytest.mark.parametrize(("schema", "text"), ENDLESS)
@pytest.mark.parametrize("most", [220, 400])
def test_what_would_not_end_is_closed_within_its_tokens(compiler, masks, schema, text, most):
    grammar = compiled(compiler, masks, schema)
    closed = say(ClosingGrammar(grammar, lambda: CLOSERS, most), text, most)
    assert closed is not None
    json.loads(closed)
    assert accepts(grammar.begin(), TOKENIZER, closed)
    assert say(ClosingGrammar(grammar, lambda: CLOSERS, most), text, most, forces=True) == closed
    if len(text) >= most:
        assert say(grammar, text, most) is None


def test_an_answer_that_ends_by_itself_is_not_touched(compiler, masks):
    text = json.dumps({"a": ["x" * 60, {"b": 1.5, "c": "]}"}]})
    grammar = ClosingGrammar(compiled(compiler, masks, {"type": "object"}), lambda: CLOSERS, 400)
    assert say(grammar, text, 400) == text


def test_an_answer_that_nothing_is_to_spare_for_is_closed_from_its_beginning(compiler, masks):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    grammar = ClosingGrammar(compiled(compiler, masks, schema), lambda: CLOSERS, RESERVE + 10)
    assert json.loads(say(grammar, '{"a":"' + "x" * 99, RESERVE + 10)) == {"a": ""}


@pytest.mark.parametrize(
    ("schema", "begun", "tokens"),
    [
        ({"type": "object"}, "{", 1),
        ({"type": "object"}, '{"a": [[1', 3),
        ({"type": "object"}, '{"a": [["x]}', 4),
        ({"type": "object"}, '{"a', len('":""}')),
        ({"type": "integer"}, "12", 1),
        ({"const": "abcdef"}, '"abc', len('def"')),
    ],
)
def test_how_far_it_is_to_the_end(compiler, schema, begun, tokens):
    matcher = compiler.compile(translate("json", json.dumps(schema)))
    assert matcher.consume_tokens(list(begun.encode()))
    assert CLOSERS.tokens_to_end(matcher, 100) == tokens
    assert CLOSERS.tokens_to_end(matcher, tokens) == tokens
    assert matcher.consume_tokens([]), "looking ahead takes nothing in"


def test_what_cannot_be_closed_in_time_is_as_far_as_one_looked(compiler):
    matcher = compiler.compile(translate("json", json.dumps({"type": "string", "minLength": 99})))
    assert CLOSERS.tokens_to_end(matcher, 50) == 50


def test_who_looks_ahead_stops_when_it_takes_too_long(compiler, monkeypatch):
    monkeypatch.setattr(closing, "SLOW_S", -1.0)
    matcher = compiler.compile(translate("json", json.dumps({"type": "object"})))
    assert CLOSERS.tokens_to_end(matcher, 50) == 50
