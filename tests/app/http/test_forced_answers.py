"""Over HTTP nobody can tell tokens that a grammar forced from others, but by their pace."""

from __future__ import annotations

from typing import Any

import pytest
from support.serving import CHAT, HELLO, chunks, saying, serving

NAMES = {
    "type": "object",
    "properties": {
        "firstName": {"type": "string"},
        "lastName": {"const": "van der Berg"},
        "age": {"type": "integer"},
    },
    "required": ["firstName", "lastName", "age"],
    "additionalProperties": False,
}
SAID = '{"firstName": "Zoë", "lastName": "van der Berg", "age": 12}'
FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": NAMES}}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL = 'hm <tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'

ASKED: dict[str, dict[str, Any]] = {
    "to the end": FORM,
    "cut among them": {**FORM, "max_tokens": 9},
    "stop string among them": {**FORM, "stop": ["stNa"]},
    "stop string across them": {**FORM, "stop": ['"lastName": "van']},
    "stop token among them": {**FORM, "stop_token_ids": [ord("N")]},
    "several": {**FORM, "n": 3, "seed": 1},
    "logprobs": {**FORM, "logprobs": True, "top_logprobs": 2},
    "token ids": {**FORM, "return_token_ids": True},
    "a tool": {"tools": [WEATHER], "tool_choice": "auto"},
    "a tool that must be called": {"tools": [WEATHER], "tool_choice": "required"},
    "one text": {"guided_choice": ["the only one that there is"]},
}


async def answers(asked: dict[str, Any], forces: bool, text: str) -> tuple[list[Any], int]:
    """Choices and usage, at once and streamed, and how many tokens were forced."""
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 120, **asked}
    config = {"structured": {"forced_tokens": forces}}
    async with serving(script=saying(text), config=config, model_len=2048, blocks=256) as house:
        whole = (await house.post(CHAT, body)).json()
        streamed = await house.post(
            CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}}
        )
        await house.idle()
        counters = house.scheduler.counters
        usage = whole["usage"]
        if "stop" not in asked:  # else the engine is told of the end when it has gone on
            assert counters.generated_tokens == 2 * usage["completion_tokens"]
        metrics = (await house.client.get("/metrics")).text
        assert f"octavo_forced_tokens_total {float(counters.forced_tokens)}" in metrics
    parts = chunks(streamed.content)
    said = ["" for _ in range(asked.get("n", 1))]
    ends = [None for _ in said]
    for choice in (choice for part in parts for choice in part["choices"]):
        delta, index = choice["delta"], choice["index"]
        said[index] += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            said[index] += call["function"].get("name", "") + call["function"]["arguments"]
        ends[index] = choice["finish_reason"] or ends[index]
    assert ends == [choice["finish_reason"] for choice in whole["choices"]]
    if "tools" not in asked:
        assert said == [choice["message"]["content"] for choice in whole["choices"]]
    for choice in whole["choices"]:
        for call in choice["message"].get("tool_calls") or ():
            call["id"] = ""
    return [whole["choices"], usage, said, parts[-1]["usage"]], counters.forced_tokens


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_an_answer_is_the_same_whether_tokens_were_forced_or_not(asked) -> None:
    text = CALL if "tools" in asked else SAID
    expected, none = await answers(asked, forces=False, text=text)
    found, some = await answers(asked, forces=True, text=text)
    assert found == expected
    assert none == 0
    assert (some > 0) == ("logprobs" not in asked)
