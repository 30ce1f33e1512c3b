"""Matchers over a real vocabulary of bytes: masks, ends, faults, and text that is free."""

import asyncio
import json
import threading
import time
from contextlib import closing, suppress

import numpy as np
import pytest
from support.grammars import masks_in_the_end

from app.config.schema import StructuredConfig
from app.errors import ApiError
from app.structured import matching, vetter
from app.structured.bounds import Unfit, check_grammar, check_schema
from app.structured.grammars import Grammars
from app.structured.source import Source, choice_source, json_source
from app.structured.vetter import TookTooLong, Vetter
from app.text.tokenizer import ByteTokenizer
from engine.grammar import allows

EOS = 257


@pytest.fixture
def grammars():
    made = Grammars(StructuredConfig(), ByteTokenizer())
    yield made
    made.close()


def regex(text):
    return Source("regex", text, "p")


async def start(grammars, source):
    grammar = await grammars.get(source)
    return grammar, grammar.matcher()


def allowed(grammar, matcher):
    (mask,) = masks_in_the_end(grammar, [matcher])
    if mask is None:
        return None
    return {token for token in range(300) if allows(mask, token)}


async def test_masks_follow_what_was_accepted(grammars):
    grammar, matcher = await start(grammars, regex("ab?c"))
    assert allowed(grammar, matcher) == {ord("a")}
    matcher.accept(ord("a"))
    assert allowed(grammar, matcher) == {ord("b"), ord("c")}
    assert not matcher.over
    matcher.accept(ord("c"))
    assert matcher.over
    assert not matcher.fault


async def test_what_may_go_on_may_also_end(grammars):
    grammar, matcher = await start(grammars, regex("a+"))
    matcher.accept(ord("a"))
    assert allowed(grammar, matcher) == {ord("a"), EOS}
    assert not matcher.over
    matcher.accept(EOS)
    assert matcher.over


async def test_matchers_of_different_grammars_are_masked_together(grammars):
    grammar, first = await start(grammars, regex("a"))
    _, second = await start(grammars, regex("b"))
    masks = masks_in_the_end(grammar, [second, first, grammar.matcher()])
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[3], [3], [3]]
    assert allows(masks[0], ord("b"))
    assert allows(masks[1], ord("a"))


async def test_a_token_that_is_not_allowed_is_a_fault_and_the_grammar_is_made_anew(grammars):
    source = regex("abc")
    grammar, matcher = await start(grammars, source)
    assert await grammars.get(source) is grammar
    matcher.accept(ord("x"))
    assert matcher.fault == matching.NOT_ALLOWED
    assert allowed(grammar, matcher) is None
    matcher.accept(ord("a"))
    assert await grammars.get(source) is not grammar


async def test_a_grammar_that_becomes_too_complex_is_a_fault(grammars):
    source = Source("grammar", 'start: s\ns: s s s | s s | "a" | "b"', "p")
    grammar, matcher = await start(grammars, source)
    for _ in range(200):
        if matcher.fault:
            break
        began = time.thread_time()
        allowed(grammar, matcher)
        matcher.accept(ord("a"))
        assert time.thread_time() - began < 1
    assert matcher.fault == matching.TOO_COMPLEX


async def test_a_grammar_that_is_slow_again_and_again_is_a_fault(grammars, monkeypatch):
    monkeypatch.setattr(matching, "SLOW_S", -1.0)
    grammar, matcher = await start(grammars, regex("a*"))
    for _ in range(matching.MOST_SLOW):
        matcher.accept(ord("a"))
        assert not matcher.fault
    assert allowed(grammar, matcher) is None
    assert matcher.fault == matching.TOO_COMPLEX


def calling(text):
    grammar = "start: opening /[0-9]/ | other\nopening[lazy]: /(.|\\n)*<go>/\nother: /(.|\\n)*/"
    return Source("tools", grammar, "p", text)


async def test_text_is_free_until_its_opening_comes(grammars):
    grammar, matcher = await start(grammars, calling("<go>"))
    for byte in b"say <b> or\n":
        assert allowed(grammar, matcher) is None or byte == ord("b")
        matcher.accept(byte)
    for byte in b"<go>":
        matcher.accept(byte)
    assert allowed(grammar, matcher) == set(b"0123456789")
    matcher.accept(ord("7"))
    assert matcher.over


