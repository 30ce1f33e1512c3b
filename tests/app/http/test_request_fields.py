"""What the fields of a request do beyond sampling: what is shown, counted and named."""

import asyncio
import threading

import pytest
from support.serving import CHAT, COMPLETIONS, HELLO, MODEL, chunks, saying, serving, until

from app.text.template import ChatTemplate
from app.text.tokenizer import ByteTokenizer
from engine.backends.scripted import by_prompt


@pytest.fixture
async def house():
    async with serving(script=saying("abcdef")) as house:
        yield house
        await house.idle()


def pieces(reply) -> list[str]:
    return [choice["text"] for choice in reply.json()["choices"]]


async def text_of(house, body, stream: bool) -> str:
    reply = await house.post(COMPLETIONS, {**body, "stream": stream})
    assert reply.status_code == 200, reply.text
    if not stream:
        return reply.json()["choices"][0]["text"]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks(reply.content))


# -------------------------------------------------------------------- stops and words


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"stop": ["cd"]}, "ab"),
        ({"stop": ["cd"], "include_stop_str_in_output": True}, "abcd"),
        ({"stop_token_ids": [99]}, "ab"),
        ({"stop_token_ids": [99], "include_stop_str_in_output": True}, "abc"),
        ({"include_stop_str_in_output": True}, "abcdef"),
        (
            {"include_stop_str_in_output": True, "skip_special_tokens": False},
            "abcdef<|im_end|>",
        ),
    ],
)
async def test_the_end_is_shown_only_if_asked_for(house, fields, text, stream):
    assert await text_of(house, {"prompt": "x", "max_tokens": 9, **fields}, stream) == text


async def test_control_tokens_in_the_middle_are_shown_only_if_asked_for():
    async with serving(script=by_prompt({(120,): [97, 256, 98, 257]})) as house:
        body = {"prompt": "x", "max_tokens": 4, "logprobs": 0}
        for special, text, offsets in (
            (True, "ab", [0, 1, 1, 2]),
            (False, "a<|im_start|>b", [0, 1, 13, 14]),
        ):
            reply = await house.post(COMPLETIONS, {**body, "skip_special_tokens": special})
            (choice,) = reply.json()["choices"]
            assert choice["text"] == text
            assert choice["logprobs"]["text_offset"] == offsets


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_token_ids": [258]}, "allowed_token_ids"),
        ({"allowed_token_ids": list(range(5)) * 1000}, "allowed_token_ids"),
        ({"bad_words": ["x"] * 65}, "bad_words"),
        ({"bad_words": ["x" * 1025]}, "bad_words"),
        ({"allowed_token_ids": [97], "bad_words": ["a"]}, "allowed_token_ids"),
        ({"allowed_token_ids": [97, 98], "bad_words": ["aab", "ba"]}, "allowed_token_ids"),
        ({"allowed_token_ids": [257], "min_tokens": 1}, "allowed_token_ids"),
        ({"stop_token_ids": list(range(258)), "min_tokens": 1}, "stop_token_ids"),
    ],
)
async def test_what_cannot_be_kept_or_leaves_no_token_is_refused(house, fields, param):
    reply = await house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2, **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


async def test_words_are_bad_at_the_start_of_a_text_and_behind_a_space(house, submitted):
    body = {"prompt": "x", "bad_words": ["ab", "c"], "allowed_token_ids": [100, 101, 100]}
    await house.post(COMPLETIONS, {**body, "max_tokens": 1})
    (controls,) = (submission.controls for submission in submitted)
    assert controls.bad_words == ((97, 98), (32, 97, 98), (99,), (32, 99))
    assert controls.allowed_ids == {100, 101}


# -------------------------------------------------------------------- several prompts


