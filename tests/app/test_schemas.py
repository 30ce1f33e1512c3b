"""Request bodies: what is accepted, and which field an error names."""

import json

import pytest

from app.errors import ApiError
from app.schemas.chat import ChatRequest
from app.schemas.completion import CompletionRequest
from app.schemas.parsing import IGNORED, parse
from app.schemas.tokens import TokenizeRequest

USER = [{"role": "user", "content": "hi"}]


def chat(strict: bool = False, **fields) -> ChatRequest:
    body = json.dumps({"messages": USER, **fields}).encode()
    return parse(ChatRequest, body, strict_fields=strict)


def completion(**fields) -> CompletionRequest:
    body = json.dumps({"prompt": "hi", **fields}).encode()
    return parse(CompletionRequest, body, strict_fields=False)


def turn(**message):
    return {"messages": [{"role": "user", "content": "hi"}, message]}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": 5}, "model", "invalid_type"),
        ({"max_tokens": "5"}, "max_tokens", "invalid_type"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"min_tokens": -1}, "min_tokens", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"stream": False, "stream_options": {}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": True}, "stream_options", "invalid_type"),
        ({"temperature": "0.5"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 1.1}, "top_p", "invalid_value"),
        ({"top_p": -0.1}, "top_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"min_p": 1.5}, "min_p", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"seed": -(2**63) - 1}, "seed", "invalid_type"),
        ({"seed": 1.5}, "seed", "invalid_type"),
        ({"seed": "7"}, "seed", "invalid_type"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a", ""]}, "stop", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_value"),
        ({"stop": ["a", 1]}, "stop.1", "invalid_type"),
        ({"stop_token_ids": [1, -1]}, "stop_token_ids.1", "invalid_value"),
        ({"logit_bias": {"-1": 5}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"abc": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"10": 1000}}, "logit_bias.10", "invalid_value"),
        ({"logit_bias": {"10": None}}, "logit_bias.10", "invalid_type"),
        ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": "2"}, "n", "invalid_type"),
        ({"n": 129}, "n", "invalid_value"),
        ({"n": 100_000}, "n", "invalid_value"),
        ({"presence_penalty": -2.1}, "presence_penalty", "invalid_value"),
        ({"frequency_penalty": 2.1}, "frequency_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"logprobs": 1}, "logprobs", "invalid_type"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "invalid_value"),
        ({"tool_choice": "always"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice", "unsupported_value"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "missing_required_parameter"),
        ({"response_format": {"type": "xml"}}, "response_format", "unsupported_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
        ({"response_format": "text"}, "response_format", "invalid_value"),
        (
            {"structured_outputs": {"structural_tag": "a"}},
            "structured_outputs",
            "unsupported_value",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"guided_json": []}, "guided_json", "invalid_value"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "invalid_value"),
        ({"bad_words": [""]}, "bad_words.0", "invalid_value"),
        ({"bad_words": "x"}, "bad_words", "invalid_type"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids.0", "invalid_value"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output", "invalid_type"),
        ({"return_token_ids": "yes"}, "return_token_ids", "invalid_type"),
        ({"tools": {}}, "tools", "invalid_type"),
        ({"user": 5}, "user", "invalid_type"),
        ({"metadata": "x"}, "metadata", "invalid_type"),
        ({"request_id": "a b"}, "request_id", "invalid_value"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "invalid_type"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "invalid_type"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": ["hi"]}, "messages.0", "invalid_type"),
        (turn(content="x"), "messages.1.role", "missing_required_parameter"),
        (turn(role="narrator", content="x"), "messages.1.role", "invalid_value"),
        (turn(role="user"), "messages.1.content", "invalid_value"),
        (turn(role="user", content=None), "messages.1.content", "invalid_value"),
        (turn(role="user", content=5), "messages.1.content", "invalid_value"),
        (turn(role="assistant", content=None), "messages.1.content", "invalid_value"),
        (turn(role="user", content=[5]), "messages.1.content", "invalid_value"),
        (turn(role="user", content=[{"type": "text"}]), "messages.1.content", "invalid_value"),
        (
            turn(role="user", content=[{"type": "image_url", "image_url": {}}]),
            "messages.1.content",
            "unsupported_value",
        ),
    ],
)
def test_a_bad_chat_field_is_a_400_that_names_it(fields, param, code):
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": None}, "prompt", "invalid_value"),
        ({"prompt": 5}, "prompt", "invalid_value"),
        ({"prompt": [1.5]}, "prompt", "invalid_value"),
        ({"prompt": [True]}, "prompt", "invalid_value"),
        ({"prompt": ["a", 1]}, "prompt", "invalid_value"),
        ({"prompt": [1, "a"]}, "prompt", "invalid_value"),
        ({"prompt": [[1], [1.5]]}, "prompt", "invalid_value"),
        ({"prompt": [["a"]]}, "prompt", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"best_of": 0}, "best_of", "invalid_value"),
        ({"best_of": 129}, "best_of", "invalid_value"),
        ({"use_beam_search": 1}, "use_beam_search", "invalid_type"),
        ({"length_penalty": 10.5}, "length_penalty", "invalid_value"),
        ({"length_penalty": "1"}, "length_penalty", "invalid_type"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"add_special_tokens": "no"}, "add_special_tokens", "invalid_type"),
        ({"suffix": "x"}, "suffix", "unsupported_value"),
    ],
)
def test_a_bad_completion_field_is_a_400_that_names_it(fields, param, code):
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"messages":',
        b"[]",
        b'"x"',
        b'{"a":1,}',
        b'{"temperature":NaN}',
        b'{"temperature":Infinity}',
        b'{"temperature":1e999}',
        '{"a":1}'.encode("utf-16"),
        b'{"a":"\xff"}',
        b'{"messages":[{"role":"user","content":"\\ud83d"}]}',
        b'{"stop":"\\ud83d","messages":[]}',
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
)
def test_what_is_not_a_json_object_is_a_400(body):
    with pytest.raises(ApiError) as caught:
        parse(ChatRequest, body, strict_fields=False)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_null_is_legal_for_every_optional_field():
    required = {"messages"}
    nulls = dict.fromkeys(ChatRequest.model_fields.keys() - required)
    assert chat(**nulls) == chat(**{**nulls, "seed": None})
    nulls = dict.fromkeys(CompletionRequest.model_fields.keys() - {"prompt"})
    assert completion(**nulls).prompt == ["hi"]


