"""Calls of tools: demanded or not, at once and streamed, and what a model sees of them."""

import json

import pytest
from openai import AsyncOpenAI
from support.serving import CHAT, HELLO, MODEL, chunks, saying, serving

from app.text.template import ChatTemplate


def tool(name, **properties):
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": f"Does {name}.", "parameters": parameters},
    }


ADD, WEATHER = tool("add", a="integer", b="integer"), tool("get_weather", city="string")
TOOLS = [ADD, WEATHER]


def call(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


TWO_CALLS = call("add", '{"a": 1, "b": 2}') + "\n" + call("get_weather", '{"city": "Zürich"}')


def named(name):
    return {"type": "function", "function": {"name": name}}


async def ask(text, **fields):
    """The one choice of an answer, whole and streamed, where the model would say `text`."""
    async with serving(script=saying(text), model_len=2048, blocks=512) as house:
        body = {"messages": HELLO, "tools": TOOLS, "max_tokens": 300, **fields}
        reply = await house.post(CHAT, body)
        assert reply.status_code == 200, reply.text
        (choice,) = reply.json()["choices"]
        streamed = await house.post(CHAT, {**body, "stream": True})
        put_together(chunks(streamed.content), choice)
        return choice


def put_together(got, whole):
    """Assert that the chunks of a stream say what was said at once."""
    content, calls, ends = "", [], []
    for chunk in got:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        content += delta.get("content") or ""
        ends.append(choice["finish_reason"])
        for part in delta.get("tool_calls", ()):
            if part["index"] == len(calls):
                assert part["type"] == "function"
                assert part["id"].startswith("call_")
                calls.append({"name": part["function"]["name"], "arguments": ""})
            else:
                assert "id" not in part
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
    assert got[0]["choices"][0]["delta"]["role"] == "assistant"
    assert content == (whole["message"]["content"] or "")
    assert calls == [each["function"] for each in whole["message"].get("tool_calls", ())]
    assert ends[-1] == whole["finish_reason"]
    assert not any(ends[:-1])


def called(choice):
    return [
        (each["function"]["name"], json.loads(each["function"]["arguments"]))
        for each in choice["message"]["tool_calls"]
    ]


async def test_text_is_text():
    choice = await ask("It is <b>3</b>. <tool_ca")
    assert choice["message"]["content"] == "It is <b>3</b>. <tool_ca"
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


async def test_calls_are_told_from_text():
    choice = await ask("Let me see. " + TWO_CALLS)
    assert choice["message"]["content"] == "Let me see. "
    assert called(choice) == [("add", {"a": 1, "b": 2}), ("get_weather", {"city": "Zürich"})]
    assert choice["finish_reason"] == "tool_calls"


async def test_calls_alone_have_no_content():
    choice = await ask(TWO_CALLS)
    assert choice["message"]["content"] is None
    assert len(called(choice)) == 2


async def test_a_call_that_has_begun_is_held_to_the_tools():
    choice = await ask('<tool_call>\n{"name": "add", "arguments": {"a": "one", "c": 5}}')
    (name, arguments), *_ = called(choice)
    assert name == "add"
    assert all(type(value) is int for value in arguments.values())
    assert arguments.keys() == {"a", "b"}


async def test_one_call_where_only_one_may_come():
    choice = await ask(TWO_CALLS, parallel_tool_calls=False)
    assert called(choice) == [("add", {"a": 1, "b": 2})]


async def test_a_call_that_is_required_comes():
    choice = await ask("I would rather not.", tool_choice="required", stop=["nothing"])
    assert choice["finish_reason"] in ("tool_calls", "length")
    assert called(choice)[0][0] in ("add", "get_weather")


async def test_the_named_tool_is_called_and_no_other():
    choice = await ask(TWO_CALLS, tool_choice=named("get_weather"), seed=1)
    ((name, arguments),) = called(choice)
    assert name == "get_weather"
    assert arguments.keys() == {"city"}


async def test_none_is_none():
    choice = await ask(TWO_CALLS, tool_choice="none")
    assert choice["message"]["content"] == TWO_CALLS


async def test_an_answer_that_is_cut_has_what_there_is_of_its_call():
    cut = len('<tool_call>\n{"name": "add", "arguments": {"a": 1,')
    choice = await ask(TWO_CALLS, max_tokens=cut)
    (only,) = choice["message"]["tool_calls"]
    assert only["function"] == {"name": "add", "arguments": '{"a": 1,'}
    assert choice["finish_reason"] == "length"


async def test_json_instead_of_a_call():
    form = {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "schema": {
                "type": "object",
                "properties": {"z": {"type": "integer"}},
                "required": ["z"],
                "additionalProperties": False,
            },
        },
    }
    choice = await ask('{"z": 5} and more', response_format=form)
    assert choice["message"]["content"] == '{"z": 5}'
    choice = await ask(TWO_CALLS, response_format=form)
    assert len(called(choice)) == 2