async def test_what_might_be_an_opening_is_held_to_the_grammar(grammars):
    grammar, matcher = await start(grammars, calling("<go>"))
    matcher.accept(ord("<"))
    assert ord("g") in allowed(grammar, matcher)
    assert ord("x") in allowed(grammar, matcher)
    assert 0xFF not in allowed(grammar, matcher)


@pytest.mark.parametrize("strange", [0xFF, 256])
async def test_free_text_may_hold_anything(grammars, strange):
    _, matcher = await start(grammars, calling("<go>"))
    for token in (ord("a"), strange, *b" <go", EOS):
        matcher.accept(token)
    assert not matcher.fault
    assert not matcher.over


# ── tokens without a choice ──


async def test_what_leaves_no_choice_is_forced(grammars):
    grammar, matcher = await start(grammars, regex("a(bcd|efg)h+"))
    assert list(matcher.forced()) == [ord("a")]
    matcher.accept(ord("a"))
    assert list(matcher.forced()) == []
    matcher.accept(ord("e"))
    assert bytes(matcher.forced()) == b"fgh"
    assert allowed(grammar, matcher) == {ord("f")}
    for byte in b"fgh":
        matcher.accept(byte)
    assert list(matcher.forced()) == []  # it may end here
    assert not matcher.fault


async def test_nothing_is_forced_where_that_is_switched_off():
    grammars = Grammars(StructuredConfig(forced_tokens=False), ByteTokenizer())
    _, matcher = await start(grammars, regex("abc"))
    assert list(matcher.forced()) == []
    grammars.close()


async def test_nothing_is_forced_on_free_text(grammars):
    grammar = "start: opening /one/ | other\nopening[lazy]: /(.|\\n)*<go>/\nother: /(.|\\n)*/"
    _, matcher = await start(grammars, Source("tools", grammar, "p", "<go>"))
    for byte in b"on, on <g":
        matcher.accept(byte)
        assert list(matcher.forced()) == []
    for byte in b"o>":
        matcher.accept(byte)
    assert bytes(matcher.forced()) == b"one"


async def test_a_grammar_that_fails_while_it_is_asked_forces_nothing(grammars, monkeypatch):
    _, matcher = await start(grammars, regex("a*"))
    monkeypatch.setattr(matching, "SLOW_S", -1.0)
    for _ in range(matching.MOST_SLOW + 1):
        assert list(matcher.forced()) == []
    assert matcher.fault == matching.TOO_COMPLEX


# ── compiling ─────────────────────────────────────────────────────────────────────────────────


async def test_a_grammar_is_compiled_once_for_all_who_want_it(grammars):
    wanted = [grammars.get(choice_source(["a", "b"], f"p{i}")) for i in range(5)]
    made = await asyncio.gather(*wanted)
    assert all(grammar is made[0] for grammar in made)


async def test_what_cannot_be_followed_is_remembered_and_told_to_each_by_its_own_field(grammars):
    for param in ("a", "b"):
        with pytest.raises(ApiError) as caught:
            await grammars.get(json_source({"not": {}}, param))
        assert (caught.value.status, caught.value.param) == (400, param)
    assert len(grammars._known) == 1


async def test_the_least_recently_used_make_way():
    grammars = Grammars(StructuredConfig(cache_entries=2), ByteTokenizer())
    a, b, c = map(regex, "abc")
    first = await grammars.get(a)
    await grammars.get(b)
    assert await grammars.get(a) is first
    await grammars.get(c)
    assert await grammars.get(a) is first
    assert len(grammars._known) == 2
    grammars.close()


class Gate:
    """Stands in for `Vetter.vet`: nothing goes through before `open` is set."""

    def __init__(self, monkeypatch):
        self.open = threading.Event()
        self.asked = threading.Event()
        original = Vetter.vet

        def vet(vetter, kind, text):
            self.asked.set()
            assert self.open.wait(60)
            return original(vetter, kind, text)

        monkeypatch.setattr(Vetter, "vet", vet)


