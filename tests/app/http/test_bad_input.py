"""Whatever a client gets wrong is a 4xx in OpenAI's shape, before anything is queued."""

import asyncio
import json

import pytest
import pytest_asyncio
from support.serving import CHAT, COMPLETIONS, HELLO, chunks, serving

LENGTH = 64


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house():
    """One house for all of them: it has to survive every request of this file."""
    async with serving(
        script=lambda row: 65,
        model_len=LENGTH,
        max_body_bytes=200_000,
        limits={"max_stop_strings": 4, "max_stop_chars": 20, "max_logit_bias": 10},
    ) as house:
        yield house


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def alive(house):
    yield
    await house.probe()
    await house.idle()


def error_of(reply, status=400):
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert list(reply.json()) == ["error"]
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert isinstance(error["message"], str)
    assert isinstance(error["code"], str)
    return error


async def completion(house, **fields):
    return await house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2, **fields})


# -------------------------------------------------------------------- context length


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "generated"),
    [
        (LENGTH - 2, None, 2),
        (LENGTH - 2, 1, 1),
        (LENGTH - 2, 2, 2),
        (LENGTH - 1, None, 1),
        (LENGTH - 1, 1, 1),
    ],
)
async def test_a_prompt_that_leaves_room_is_served_up_to_the_context(
    house, prompt, max_tokens, generated
):
    reply = await completion(house, prompt=[7] * prompt, max_tokens=max_tokens)
    assert reply.status_code == 200
    assert reply.json()["usage"]["completion_tokens"] == generated
    assert reply.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "max_tokens"),
    [(LENGTH - 2, 10), (LENGTH - 1, 2), (LENGTH, None), (LENGTH, 1), (LENGTH + 1, 10)],
)
async def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(house, prompt, max_tokens):
    error = error_of(await completion(house, prompt=[7] * prompt, max_tokens=max_tokens))
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "prompt"
    assert error["message"].startswith(f"This model's maximum context length is {LENGTH} tokens.")
    assert str(prompt) in error["message"]
    assert "-" not in error["message"]


async def test_a_chat_fills_the_context_and_no_more(house):
    whole = (await house.post(CHAT, {"messages": HELLO})).json()
    assert whole["usage"]["total_tokens"] == LENGTH
    long = [{"role": "user", "content": "x" * LENGTH}]
    for fields in ({"messages": long}, {"messages": HELLO, "max_completion_tokens": LENGTH}):
        error = error_of(await house.post(CHAT, fields))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


async def test_the_advertised_length_is_the_enforced_one(house):
    card = (await house.client.get("/v1/models")).json()["data"][0]
    assert card["max_model_len"] == LENGTH


async def test_a_hopeless_prompt_is_refused_without_being_tokenised(house, monkeypatch):
    def never(text):
        raise AssertionError("the whole text was tokenised")

    monkeypatch.setattr(house.tokenizer, "encode", never)
    long = "x" * 100_000
    for reply in (
        await completion(house, prompt=long),
        await house.post(CHAT, {"messages": [{"role": "user", "content": long}]}),
    ):
        error = error_of(reply)
        assert error["code"] == "context_length_exceeded"
        assert "at least 100" in error["message"]
    monkeypatch.undo()


async def test_answers_are_cut_to_the_servers_own_limit():
    async with serving(script=lambda row: 65, limits={"max_output_tokens": 3}) as house:
        for body in ({"prompt": "x"}, {"prompt": "x", "max_tokens": 50}):
            usage = (await house.post(COMPLETIONS, body)).json()["usage"]
            assert usage["completion_tokens"] == 3


async def test_a_request_that_the_pool_can_never_hold_is_refused_at_once():
    async with serving(script=lambda row: 65, model_len=512, blocks=12) as house:
        error = error_of(await completion(house, prompt=[7] * 300))
        assert error["code"] == "context_length_exceeded"
        await house.probe()


# -------------------------------------------------------------------- prompts


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["", "hi"], None])
async def test_an_empty_prompt_is_refused(house, prompt):
    assert error_of(await completion(house, prompt=prompt))["param"] == "prompt"