async def test_everything_that_is_asked_for_is_in_the_stream():
    text = "a <b" + call("add", '{"a": 1, "b": 2}')
    async with serving(script=saying(text), model_len=2048, blocks=512) as house:
        body = {
            "messages": HELLO,
            "tools": TOOLS,
            "stream": True,
            "logprobs": True,
            "return_token_ids": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        *got, usage = chunks((await house.post(CHAT, body)).content)
        ids = [token for chunk in got for token in chunk["choices"][0]["token_ids"]]
        logprobs = [e for c in got for e in c["choices"][0]["logprobs"]["content"]]
        assert bytes(ids[:-1]).decode() == text
        assert len(logprobs) == len(ids) == usage["usage"]["completion_tokens"]
        assert got[-1]["usage"]["completion_tokens"] == len(ids)


async def test_several_answers_each_with_its_calls():
    async with serving(script=saying(TWO_CALLS), model_len=2048, blocks=512) as house:
        body = {"messages": HELLO, "tools": TOOLS, "n": 2}
        reply = (await house.post(CHAT, body)).json()
        assert [len(called(choice)) for choice in reply["choices"]] == [2, 2]
        got = chunks((await house.post(CHAT, {**body, "stream": True})).content)
        calls = {
            (c["index"], p["index"])
            for each in got
            for c in each["choices"]
            for p in c["delta"].get("tool_calls", ())
        }
        assert calls == {(0, 0), (0, 1), (1, 0), (1, 1)}


def seen_by_model(house):
    (batch, *_) = house.backend.batches
    return bytes(token for token in batch.token_ids.tolist() if token < 256).decode()


async def test_what_the_model_sees_of_tools_and_calls():
    turns = [
        {"role": "user", "content": "1+2?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "4"}]},
    ]
    options = {"script": saying("three"), "model_len": 4096, "blocks": 512, "step_tokens": 4096}
    async with serving(**options) as house:
        await house.post(CHAT, {"messages": turns, "tools": [ADD]})
        seen = seen_by_model(house)
    assert seen.startswith("system\n# Tools\n")
    assert '{"type":"function","function":{"name":"add","description":"Does add."' in seen
    assert (
        'assistant\n<tool_call>\n{"name": "add", "arguments": {"a":1,"b":2}}\n</tool_call>' in seen
    )
    assert (
        "user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>" in seen
    )
    assert "None" not in seen


async def test_definitions_stand_behind_what_the_system_says():
    options = {"script": saying("three"), "model_len": 4096, "blocks": 512, "step_tokens": 4096}
    async with serving(**options) as house:
        turns = [{"role": "developer", "content": "Be brief."}, *HELLO]
        await house.post(CHAT, {"messages": turns, "tools": [ADD]})
        assert seen_by_model(house).startswith("system\nBe brief.\n\n# Tools\n")
    async with serving(**options) as house:
        await house.post(CHAT, {"messages": HELLO, "tools": [ADD], "tool_choice": "none"})
        assert "Tools" not in seen_by_model(house)


async def test_a_template_that_knows_tools_gets_them():
    template = (
        "{% for tool in tools %}{{ tool.function.name }};{% endfor %}"
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls %}<tool_call>{{ c.function.arguments.a }}{% endfor %}|"
        "{% endfor %}"
    )
    turns = [
        *HELLO,
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 7}'}}],
        },
        {"role": "tool", "content": "3"},
    ]
    options = {"script": saying("x"), "template": ChatTemplate(template), "step_tokens": 256}
    async with serving(**options) as house:
        reply = await house.post(CHAT, {"messages": turns, "tools": TOOLS, "max_tokens": 1})
        assert reply.status_code == 200, reply.text
        assert seen_by_model(house) == ("add;get_weather;user:Hello|assistant:<tool_call>7|tool:3|")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type"),
        ({"tools": [tool("a b")]}, "tools.0.function.name"),
        ({"tools": [tool(f"t{i}") for i in range(129)]}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named("nobody")}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": ["auto"]}, "tool_choice"),
        ({"tools": [tool("a", x="strin")]}, "tools"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"bad_words": ["a"]}, "bad_words"),
    ],
)
async def test_what_cannot_be_called_is_refused(fields, param):
    async with serving(script=saying("x"), model_len=2048, blocks=512) as house:
        reply = await house.post(CHAT, {"messages": HELLO, "tools": TOOLS, **fields})
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] == param, reply.text
        await house.probe()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice demands a call, but there are no tools."),
        ({"tools": [ADD], "tool_choice": named("sub")}, "one that is not among the tools."),
    ],
)
async def test_what_is_wrong_with_a_demand_for_a_call_is_said(fields, message):
    async with serving(script=saying("x"), model_len=2048, blocks=512) as house:
        reply = await house.post(CHAT, {"messages": HELLO, **fields})
        assert message in reply.json()["error"]["message"], reply.text