@pytest.mark.parametrize("prompts", [["a", "bc"], [[97], [98, 99]]])
async def test_each_prompt_has_its_choices_in_order(prompts):
    script = by_prompt({(97,): [*b"one", 257], (98, 99): [*b"other", 257]})
    async with serving(script=script) as house:
        body = {"prompt": prompts, "n": 2, "max_tokens": 9, "temperature": 0}
        reply = (await house.post(COMPLETIONS, body)).json()
        said = [(choice["index"], choice["text"]) for choice in reply["choices"]]
        assert said == [(0, "one"), (1, "one"), (2, "other"), (3, "other")]
        assert reply["usage"]["prompt_tokens"] == 3
        assert reply["usage"]["completion_tokens"] == 2 * (4 + 6)

        streamed = await house.post(
            COMPLETIONS, {**body, "stream": True, "stream_options": {"include_usage": True}}
        )
        *data, usage = chunks(streamed.content)
        texts, ends = [""] * 4, [0] * 4
        for chunk in data:
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["text"]
            ends[choice["index"]] += choice["finish_reason"] is not None
        assert texts == ["one", "one", "other", "other"]
        assert ends == [1] * 4
        assert usage["usage"] == reply["usage"]
        await house.idle()


async def test_stops_end_each_choice_by_itself():
    script = by_prompt({(97,): [*b"one.", 257], (98,): [*b"other.", 257]})
    async with serving(script=script) as house:
        body = {"prompt": ["a", "b"], "stop": ["e", "h"], "max_tokens": 9}
        assert pieces(await house.post(COMPLETIONS, body)) == ["on", "ot"]
        await house.idle()


@pytest.fixture
def submitted(house, monkeypatch):
    """What reaches the engine."""
    seen = []
    submit = house.scheduler.submit

    def watched(submission, now):
        seen.append(submission)
        submit(submission, now)

    monkeypatch.setattr(house.scheduler, "submit", watched)
    return seen


async def test_prompts_without_a_seed_draw_differently(house, submitted):
    await house.post(COMPLETIONS, {"prompt": ["x", "x"], "max_tokens": 1})
    await house.post(COMPLETIONS, {"prompt": ["x", "x"], "max_tokens": 1, "seed": 3})
    seeds = [submission.controls.seed for submission in submitted]
    assert len(set(seeds[:2])) == 2
    assert seeds[2:] == [3, 3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ["a"] * 50_000}, "At most 64 prompts with 1"),
        ({"prompt": ["a"] * 22, "n": 3}, "At most 21 prompts with 3"),
        ({"prompt": ["a", ""]}, "must not be empty"),
        ({"prompt": ["a", "b" * 300]}, "maximum context length"),
    ],
)
async def test_prompts_that_cannot_all_be_answered_are_refused_together(fields, message):
    async with serving(limits={"max_open_requests": 64}) as house:
        reply = await house.post(COMPLETIONS, {"max_tokens": 4, **fields})
        assert reply.status_code == 400
        assert message in reply.json()["error"]["message"]
        assert house.scheduler.counters.arrived == 0


async def test_several_prompts_enter_together_or_not_at_all():
    async with serving(max_open=3) as house:
        reply = await house.post(COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "max_tokens": 1})
        assert reply.status_code == 429
        assert house.scheduler.counters.arrived == 0
        reply = await house.post(COMPLETIONS, {"prompt": ["a", "b", "c"], "max_tokens": 1})
        assert reply.status_code == 200
        await house.idle()


async def test_a_fault_in_one_prompt_ends_the_others_as_well():
    entered, left = threading.Event(), threading.Event()
    hooks = {0: lambda batch: entered.wait(60), 3: lambda batch: left.wait(60)}
    # By the third step all of them run, and one of the three fails there.
    async with serving(script=saying("x" * 50), hooks=hooks, nan_rows={2: [1]}) as house:
        body = {"prompt": ["a", "b", "c"], "max_tokens": 40}
        answer = asyncio.ensure_future(house.post(COMPLETIONS, body))
        await until(lambda: house.bridge.open_requests == 3)
        entered.set()
        assert (await answer).status_code == 500
        await until(lambda: house.bridge.open_requests == 0)
        left.set()
        await house.idle()
        assert house.scheduler.counters.failed == 1
        assert house.scheduler.counters.cancelled == 2


async def test_the_best_of_several_is_chosen_for_each_prompt(house):
    body = {"prompt": ["a", "b"], "best_of": 3, "n": 2, "max_tokens": 2}
    reply = (await house.post(COMPLETIONS, body)).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["completion_tokens"] == 2 * 3 * 2