async def test_an_absent_prompt_is_refused(house):
    error = error_of(await house.post(COMPLETIONS, {"max_tokens": 1}))
    assert (error["param"], error["code"]) == ("prompt", "missing_required_parameter")


async def test_an_empty_message_is_a_sane_request(house):
    reply = await house.post(CHAT, {"messages": [{"role": "user", "content": ""}]})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [258]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"),
        ({"logit_bias": {"258": 5}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 5}}, "logit_bias"),
        ({"stop_token_ids": [258]}, "stop_token_ids"),
        ({"stop_token_ids": [2**40]}, "stop_token_ids"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": "a" * 21}, "stop"),
        ({"stop": ["a"] * 20_000}, "stop"),
        ({"logit_bias": {str(token): 1 for token in range(11)}}, "logit_bias"),
        ({"n": 100_000}, "n"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_is_out_of_range_is_refused_and_a_neighbour_does_not_notice(
    house, fields, param
):
    body = {"prompt": "x", "max_tokens": 40, "stream": True}
    neighbour = asyncio.ensure_future(house.post(COMPLETIONS, body))
    assert error_of(await completion(house, **fields))["param"] == param
    got = chunks((await neighbour).content)
    assert "".join(chunk["choices"][0]["text"] for chunk in got) == "A" * 40


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "top_p": 0.1, "seed": 5},
        {"temperature": 1e-6},
        {"temperature": 2},
        {"top_p": 0},
        {"top_p": 1e-9},
        {"top_k": 10**9},
        {"top_k": -1},
        {"min_p": 1},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"logit_bias": {"257": -100, "0": 100}},
        {"stop": ["a", "b", "c", "d"]},
        {"stop": []},
        {"min_tokens": 2},
    ],
)
async def test_the_edges_of_the_ranges_are_legal(house, fields):
    assert (await completion(house, **fields)).status_code == 200


async def test_a_chat_needs_a_template_and_completions_do_not():
    async with serving(script=lambda row: 65, template=None) as house:
        assert error_of(await house.post(CHAT, {"messages": HELLO}))["param"] == "messages"
        await house.probe()


async def test_text_parts_make_the_same_prompt_as_their_lines(house):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    counts = [
        (await house.post("/tokenize", {"messages": [{"role": "user", "content": content}]})).json()
        for content in (parts, "a\nb")
    ]
    assert counts[0] == counts[1]


async def test_control_tokens_in_a_message_stay_text(house):
    body = {"messages": [{"role": "user", "content": "<|im_end|>"}]}
    tokens = (await house.post("/tokenize", body)).json()["tokens"]
    assert tokens.count(257) == 1
    assert bytes(token for token in tokens if token < 256).count(b"<|im_end|>") == 1


# -------------------------------------------------------------------- bodies, types, routes


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":',
        b"",
        b"[]",
        b'"x"',
        b'{"a":1,}',
        b'{"temperature":NaN}',
        "{}".encode("utf-16"),
        b'{"model":"\xff"}',
        b'{"model":"\\ud83d"}',
        b"[" * 100_000,
    ],
)
async def test_what_is_not_json_is_refused(house, path, body):
    assert error_of(await house.post(path, body))["code"] == "invalid_json"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "", None])
async def test_json_by_another_content_type(house, kind):
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    headers = {} if kind is None else {"content-type": kind}
    assert (await house.client.post(COMPLETIONS, content=body, headers=headers)).status_code == 200


async def test_curls_default_content_type_is_read_as_json(house):
    form = {"content-type": "application/x-www-form-urlencoded"}
    reply = await house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1}, headers=form)
    assert reply.status_code == 200
    error = error_of(await house.post(COMPLETIONS, b"prompt=hi&max_tokens=3", headers=form))
    assert error["code"] == "invalid_json"
    assert "content-type: application/json" in error["message"]


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "", "//"])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", None])
async def test_a_page_of_another_origin_cannot_post_unasked(house, origin, kind):
    headers = {"origin": origin} | ({"content-type": kind} if kind else {})
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    reply = await house.client.post(COMPLETIONS, content=body, headers=headers)
    error = error_of(reply, 415)
    assert error["code"] == "unsupported_media_type"
    assert "content-type: application/json" in error["message"]


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "application/json"])
async def test_a_page_of_this_server_can_post(house, kind):
    headers = {"origin": house.url, "content-type": kind}
    reply = await house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1}, headers=headers)
    assert reply.status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/xml"])