async def test_a_round_trip_with_openai_python():
    def script(row):
        prompt = bytes(t for t in row.tokens[: row.prompt_length] if t < 256).decode()
        text = "It is 3." if "<tool_response>" in prompt else call("add", '{"a": 1, "b": 2}')
        return saying(text)(row)

    async with (
        serving(script=script, model_len=4096, blocks=512) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client,
    ):
        messages = [{"role": "user", "content": "What is 1 + 2?"}]
        reply = await client.chat.completions.create(model=MODEL, messages=messages, tools=[ADD])
        message = reply.choices[0].message
        (asked,) = message.tool_calls
        assert (asked.type, asked.function.name) == ("function", "add")
        total = sum(json.loads(asked.function.arguments).values())
        result = {"role": "tool", "tool_call_id": asked.id, "content": str(total)}
        messages += [message.model_dump(exclude_none=True), result]
        reply = await client.chat.completions.create(model=MODEL, messages=messages, tools=[ADD])
        assert reply.choices[0].message.content == "It is 3."
        async with client.chat.completions.stream(
            model=MODEL, messages=messages[:1], tools=[ADD]
        ) as stream:
            final = await stream.get_final_completion()
        (asked,) = final.choices[0].message.tool_calls
        assert (asked.id[:5], asked.function.name) == ("call_", "add")
        assert json.loads(asked.function.arguments) == {"a": 1, "b": 2}
        assert final.choices[0].finish_reason == "tool_calls"


# ── functions, as tools were asked for before ─────────────────────────────────────────────────

FUNCTIONS = [tool["function"] for tool in TOOLS]


