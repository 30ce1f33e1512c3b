"""What clients get wrong: messages that no template takes, bodies, types, routes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import pytest_asyncio
from support.answers import asking
from support.serving import CHAT, COMPLETIONS, HELLO, House, serving

from app.text.template import ChatTemplate

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def alive(house):
    """The house answers after each of them."""
    yield
    await house.probe()


def error_of(reply, status: int = 400, param: str | None = None) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert list(reply.json()) == ["error"]
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    if param is not None:
        assert error["param"] == param
    return error


# ── B49 ───────────────────────────────────────────────────────────────────────────────────────

TOOL_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def talk(*messages: Any) -> dict[str, Any]:
    return {"messages": [*HELLO, *messages], "max_tokens": 2}


async def rendered(house: House, *messages: Any) -> str:
    """The prompt that these messages behind a first one become; a chat of them is answered."""
    body = talk(*messages)
    told = (await house.post("/tokenize", body)).json()
    reply = await house.post(CHAT, body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["prompt_tokens"] == told["count"]
    return (await house.post("/detokenize", {"tokens": told["tokens"]})).json()["prompt"]


async def test_b49_no_content_beside_tool_calls_is_an_empty_text(house) -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": "42"}
    prompts = [
        await rendered(house, {"role": "assistant", "tool_calls": [TOOL_CALL], **content}, result)
        for content in ({"content": None}, {"content": ""}, {"content": []}, {})
    ]
    assert len(set(prompts)) == 1
    assert "None" not in prompts[0]
    assert "<tool_response>\n42\n</tool_response>" in prompts[0]


async def test_b49_text_parts_are_their_text_joined_by_line_breaks(house) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("user", "system", "assistant", "tool", "developer"):
        made = await rendered(house, {"role": role, "content": parts})
        assert made == await rendered(house, {"role": role, "content": "a\nb"})
        assert "a\nb" in made


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": None}, "content"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": {"type": "text", "text": "a"}}, "content"),
        ({"role": "user", "content": ["a"]}, "content"),
        ({"role": "user", "content": [None]}, "content"),
        ({"role": "user", "content": [{"type": "text"}]}, "content"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "content"),
        ({"role": "user", "content": [{"type": ["text"], "text": "a"}]}, "content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "content",
        ),
        ({"role": "assistant", "content": None}, "content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content"),
        ({"role": "user", "content": None, "tool_calls": [TOOL_CALL]}, "content"),
        ({"role": "narrator", "content": "a"}, "role"),
        ({"role": ["user"], "content": "a"}, "role"),
        ({"role": None, "content": "a"}, "role"),
        ({"content": "a"}, "role"),
        ("a", None),
        (None, None),
    ],
    ids=str,
)
async def test_b49_a_message_that_is_none_is_refused_by_its_place(house, message, field) -> None:
    param = "messages.1" + (f".{field}" if field else "")
    for path in (CHAT, "/tokenize"):
        error = error_of(await house.post(path, talk(message)), param=param)
        assert param in error["message"]


async def test_b49_what_the_template_refuses_is_a_400_in_its_words() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('no system turns here') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    async with serving(template=ChatTemplate(source)) as house:
        assert "Hello" in await rendered(house)
        for path in (CHAT, "/tokenize"):
            reply = await house.post(path, talk({"role": "system", "content": "x"}))
            assert "no system turns here" in error_of(reply, param="messages")["message"]
        await house.probe()


@pytest.mark.parametrize(
    "source", ["{{ messages[7].content }}", "{{ messages + 1 }}", "{{ 1 / 0 }}", "{{ nobody() }}"]
)
async def test_b49_a_template_that_breaks_is_a_400_too(source) -> None:
    async with serving(template=ChatTemplate(source)) as house:
        error_of(await house.post(CHAT, talk()), param="messages")
        await house.probe()


async def test_b49_without_a_template_completions_still_work() -> None:
    async with serving(template=None) as house:
        assert "template" in error_of(await house.post(CHAT, talk()), param="messages")["message"]
        await house.probe()


# ── B51 ───────────────────────────────────────────────────────────────────────────────────────

POSTS = pytest.mark.parametrize(
    "path", [CHAT, COMPLETIONS, "/v1/responses", "/tokenize", "/detokenize"]
)


@POSTS
async def test_b51_what_is_no_json_object_is_refused(house, path) -> None:
    for body in (
        b'{"model":',
        b"",
        b" ",
        b"[]",
        b'"x"',
        b"5",
        b"null",
        b'{"a":1,}',
        b"{'a':1}",
        b'{"a":1}{"a":1}',
        b'{"temperature":NaN}',
        '{"prompt":"x"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"prompt":"x"',
        b'{"prompt":"\xff"}',
        b'{"prompt":"\x00"}',
        b'{"prompt":"\\ud83d","messages":[{"role":"user","content":"\\ud83d"}]}',
        b'{"stop":"\\ud83d","prompt":"x"}',
        b'{"\\udc00":1}',
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    ):
        assert error_of(await house.post(path, body))["code"] == "invalid_json"


async def test_b51_a_lone_surrogate_comes_through_no_other_door(house) -> None:
    """As bytes that only look like UTF-8 (CESU-8), and beside its other half, which is text."""
    body = b'{"prompt":"\xed\xa0\xbd\xed\xb8\x80","max_tokens":1}'
    assert error_of(await house.post(COMPLETIONS, body))["code"] == "invalid_json"
    reply = await house.post(COMPLETIONS, b'{"prompt":"\\ud83d\\ude00","max_tokens":1}')
    assert reply.status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 5),
        ("model", ["bytes"]),
        ("max_tokens", "5"),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", [5]),
        ("stream", "yes"),
        ("stream", 1),
        ("user", 5),
        ("logit_bias", [1]),
        ("stop", {"a": 1}),
        ("stream_options", True),
    ],
)
async def test_b51_a_field_of_another_type_is_refused_by_name(house, path, field, value) -> None:
    body = asking(path, **{"stream": field == "stream_options", field: value})
    error_of(await house.post(path, body), param=field)


async def test_b51_messages_and_prompts_of_another_type_are_refused(house) -> None:
    for bad in ("hi", 5, {"role": "user", "content": "x"}, None, True):
        error_of(await house.post(CHAT, asking(CHAT, messages=bad)), param="messages")
    for bad in (5, {"a": 1}, True, ["a", 5], [["a"]], [[[1]]]):
        error_of(await house.post(COMPLETIONS, asking(COMPLETIONS, prompt=bad)), param="prompt")


@POSTS
async def test_b51_an_unknown_model_is_404_and_none_is_the_one_that_is_served(house, path) -> None:
    body = {
        CHAT: {"messages": HELLO, "max_tokens": 1},
        COMPLETIONS: {"prompt": "x", "max_tokens": 1},
        "/v1/responses": {"input": "x", "max_output_tokens": 1},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
    }[path]
    for name in ("nope", "", "BYTES", "x" * 100_000, "é\n"):
        error = error_of(await house.post(path, {**body, "model": name}), 404, "model")
        assert error["code"] == "model_not_found"
        assert len(error["message"]) < 1000
    for present in ({}, {"model": None}, {"model": "bytes"}):
        assert (await house.post(path, {**body, **present})).status_code == 200


async def test_b51_an_unknown_field_is_ignored_unless_fields_are_checked(house) -> None:
    body = asking(COMPLETIONS, max_tokens=1, temprature=0.5)
    assert (await house.post(COMPLETIONS, body)).status_code == 200
    async with serving(strict_fields=True) as strict:
        error = error_of(await strict.post(COMPLETIONS, body), param="temprature")
        assert error["code"] == "unknown_parameter"


@POSTS
async def test_b51_other_content_types_are_told_which_is_right(house, path) -> None:
    body = json.dumps(asking(CHAT)).encode()
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/xml", "json"):
        reply = await house.post(path, body, headers={"content-type": kind})
        assert error_of(reply, 415)["code"] == "unsupported_media_type"


async def line(house: House, method: str, target: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a request whose target no client library tidies up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
    writer.close()
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in rest)}
    return int(first.split()[1]), headers, body


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", CHAT, 405),
        ("PUT", COMPLETIONS, 405),
        ("DELETE", "/v1/models", 405),
        ("PATCH", "/health", 405),
        ("PROPFIND", "/metrics", 405),
        ("GET", "/nothing", 404),
        ("POST", "/v1/embeddings", 404),
        ("POST", f"{CHAT}/", 404),
        ("POST", f"/{CHAT}", 404),
        ("POST", CHAT.upper(), 404),
        ("POST", "/v1/./completions", 404),
        ("POST", "/v1/x/../completions", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "/page/../config.yaml", 404),
        ("GET", "/\u00e9", 400),
        ("GET", "/%ff%00", 404),
        ("GET", "/" + "x" * 5000, 404),
    ],
)
async def test_b51_other_paths_and_methods_are_told_so_in_json(house, method, target, status):
    code, headers, body = await line(house, method, target)
    assert code == status
    assert headers["content-type"] == "application/json"
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert len(error["message"]) < 400
    if status == 405:
        assert headers["allow"]