async def test_other_content_types_are_415(house, kind):
    reply = await house.post(COMPLETIONS, {"prompt": "x"}, headers={"content-type": kind})
    assert error_of(reply, 415)["code"] == "unsupported_media_type"


async def test_a_body_that_announces_too_much_is_413(house):
    reply = await house.post(COMPLETIONS, b"x" * 200_001)
    assert error_of(reply, 413)["code"] == "request_too_large"


async def test_a_body_that_only_turns_out_too_large_is_413_before_it_is_all_read(house):
    sent = 0

    async def endless():
        nonlocal sent
        while sent < 1 << 26:
            sent += 1 << 16
            yield b"x" * (1 << 16)

    reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        b"content-type: application/json\r\n\r\n"
    )
    answer = asyncio.ensure_future(reader.readline())
    async for piece in endless():
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
        if answer.done():
            break
    assert b" 413 " in await answer
    assert sent < 1 << 26
    writer.close()


async def test_unknown_models_are_404(house):
    for path, body in (
        (CHAT, {"messages": HELLO}),
        (COMPLETIONS, {"prompt": "x"}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        error = error_of(await house.post(path, {"model": "nope", **body}), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error_of(await house.client.get("/v1/models/some/nope"), 404)["param"] == "model"


async def test_no_model_is_the_served_one(house):
    for model in (None, "bytes"):
        assert (await completion(house, model=model)).json()["model"] == "bytes"


@pytest.mark.parametrize("path", ["/nope", "/v1", "/v1/embeddings", "/v1/chat/completions/"])
async def test_unknown_paths_are_404(house, path):
    assert error_of(await house.client.get(path), 404)["code"] == "not_found"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", CHAT),
        ("/v1/v1/chat/completions", CHAT),
        ("/v1/chat/completions/", CHAT),
        ("/v1/completion", COMPLETIONS),
        ("/healthz", "/health"),
        ("/v1/embeddings", None),
    ],
)
async def test_a_path_that_is_nearly_right_is_told_the_right_one(house, path, meant):
    message = error_of(await house.client.post(path), 404)["message"]
    assert message.endswith(f"Did you mean {meant}?" if meant else "Not Found.")


async def test_other_methods_are_405_and_say_which_is_right(house):
    reply = await house.client.get(CHAT)
    assert error_of(reply, 405)["code"] == "method_not_allowed"
    assert reply.headers["allow"] == "POST"
    assert error_of(await house.client.post("/health"), 405)


async def test_several_wrong_fields_are_told_at_once(house):
    error = error_of(await completion(house, temperature=9, top_p="x", seed=1.5))
    assert error["param"] == "temperature"
    assert error["message"].count("; ") == 2
    for field in ("temperature: ", "top_p: ", "seed: "):
        assert field in error["message"]


async def test_a_body_that_is_all_wrong_gets_a_short_answer(house):
    messages = [{"role": "user"}] * 5000
    message = error_of(await house.post(CHAT, {"messages": messages, "top_k": "x"}))["message"]
    assert len(message) < 1000


async def test_a_chat_without_messages_is_told_so_in_plain_words(house):
    error = error_of(await house.post(CHAT, {"messages": []}))
    assert error["message"] == "messages: must not be empty."


async def test_strict_fields_refuse_what_nobody_reads():
    async with serving(script=lambda row: 65, strict_fields=True) as house:
        error = error_of(await completion(house, temprature=1))
        assert (error["code"], error["param"]) == ("unknown_parameter", "temprature")
        assert (await completion(house, user="u")).status_code == 200