async def test_who_only_waits_for_others_is_told_to_come_again(monkeypatch):
    gate = Gate(monkeypatch)
    with closing(Grammars(StructuredConfig(workers=1, timeout_s=0.5), ByteTokenizer())) as grammars:
        first = asyncio.ensure_future(grammars.get(regex("a")))
        assert await asyncio.to_thread(gate.asked.wait, 60)
        with pytest.raises(ApiError, match="Too many") as caught:
            await grammars.get(regex("b"))
        assert (caught.value.status, "retry-after" in caught.value.headers) == (503, True)
        gate.open.set()
        assert await first  # it was being tried out, and that has its own bound


async def test_more_than_are_kept_do_not_wait(monkeypatch):
    gate = Gate(monkeypatch)
    grammars = Grammars(StructuredConfig(workers=1, cache_entries=2), ByteTokenizer())
    waiting = [asyncio.ensure_future(grammars.get(regex(each))) for each in "aab"]
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="Too many"):
        await grammars.get(regex("c"))
    gate.open.set()
    first, same, _ = await asyncio.gather(*waiting)
    assert first is same
    assert await grammars.get(regex("c"))
    grammars.close()


async def test_what_took_too_long_is_tried_again(monkeypatch):
    def vet(*args):
        raise TookTooLong

    with monkeypatch.context() as patched:
        patched.setattr(Vetter, "vet", vet)
        grammars = Grammars(StructuredConfig(), ByteTokenizer())
        with pytest.raises(ApiError, match="takes longer than the 5 s"):
            await grammars.get(regex("a"))
    assert await grammars.get(regex("a"))
    grammars.close()


async def test_a_process_that_does_not_start_is_no_fault_of_the_client(monkeypatch, caplog):
    monkeypatch.setattr(vetter, "MODULE", "app.nowhere")
    grammars = Grammars(StructuredConfig(), ByteTokenizer())
    with pytest.raises(ApiError) as caught:
        await grammars.get(regex("a"))
    assert (caught.value.status, caught.value.code) == (501, "structured_outputs_unavailable")
    assert "ended with 1" in caplog.text
    grammars.close()


async def test_without_the_library_the_log_and_the_client_are_told(monkeypatch, caplog):
    monkeypatch.setattr("app.structured.grammars.find_spec", lambda name: None)
    grammars = Grammars(StructuredConfig(), ByteTokenizer())
    assert "llguidance is not installed" in caplog.text
    with pytest.raises(ApiError, match="no structured outputs") as caught:
        await grammars.get(regex("a"))
    assert (caught.value.status, caught.value.param) == (501, "p")
    assert caught.value.headers["x-should-retry"] == "false"
    grammars.close()


async def test_a_text_that_is_too_long_is_refused_before_any_work():
    grammars = Grammars(StructuredConfig(max_bytes=8), ByteTokenizer())
    for text in ("aaaaaaaaa", "äöüäö"):
        with pytest.raises(ApiError, match="8 bytes"):
            await grammars.get(regex(text))
    assert not grammars._known
    grammars.close()


@pytest.mark.parametrize(
    ("schema", "fine"),
    [
        ('{"multipleOf": 0.01}', True),
        ('{"multipleOf": 1e-7}', True),
        ('{"multipleOf": 10000}', True),
        ('{"multipleOf": 10001}', False),
        ('{"multipleOf": 1e300}', False),
        ('{"allOf": [{"multipleOf": 97}, {"multipleOf": 89}, {"multipleOf": 83}]}', False),
        ('{"multipleOf": -1, "x": {"multipleOf": true}, "y": {"multipleOf": "a"}}', True),
        ('{"properties": {"x":' * 40 + "{}" + "}}" * 40, True),
        ('{"properties": {"x":' * 50 + "{}" + "}}" * 50, False),
        ('{"pattern": "' + "a" * 9000 + '"}', False),
    ],
)
def test_schemas_that_would_take_too_long_are_refused(schema, fine):
    if fine:
        check_schema(schema)
    else:
        with pytest.raises(Unfit):
            check_schema(schema)


