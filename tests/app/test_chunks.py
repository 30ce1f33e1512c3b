"""Stream frames, byte for byte."""

import json

import pytest

from app.chunks import (
    CHAT_STYLE,
    COMPLETION_STYLE,
    DONE,
    Chunks,
    Identity,
    Usage,
    completion_body,
    error_event,
)

IDENTITY = Identity("chatcmpl-1", 1_700_000_000, 'a "model"')
USAGE = Usage(prompt=3, completion=2, cached=1)


def data(frame: bytes) -> dict:
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2
    assert b"\r" not in frame
    return json.loads(frame[6:])


@pytest.fixture
def chat() -> Chunks:
    return Chunks(CHAT_STYLE, IDENTITY, usage=False)


def test_a_chat_chunk_is_exactly_this(chat):
    frame = chat.frame(0, "Hel", finish_reason=None)
    assert frame == (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,'
        b'"model":"a \\"model\\"","system_fingerprint":null,"choices":[{"index":0,'
        b'"delta":{"role":"assistant","content":"Hel"},"logprobs":null,"finish_reason":null}]}'
        b"\n\n"
    )


def test_the_role_comes_once_for_each_sequence(chat):
    roles = [
        data(chat.frame(index, "x"))["choices"][0]["delta"].get("role") for index in (0, 1, 0, 1)
    ]
    assert roles == ["assistant", "assistant", None, None]


@pytest.mark.parametrize(
    "text", ["", 'quote " and \\', "line\nbreak\r\n", "\u2028\u0000\u007f", "🦙 日本", "</script>"]
)
def test_any_text_survives_inside_one_data_line(chat, text):
    assert data(chat.frame(0, text))["choices"][0]["delta"]["content"] == text


def test_the_last_chunk_says_why_it_is_the_last(chat):
    choice = data(chat.frame(0, "x", finish_reason="stop", stop_reason="END"))["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")
    assert choice["delta"]["content"] == "x"


def test_a_completion_chunk_has_text_and_no_role():
    frame = Chunks(COMPLETION_STYLE, IDENTITY, usage=False).frame(0, "x", logprobs={"tokens": []})
    chunk = data(frame)
    assert chunk["object"] == "text_completion"
    assert chunk["choices"] == [
        {"index": 0, "text": "x", "logprobs": {"tokens": []}, "finish_reason": None}
    ]


def test_usage_is_null_until_its_own_chunk_with_no_choices():
    chunks = Chunks(CHAT_STYLE, IDENTITY, usage=True)
    assert data(chunks.frame(0, "x"))["usage"] is None
    last = data(chunks.usage(USAGE))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_usage_is_not_mentioned_unless_asked_for(chat):
    assert "usage" not in data(chat.frame(0, "x"))


@pytest.mark.parametrize(
    ("style", "choice"), [(CHAT_STYLE, {"delta": {}}), (COMPLETION_STYLE, {"text": ""})]
)
def test_a_silent_chunk_adds_nothing(style, choice):
    chunks = Chunks(style, IDENTITY, usage=False)
    expected = {"index": 0, **choice, "logprobs": None, "finish_reason": None}
    assert data(chunks.silence())["choices"] == [expected]
    first = data(chunks.frame(0, "x"))["choices"][0]
    assert first.get("delta", {"role": "assistant"})["role"] == "assistant"


def test_an_error_is_an_event_of_its_own_kind():
    assert error_event(b'{"error":{}}') == b'event: error\ndata: {"error":{}}\n\n'
    assert DONE == b"data: [DONE]\n\n"


def test_a_whole_body_has_the_fields_that_clients_read():
    body = json.loads(completion_body("chat.completion", IDENTITY, [{"index": 0}], USAGE))
    assert body["choices"] == [{"index": 0}]
    assert body["usage"]["total_tokens"] == 5
    assert body["system_fingerprint"] is None
    assert body.keys() == {
        "id", "object", "created", "model", "choices", "usage", "system_fingerprint"
    }  # fmt: skip
