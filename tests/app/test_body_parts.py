"""Bodies with very many parts are told without being parsed."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ApiError
from app.schemas.completion import CompletionRequest
from app.schemas.parsing import parse
from app.schemas.parts import MOST_LEVELS, MOST_PARTS, too_many_levels, too_many_parts

JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='"\\{[:]},a ', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet='"\\{[:a', max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def parts(document: object) -> int:
    """Objects, lists and keys of a document."""
    if isinstance(document, dict):
        return 1 + len(document) + sum(map(parts, document.values()))
    return 1 + sum(map(parts, document)) if isinstance(document, list) else 0


@given(JSON, st.sampled_from([None, 2]))
def test_parts_are_counted_as_they_are_whatever_stands_in_strings(document, indent) -> None:
    body = json.dumps(document, indent=indent).encode()
    count = parts(document)
    assert not too_many_parts(body, most=count)
    assert count == 0 or too_many_parts(body, most=count - 1)


@given(st.binary(max_size=50) | st.text(alphabet='"\\{[:', max_size=50).map(str.encode))
def test_what_is_no_json_has_some_count_or_other(body) -> None:
    assert not too_many_parts(body, most=len(body))


def test_a_string_that_never_ends_is_read_once() -> None:
    """Time that grows with the square would be minutes here."""
    assert not too_many_parts(b'{"a":"' + b'\\":' * 1_000_000)
    assert not too_many_parts(b'{"a":' + b'"\\' * 1_000_000 + b"[" * 100)


@pytest.mark.parametrize("part", ["[]", "[1]", '{"a":1}', "{}"])
def test_a_body_of_too_many_is_refused_and_never_parsed(part: str, monkeypatch) -> None:
    monkeypatch.setattr(orjson, "loads", None)
    body = f'{{"prompt":"x","metadata":[{",".join([part] * MOST_PARTS)}]}}'
    with pytest.raises(ApiError) as caught:
        parse(CompletionRequest, body.encode(), strict_fields=False)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    assert str(MOST_PARTS) in caught.value.message


@pytest.mark.parametrize("text", ["[" * MOST_PARTS, '{"a": [' * MOST_PARTS])
def test_signs_in_a_text_are_text(text: str) -> None:
    body = json.dumps({"prompt": text}).encode()
    assert parse(CompletionRequest, body, strict_fields=False).prompt == [text]


def test_of_many_wrong_biases_one_is_named() -> None:
    body = json.dumps({"prompt": "x", "logit_bias": {str(k): "y" for k in range(20_000)}})
    with pytest.raises(ApiError) as caught:
        parse(CompletionRequest, body.encode(), strict_fields=False)
    assert caught.value.param == "logit_bias.0"
    assert "; " not in caught.value.message


def levels(document: object) -> int:
    """Objects and lists that are around the innermost value."""
    if isinstance(document, dict):
        return 1 + max(map(levels, document.values()), default=0)
    return 1 + max(map(levels, document), default=0) if isinstance(document, list) else 0


@given(JSON)
def test_levels_are_counted_as_they_are(document) -> None:
    count = levels(document)
    assert not too_many_levels(document, most=count)
    assert count == 0 or too_many_levels(document, most=count - 1)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_body_of_too_many_levels_is_refused(opening: str, closing: str) -> None:
    body = f'{{"prompt":"x","metadata":{opening * MOST_LEVELS}1{closing * MOST_LEVELS}}}'
    with pytest.raises(ApiError) as caught:
        parse(CompletionRequest, body.encode(), strict_fields=False)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    assert str(MOST_LEVELS) in caught.value.message