PATTERNS = [f"(x|y)*x(x|y){{{size}}}" for size in range(18)]


def nested(patterns):
    schema = {"type": "string"}
    for pattern in patterns:
        schema = {"pattern": pattern, "anyOf": [schema]}
    return schema


MEETINGS = {
    "all of them": lambda patterns: {"allOf": [{"pattern": each} for each in patterns]},
    "within each other": nested,
    "of one property": lambda patterns: {
        "allOf": [{"properties": {"a": {"pattern": each}}} for each in patterns]
    },
    "by references": lambda patterns: {
        "$defs": {str(n): {"pattern": each} for n, each in enumerate(patterns)},
        "allOf": [{"$ref": f"#/$defs/{n}"} for n in range(len(patterns))],
    },
    "by references to properties": lambda patterns: {
        "properties": {str(n): {"pattern": each} for n, each in enumerate(patterns)},
        "additionalProperties": {
            "allOf": [{"$ref": f"#/properties/{n}"} for n in range(len(patterns))]
        },
    },
    "by references to documents": lambda patterns: {
        "properties": {
            str(n): {"$id": f"http://a/{n}", "pattern": each, "items": {"$ref": "#"}}
            for n, each in enumerate(patterns)
        }
    },
}


@pytest.mark.parametrize("meeting", MEETINGS)
def test_many_patterns_for_one_string_are_refused(meeting):
    made = MEETINGS[meeting]
    check_schema(json.dumps(made(PATTERNS[:8])))
    check_schema(json.dumps(made(PATTERNS[:1] * 18)))
    with pytest.raises(Unfit, match="more than 8 patterns"):
        check_schema(json.dumps(made(PATTERNS[:9])))


def test_many_patterns_for_many_strings_are_fine():
    properties = {str(n): {"pattern": each} for n, each in enumerate(PATTERNS)}
    anyone = [{"required": ["1"]}, {"required": ["2"]}, {"$ref": "#/$defs/a"}, {"$ref": "#"}]
    definitions = {"a": {"properties": {"1": {"minLength": 3}}}}
    check_schema(json.dumps({"properties": properties, "anyOf": anyone, "$defs": definitions}))


def test_many_intersections_are_refused():
    check_grammar("start: A\nA: " + " & ".join(f"/{each}/" for each in PATTERNS[:8]))
    check_grammar("start: A\nA: " + " | ".join(r'"\"&" | /&\/&/' for _ in PATTERNS))
    for mark in ("", ' // "', " // /"):
        lines = f"{mark}\n  & ".join(f"/{each}/" for each in PATTERNS[:9])
        with pytest.raises(Unfit, match="intersections"):
            check_grammar("start: A\nA: " + lines)


async def test_choices_may_be_many_and_alike(grammars):
    choices = ["a" * size for size in range(1, 301)]
    grammar, matcher = await start(grammars, choice_source(choices, "p"))
    for size in range(300):
        assert allowed(grammar, matcher) == {ord("a")} | ({EOS} if size else set())
        matcher.accept(ord("a"))
    assert matcher.over
    assert not matcher.fault


CHAINS = {
    "references": lambda n: {"$ref": f"#/$defs/{n}"},
    "objects": lambda n: {"properties": {"x": {"$ref": f"#/$defs/{n}"}}, "required": ["x"]},
    "intersections": lambda n: {"allOf": [{"$ref": f"#/$defs/{n}"}], "minLength": 1},
    "arrays": lambda n: {"items": {"$ref": f"#/$defs/{n}"}, "minItems": 1},
}


@pytest.mark.parametrize("chain", CHAINS)
async def test_long_chains_of_references_do_not_end_the_process(chain):
    link = CHAINS[chain]
    grammars = Grammars(StructuredConfig(timeout_s=60.0, max_bytes=2**17), ByteTokenizer())
    definitions = {str(n): link(n + 1) for n in range(1300)} | {"1300": {"type": "string"}}
    source = json_source({"$defs": definitions, "$ref": "#/$defs/0"}, "p")
    with suppress(ApiError):  # too large is an answer as well
        grammar, matcher = await start(grammars, source)
        assert allowed(grammar, matcher)
    grammars.close()