# -------------------------------------------------------------------- token ids


async def test_token_ids_of_a_completion_stand_in_its_choices(house):
    body = {"prompt": ["xy", "z"], "max_tokens": 3, "return_token_ids": True}
    reply = (await house.post(COMPLETIONS, body)).json()
    assert [choice["prompt_token_ids"] for choice in reply["choices"]] == [[120, 121], [122]]
    assert [choice["token_ids"] for choice in reply["choices"]] == [[97, 98, 99]] * 2
    streamed = chunks((await house.post(COMPLETIONS, {**body, "stream": True})).content)
    prompts, ids = {}, {0: [], 1: []}
    for choice in (chunk["choices"][0] for chunk in streamed):
        ids[choice["index"]] += choice["token_ids"]
        if "prompt_token_ids" in choice:
            assert prompts.setdefault(choice["index"], choice["prompt_token_ids"])
    assert prompts == {0: [120, 121], 1: [122]}
    assert ids == {0: [97, 98, 99], 1: [97, 98, 99]}


async def test_token_ids_of_a_chat_stand_beside_its_choices(house):
    body = {"messages": HELLO, "max_tokens": 2, "n": 2, "return_token_ids": True}
    prompt = (await house.post("/tokenize", {"messages": HELLO})).json()["tokens"]
    reply = (await house.post(CHAT, body)).json()
    assert reply["prompt_token_ids"] == prompt
    assert [choice["token_ids"] for choice in reply["choices"]] == [[97, 98]] * 2
    streamed = chunks((await house.post(CHAT, {**body, "stream": True})).content)
    told = [chunk["prompt_token_ids"] for chunk in streamed if "prompt_token_ids" in chunk]
    assert told == [prompt]
    ids = [c["choices"][0]["token_ids"] for c in streamed if "token_ids" in c["choices"][0]]
    assert sorted(ids) == [[97], [97], [98], [98]]


async def test_nobody_else_sees_token_ids(house):
    reply = await house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2, "stream": True})
    assert b"token_ids" not in reply.content


# -------------------------------------------------------------------- usage and metrics


async def test_usage_can_stand_in_each_chunk(house):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "xy", "max_tokens": 4, "stream": True, "stream_options": options}
    *data, last = chunks((await house.post(COMPLETIONS, body)).content)
    counts = [chunk["usage"]["completion_tokens"] for chunk in data]
    assert counts == [1, 2, 3, 4]
    assert {chunk["usage"]["prompt_tokens"] for chunk in data} == {2}
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 6


async def test_running_usage_needs_usage(house):
    body = {"prompt": "x", "max_tokens": 2, "stream": True}
    options = {"continuous_usage_stats": True}
    reply = await house.post(COMPLETIONS, {**body, "stream_options": options})
    assert all("usage" not in chunk for chunk in chunks(reply.content))


TIMES = {
    "time_to_first_token_ms",
    "queue_time_ms",
    "generation_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
}


async def test_replies_tell_their_times_where_that_is_switched_on():
    async with serving(per_request_metrics=True) as house:
        body = {"messages": HELLO, "max_tokens": 5}
        metrics = (await house.post(CHAT, body)).json()["metrics"]
        assert metrics.keys() == TIMES | {"cached_tokens", "policy"}
        assert metrics["time_to_first_token_ms"] >= metrics["queue_time_ms"] >= 0
        assert metrics["policy"] == "fcfs"
        options = {"include_usage": True}
        streamed = await house.post(CHAT, {**body, "stream": True, "stream_options": options})
        *data, last = chunks(streamed.content)
        assert last["metrics"].keys() == metrics.keys()
        assert all("metrics" not in chunk for chunk in data)
        one = (await house.post(CHAT, {**body, "max_tokens": 1})).json()["metrics"]
        assert one["mean_itl_ms"] is None


async def test_replies_do_not_tell_their_times_unasked(house):
    assert "metrics" not in (await house.post(CHAT, {"messages": HELLO})).json()


# -------------------------------------------------------------------- names


