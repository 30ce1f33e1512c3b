"""Functions that /v1/responses may call: at once, streamed, and as OpenAI's client reads them."""

import json

import openai
import pydantic
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from support.serving import HELLO, MODEL, events, saying, serving

RESPONSES = "/v1/responses"
ROOM = {"model_len": 4096, "blocks": 512}


def tool(name, **properties):
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    told = {"description": f"Does {name}.", "parameters": parameters, "strict": True}
    return {"type": "function", "name": name, **told}


ADD, WEATHER = tool("add", a="integer", b="integer"), tool("get_weather", city="string")
TOOLS = [ADD, WEATHER]


def call(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


TWO_CALLS = call("add", '{"a": 1, "b": 2}') + "\n" + call("get_weather", '{"city": "Zürich"}')


async def ask(answer, **fields):
    """The response where the model would say `answer`, whole and streamed."""
    async with serving(script=saying(answer), **ROOM) as house:
        body = {"input": "Hello", "tools": TOOLS, "max_output_tokens": 300, **fields}
        reply = await house.post(RESPONSES, body)
        assert reply.status_code == 200, reply.text
        streamed = await house.post(RESPONSES, {**body, "stream": True})
        await house.idle()
    whole = reply.json()
    Response.model_validate(whole, strict=False)
    last = followed(read(streamed.content))
    assert last["status"] == whole["status"]
    assert [nameless(item) for item in last["output"]] == [
        nameless(item) for item in whole["output"]
    ]
    return whole


def read(stream):
    """The events of a stream, each as OpenAI's client knows it."""
    got = []
    known = pydantic.TypeAdapter(ResponseStreamEvent)
    for event in events(stream):
        name, data = event.split(b"\n")
        told = json.loads(data.removeprefix(b"data: "))
        assert name.decode() == f"event: {told['type']}"
        assert known.validate_python(told).type == told["type"]
        got.append(told)
    assert [each["sequence_number"] for each in got] == list(range(len(got)))
    return got


def followed(got):
    """The response at the end of a stream. Asserts that each item came piece by piece, in turn."""
    items = {}
    open_item, said = None, ""
    for event in got:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None
            assert event["output_index"] == len(items)
            assert event["item"]["status"] == "in_progress"
            open_item, said = event["item"]["id"], ""
        elif kind.endswith((".delta", ".done")) and kind != "output_item.done":
            assert event["item_id"] == open_item
            assert event["output_index"] == len(items)
            said += event.get("delta", "")
            if kind.endswith("_arguments.done"):
                assert event["arguments"] == said
            if kind == "output_text.done":
                assert event["text"] == said
        elif kind == "output_item.done":
            item = event["item"]
            assert item["id"] == open_item
            assert said == (item.get("arguments") or item["content"][0]["text"])
            items[open_item], open_item = item, None
    assert open_item is None
    assert list(items.values()) == got[-1]["response"]["output"]
    return got[-1]["response"]


def nameless(item):
    """An item without what is made up for each."""
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


def called(response):
    return [
        (item["name"], json.loads(item["arguments"]))
        for item in response["output"]
        if item["type"] == "function_call"
    ]


def text_of(response):
    (message,) = (item for item in response["output"] if item["type"] == "message")
    return message["content"][0]["text"]


async def test_text_is_a_message():
    response = await ask("It is <b>3</b>. <tool_ca")
    assert text_of(response) == "It is <b>3</b>. <tool_ca"
    assert len(response["output"]) == 1


async def test_calls_are_items_of_their_own():
    response = await ask("Let me see. " + TWO_CALLS)
    assert text_of(response) == "Let me see. "
    assert called(response) == [("add", {"a": 1, "b": 2}), ("get_weather", {"city": "Zürich"})]
    assert {item["status"] for item in response["output"]} == {"completed"}
    ids = [item["id"] for item in response["output"]]
    assert [each[:3] for each in ids] == ["msg", "fc_", "fc_"]
    assert len({item["call_id"] for item in response["output"][1:]}) == 2
    assert response["tools"] == TOOLS
    assert response["tool_choice"] == "auto"


async def test_calls_alone_are_no_message():
    for text in (TWO_CALLS, "\n" + TWO_CALLS):
        response = await ask(text)
        assert [item["type"] for item in response["output"]] == ["function_call"] * 2


async def test_blanks_alone_are_a_message():
    response = await ask(" \n")
    assert text_of(response) == " \n"


async def test_one_call_where_only_one_may_come():
    response = await ask(TWO_CALLS, parallel_tool_calls=False)
    assert called(response) == [("add", {"a": 1, "b": 2})]


async def test_a_call_that_is_required_comes():
    response = await ask("I would rather not.", tool_choice="required")
    assert called(response)[0][0] in ("add", "get_weather")


async def test_the_named_function_is_called_and_no_other():
    choice = {"type": "function", "name": "get_weather"}
    response = await ask(TWO_CALLS, tool_choice=choice, seed=1)
    ((name, arguments),) = called(response)
    assert (name, arguments.keys()) == ("get_weather", {"city"})
    assert response["tool_choice"] == choice


async def test_none_is_none():
    response = await ask(TWO_CALLS, tool_choice="none")
    assert text_of(response) == TWO_CALLS


async def test_a_call_that_is_cut_is_incomplete():
    cut = len('<tool_call>\n{"name": "add", "arguments": {"a": 1,')
    response = await ask(TWO_CALLS, max_output_tokens=cut)
    (only,) = response["output"]
    assert (only["arguments"], only["status"]) == ('{"a": 1,', "incomplete")
    assert response["status"] == "incomplete"


async def test_a_call_that_a_stop_string_cuts_is_incomplete_in_a_response_that_is_not():
    response = await ask(TWO_CALLS, stop=[', "b"'])
    (only,) = response["output"]
    assert (only["arguments"], only["status"]) == ('{"a": 1', "incomplete")
    assert response["status"] == "completed"


async def test_json_instead_of_a_call():
    schema = tool("x", z="integer")["parameters"]
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    response = await ask('{"z": 5} and more', text=text)
    assert text_of(response) == '{"z": 5}'
    assert len(called(await ask(TWO_CALLS, text=text))) == 2


async def test_logprobs_are_of_the_text_and_not_of_calls():
    response = await ask(
        "Hmm <t" + call("add", '{"a": 1, "b": 2}'),
        include=["message.output_text.logprobs"],
        top_logprobs=1,
    )
    message, _ = response["output"]
    tokens = [each["token"] for each in message["content"][0]["logprobs"]]
    assert "".join(tokens) == message["content"][0]["text"] == "Hmm <t"


async def test_a_chat_and_a_response_show_a_model_the_same():
    turns = [
        *HELLO,
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
                }
                for number in (1, 2)
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "tool", "tool_call_id": "call_2", "content": "three\nor so"},
    ]
    made = {"type": "function_call", "name": "add", "arguments": '{"a": 1, "b": 2}'}
    parts = [{"type": "input_text", "text": "three"}, {"type": "input_text", "text": "or so"}]
    items = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {**made, "call_id": "call_1", "id": "fc_1", "status": "completed"},
        {**made, "call_id": "call_2"},
        {"type": "function_call_output", "call_id": "call_1", "output": "3"},
        {"type": "function_call_output", "call_id": "call_2", "output": parts},
    ]
    nested = {name: value for name, value in ADD.items() if name not in ("type", "strict")}
    async with serving(script=saying("x"), step_tokens=4096, **ROOM) as house:
        tools = [{"type": "function", "function": nested}]
        chat = {"messages": turns, "tools": tools, "cache_salt": "another"}
        await house.post("/v1/chat/completions", {**chat, "max_tokens": 1})
        await house.post(RESPONSES, {"input": items, "tools": [ADD], "max_output_tokens": 1})
        seen = [
            bytes(token for token in batch.token_ids.tolist() if token < 256).decode()
            for batch in house.backend.batches
        ]
    prompts = [text for text in seen if "<tool_response>" in text]
    assert len(prompts) == 2
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0", "unsupported_value"),
        ({"tools": [ADD, {"type": "custom", "name": "x"}]}, "tools.1", "unsupported_value"),
        ({"tools": [{"type": "function"}]}, "tools.0.name", "missing_required_parameter"),
        ({"tools": [tool("a b")]}, "tools.0.name", "invalid_value"),
        ({"tools": ["f"]}, "tools.0", "invalid_type"),
        ({"tools": [tool("a", x="strin")]}, "tools", "invalid_grammar"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", None),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice", None),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "unsupported_value"),
        ({"tool_choice": {"type": ["x"]}}, "tool_choice", "unsupported_value"),
        ({"tool_choice": "always"}, "tool_choice", "invalid_value"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input", "invalid_value"),
        ({"input": [{"type": "function_call_output"}]}, "input.0.content", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "unsupported_value"),
        ({"guided_regex": "a"}, "guided_regex", None),
    ],
)
async def test_what_cannot_be_called_is_refused_by_name(fields, param, code):
    async with serving(script=saying("x"), **ROOM) as house:
        reply = await house.post(RESPONSES, {"input": "Hello", "tools": TOOLS, **fields})
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert error["param"] == param, error
        assert code in (None, error["code"]), error
        kind = fields.get("tools", [{}])[-1:]
        if kind and isinstance(kind[0], dict) and kind[0].get("type") in ("web_search", "custom"):
            assert kind[0]["type"] in error["message"]
        await house.probe()