async def test_a_function_is_called_as_clients_of_functions_expect_it():
    async with serving(script=saying("Well. " + TWO_CALLS), model_len=2048, blocks=512) as house:
        body = {"messages": HELLO, "functions": FUNCTIONS, "max_tokens": 300}
        (choice,) = (await house.post(CHAT, body)).json()["choices"]
        got = chunks((await house.post(CHAT, {**body, "stream": True})).content)
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["content"] == "Well. "
    assert choice["message"]["function_call"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    assert "tool_calls" not in choice["message"]
    deltas = [chunk["choices"][0]["delta"] for chunk in got]
    first, *others = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert first["name"] == "add"
    told = first["arguments"] + "".join(each["arguments"] for each in others)
    assert told == '{"a": 1, "b": 2}', "however many tokens waited for their reader"
    assert not any("name" in each for each in others)
    assert got[-1]["choices"][0]["finish_reason"] == "function_call"


async def test_the_function_that_is_named_is_called_and_none_is_none():
    async with serving(script=saying(TWO_CALLS), model_len=2048, blocks=512) as house:
        body = {"messages": HELLO, "functions": FUNCTIONS, "max_tokens": 300, "seed": 1}
        named_one = {**body, "function_call": {"name": "get_weather"}}
        (choice,) = (await house.post(CHAT, named_one)).json()["choices"]
        assert choice["message"]["function_call"]["name"] == "get_weather"
        (choice,) = (await house.post(CHAT, {**body, "function_call": "none"})).json()["choices"]
        assert choice["message"]["content"] == TWO_CALLS


async def test_what_a_model_sees_of_functions_is_what_it_sees_of_tools():
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    told = [{"role": "assistant", "content": None, "function_call": function}]
    told += [{"role": "function", "name": "add", "content": "3"}]
    turns = [{"role": "assistant", "tool_calls": [{"function": function}]}]
    turns += [{"role": "tool", "content": "3"}]
    options = {"script": saying("x"), "model_len": 4096, "blocks": 512, "step_tokens": 4096}
    seen = []
    for body in (
        {"messages": HELLO + told, "functions": FUNCTIONS},
        {"messages": HELLO + turns, "tools": TOOLS},
    ):
        async with serving(**options) as house:
            reply = await house.post(CHAT, {**body, "max_tokens": 1})
            assert reply.status_code == 200, reply.text
            seen.append(seen_by_model(house))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": FUNCTIONS, "tools": TOOLS}, "functions"),
        ({"functions": FUNCTIONS, "function_call": {"name": "nobody"}}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": "required"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": 5}}, "function_call"),
        ({"functions": [{"name": "a", "parameters": {"type": "strin"}}]}, "functions"),
        ({"functions": [{"name": "a b"}]}, "functions.0.name"),
        ({"functions": FUNCTIONS, "bad_words": ["a"]}, "bad_words"),
    ],
)
async def test_functions_that_cannot_be_called_are_refused(fields, param):
    async with serving(script=saying("x"), model_len=2048, blocks=512) as house:
        reply = await house.post(CHAT, {"messages": HELLO, **fields})
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] == param, reply.text


async def test_what_is_too_deep_for_a_prompt_is_the_clients_error():
    """As far as the parser reads, a writer of JSON does not go."""
    schema = {"type": "object"}
    for _ in range(300):
        schema = {"type": "object", "properties": {"a": schema}}
    deep = {"type": "function", "function": {"name": "f", "parameters": schema}}
    async with serving(model_len=2048, blocks=512) as house:
        for fields in ({"tools": [deep]}, {"functions": [deep["function"]]}):
            reply = await house.post(CHAT, {"messages": HELLO, **fields})
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")


async def test_arguments_that_are_too_deep_for_a_prompt_stand_there_as_they_came():
    arguments = "[" * 300 + "]" * 300
    said = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    messages = [*HELLO, {"role": "assistant", "tool_calls": said}]
    async with serving(model_len=2048, blocks=512) as house:
        reply = await house.post(CHAT, {"messages": messages, "max_tokens": 3})
        assert reply.status_code == 200, reply.text