async def test_a_request_can_be_named_in_its_body_and_the_header_wins(house):
    body = {"prompt": "x", "max_tokens": 1, "request_id": "from-the-body"}
    reply = await house.post(COMPLETIONS, body)
    assert reply.headers["x-request-id"] == "from-the-body"
    reply = await house.post(COMPLETIONS, body, headers={"x-request-id": "from-the-header"})
    assert reply.headers["x-request-id"] == "from-the-header"


async def test_fields_that_change_nothing_are_accepted_when_fields_are_checked():
    async with serving(strict_fields=True) as house:
        body = {
            "model": MODEL,
            "messages": HELLO,
            "user": "somebody",
            "metadata": {"a": "b"},
            "session_id": "s",
            "store": False,
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "response_format": {"type": "text"},
            "max_tokens": 1,
        }
        assert (await house.post(CHAT, body)).status_code == 200


# -------------------------------------------------------------------- templates


async def prompt_of(house, **fields) -> str:
    reply = await house.post("/tokenize", {"messages": HELLO, **fields})
    assert reply.status_code == 200, reply.text
    return (await house.post("/detokenize", {"tokens": reply.json()["tokens"]})).json()["prompt"]


async def test_tokenize_renders_a_chat_as_a_generation_does(house):
    start = "<|im_start|>user\nHello<|im_end|>\n"
    assert await prompt_of(house) == start + "<|im_start|>assistant\n"
    assert await prompt_of(house, add_generation_prompt=False) == start
    begun = [*HELLO, {"role": "assistant", "content": "Well, "}]
    assert await prompt_of(house, messages=begun, continue_final_message=True) == (
        start + "<|im_start|>assistant\nWell, "
    )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("echo", "text"), [(False, "abc"), (True, "Well, abc")])
async def test_a_chat_goes_on_with_its_last_message(house, echo, text, stream):
    body = {
        "messages": [*HELLO, {"role": "assistant", "content": "Well, "}],
        "continue_final_message": True,
        "echo": echo,
        "max_tokens": 3,
        "stream": stream,
    }
    reply = await house.post(CHAT, body)
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks(reply.content)]
        assert "".join(delta["content"] for delta in deltas) == text
    else:
        assert reply.json()["choices"][0]["message"]["content"] == text


async def test_a_message_cannot_be_gone_on_with_behind_another_turn(house):
    body = {"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True}
    reply = await house.post(CHAT, body)
    assert reply.json()["error"]["param"] == "continue_final_message"


async def test_templates_see_the_variables_of_a_request():
    template = ChatTemplate("{{ greeting or 'Hi' }} {{ messages[0].content }}")
    async with serving(template=template) as house:
        assert await prompt_of(house) == "Hi Hello"
        assert await prompt_of(house, chat_template_kwargs={"greeting": "Yo"}) == "Yo Hello"


async def test_templates_in_requests_are_off_by_default(house):
    body = {"messages": HELLO, "chat_template": "{{ messages[0].content }}"}
    for path in (CHAT, "/tokenize"):
        error = (await house.post(path, body)).json()["error"]
        assert (error["param"], error["code"]) == ("chat_template", "unsupported_value")
        assert "api.request_templates" in error["message"]


async def test_templates_in_requests_can_be_switched_on():
    async with serving(request_templates=True) as house:
        source = "Q: {{ messages[0].content }} A:"
        assert await prompt_of(house, chat_template=source) == "Q: Hello A:"
        broken = await house.post(CHAT, {"messages": HELLO, "chat_template": "{% if %}"})
        assert (broken.status_code, broken.json()["error"]["param"]) == (400, "chat_template")


# -------------------------------------------------------------------- tokenize


async def test_tokenize_can_leave_out_what_the_model_puts_before_a_prompt():
    tokenizer = ByteTokenizer()
    tokenizer.prefix = (256,)
    async with serving(tokenizer=tokenizer) as house:
        for special, tokens in ((None, [256, 120]), (True, [256, 120]), (False, [120])):
            body = {"prompt": "x", "add_special_tokens": special}
            assert (await house.post("/tokenize", body)).json()["tokens"] == tokens
            used = await house.post(COMPLETIONS, {**body, "max_tokens": 1})
            assert used.json()["usage"]["prompt_tokens"] == len(tokens)