def test_defaults_spelled_out_are_accepted():
    request = chat(
        n=1, presence_penalty=0, frequency_penalty=0.0, repetition_penalty=1.0, tool_choice="auto",
        response_format={"type": "text"}, stop=[], top_k=-1, user="u",
        tools=[{"type": "function", "function": {"name": "f"}}],
    )  # fmt: skip
    assert request.stop == []
    assert completion(best_of=1, echo=False, suffix="").alternatives is None


def test_unknown_fields_are_ignored_unless_they_are_checked():
    assert chat(temprature=1).temperature is None
    with pytest.raises(ApiError) as caught:
        chat(strict=True, temprature=1)
    assert (caught.value.param, caught.value.code) == ("temprature", "unknown_parameter")
    ignored = dict.fromkeys(IGNORED, "x")
    assert chat(strict=True, **ignored).messages[0].content == "hi"


def test_the_newer_name_of_the_token_limit_wins():
    assert chat(max_tokens=5, max_completion_tokens=7).token_limit == 7
    assert chat(max_tokens=5).token_limit == 5
    assert chat().token_limit is None


def test_text_parts_are_joined_by_a_line_break():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(messages=[{"role": "user", "content": parts}])
    assert request.messages[0].content == "a\nb"


def test_templates_see_system_for_developer_and_text_for_tool_calls_without_any():
    request = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "assistant", "tool_calls": [{"id": "1"}]},
        ]
    )
    assert [message.for_template() for message in request.messages] == [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", ""], ["a", ""]),
        ([1, 2], [[1, 2]]),
        ([[1, 2]], [[1, 2]]),
        ([[1], "a"], [[1], "a"]),
        ([], [[]]),
        ([[]], [[]]),
    ],
)
def test_prompts_come_alone_or_in_a_list(prompt, expected):
    assert completion(prompt=prompt).prompt == expected


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_alternatives_of_chat_logprobs(fields, alternatives):
    assert chat(**fields).alternatives == alternatives


def test_tokenize_takes_one_of_prompt_and_messages():
    body = json.dumps({"prompt": "a", "messages": USER}).encode()
    with pytest.raises(ApiError) as caught:
        parse(TokenizeRequest, body, strict_fields=False)
    assert caught.value.param == "messages"
