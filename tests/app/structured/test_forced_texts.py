"""What a grammar forces is what its masks allow, in the tokenizer's words, and right so far."""

from __future__ import annotations

import json
import os

import pytest
from support.float_parity import MODEL
from support.forced import PiecesTokenizer, walk
from support.guided import SCHEMAS, compile_all, rows_of, sample_of

from app.structured.compiler import Compiler
from app.structured.vocabulary import Vocabulary
from app.text.tokenizer import ByteTokenizer

WORDS = "name Name first firstName street Street str van der Berg city cities true 12 al alpha bet"
PIECES = [
    *WORDS.split(),
    *('{"', '":', '": "', '", "', '"}', '"]', ": [", '["', "::", " van", " der", "van der"),
    *("alphabet", "er", "ci", "ö", "Zoë", "  ", "\n  "),
]
SHORT = {
    "names": {
        "type": "object",
        "properties": {
            "firstName": {"type": "string", "maxLength": 5},
            "lastName": {"const": "van der Berg, Zoë"},
            "streets": {"type": "array", "items": {"enum": ["alpha", "alphabet"]}, "maxItems": 3},
        },
        "required": ["firstName", "lastName", "streets"],
        "additionalProperties": False,
    },
    "either": {
        "anyOf": [
            {"type": "object", "properties": {"city": {"type": "boolean"}}, "required": ["city"]},
            {"type": "object", "properties": {"cities": {"const": 1}}, "required": ["cities"]},
        ]
    },
    "nested": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"enum": ["a", "first", "firstName"]},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                },
                "required": ["name"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
}


def bytewise(schemas):
    """The same grammars over single bytes: they know of no tokens."""
    return compile_all(Compiler(Vocabulary.of(ByteTokenizer())), schemas).starts


def goes_on(start, text: bytes) -> bool:
    """Whether a text begins something that a grammar over bytes accepts."""
    accepted: int = start.deep_copy().try_consume_tokens(list(text))
    return accepted == len(text)


def check(start, start_of_bytes, tokenizer, seed, most=120):
    walked = walk(start, tokenizer, seed, most)
    ordinary = [token for token in walked.tokens if not tokenizer.is_control(token)]
    text = b"".join(map(tokenizer.token_bytes, ordinary))
    assert goes_on(start_of_bytes, text)
    return walked, text


@pytest.mark.parametrize("name", SHORT)
def test_forced_tokens_are_those_that_masks_would_allow(name) -> None:
    tokenizer = PiecesTokenizer(PIECES)
    schemas = [SHORT[name]]
    start = compile_all(Compiler(Vocabulary.of(tokenizer)), schemas).starts[0]
    start_of_bytes = bytewise(schemas)[0]
    forced = complete = 0
    for seed in range(40):
        walked, text = check(start, start_of_bytes, tokenizer, seed)
        forced += walked.forced
        complete += walked.complete
        if walked.complete:
            json.loads(text)
    assert forced > 0
    assert complete > 10


def test_a_run_stops_where_what_follows_may_belong_to_its_last_token() -> None:
    tokenizer = PiecesTokenizer(PIECES)
    compiler = Compiler(Vocabulary.of(tokenizer))
    start = compile_all(compiler, [{"enum": ["alpha", "alphabet"]}]).starts[0]
    matcher = start.deep_copy()
    matcher.consume_token(ord('"'))
    assert matcher.compute_ff_bytes() == b"alpha"
    assert matcher.compute_ff_tokens() == []  # it may become alphabet


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/")
@pytest.mark.skipif(not SCHEMAS.exists(), reason="the schemas are not under ../shared")
def test_so_they_are_in_the_schemas_of_jsonschemabench() -> None:
    from app.text.gguf_tokenizer import GGUFTokenizer

    tokenizer = GGUFTokenizer.from_file(MODEL)
    rows = sample_of(
        rows_of("jsonschemabench_subset.jsonl.gz"), int(os.environ.get("OCTAVO_SCHEMAS", "0"))
    )
    schemas = [row["schema"] for row in rows]
    starts = compile_all(Compiler(Vocabulary.of(tokenizer)), schemas).starts
    starts_of_bytes = bytewise(schemas)
    said = forced = 0
    for number, start in starts.items():
        walked, _ = check(start, starts_of_bytes[number], tokenizer, number, most=150)
        said += len(walked.tokens)
        forced += walked.forced
    print(f"{forced} of {said} tokens of random answers to {len(starts)} schemas are forced")
    assert forced > 0.02 * said