def adding(row):
    """Asks for a sum, and says what it was told."""
    prompt = bytes(t for t in row.tokens[: row.prompt_length] if t < 256).decode()
    text = "It is 3." if "<tool_response>" in prompt else call("add", '{"a": 1, "b": 2}')
    return saying(text)(row)


@pytest.fixture
async def client():
    async with (
        serving(script=adding, **ROOM) as house,
        AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_a_round_trip_with_openai_python(client):
    said = [{"role": "user", "content": "What is 1 + 2?"}]
    reply = await client.responses.create(model=MODEL, input=said, tools=[ADD])
    (asked,) = reply.output
    assert (asked.type, asked.name, asked.status) == ("function_call", "add", "completed")
    total = sum(json.loads(asked.arguments).values())
    said += reply.output
    said.append({"type": "function_call_output", "call_id": asked.call_id, "output": str(total)})
    reply = await client.responses.create(model=MODEL, input=said, tools=[ADD])
    assert reply.output_text == "It is 3."


class Add(pydantic.BaseModel):
    a: int
    b: int


async def test_the_stream_helper_parses_arguments(client):
    add = openai.pydantic_function_tool(Add, name="add")["function"]
    tools = [{"type": "function", **add}]
    async with client.responses.stream(model=MODEL, input="1 + 2?", tools=tools) as stream:
        pieces = [
            event
            async for event in stream
            if event.type == "response.function_call_arguments.delta"
        ]
        final = await stream.get_final_response()
    assert "".join(piece.delta for piece in pieces) == pieces[-1].snapshot == '{"a": 1, "b": 2}'
    (asked,) = final.output
    assert asked.call_id.startswith("call_")
    assert json.loads(asked.arguments) == {"a": 1, "b": 2}
    reply = await client.responses.parse(model=MODEL, input="1 + 2?", tools=tools)
    assert json.loads(reply.output[0].arguments) == {"a": 1, "b": 2}


async def test_what_is_too_deep_to_be_repeated_is_the_clients_error():
    deep: object = {}
    for _ in range(300):
        deep = {"a": deep}
    tools = {"tools": [{"type": "function", "name": "f", "parameters": deep}]}
    named = {"text": {"format": {"type": "json_schema", "name": deep, "schema": {}}}}
    async with serving(**ROOM) as house:
        for fields in ({**tools, "tool_choice": "none"}, {**tools}, named):
            for stream in (False, True):
                body = {"input": "Hello", "stream": stream, **fields}
                reply = await house.post(RESPONSES, body)
                assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")
        await house.idle()
