"""Several choices of one request (B42), and penalties, over HTTP."""

import json

import pytest
from openai import AsyncOpenAI
from support.serving import CHAT, COMPLETIONS, HELLO, chunks, serving

from engine.controls import SampleRow


def by_index(row: SampleRow) -> int:
    """Each sequence says its own letter, and the third ends early."""
    if row.index == 2 and row.position - row.prompt_length == 3:
        return 257
    return b"abcdefgh"[row.index]


CHOICES = ["aaaaaa", "bbbbbb", "ccc", "dddddd"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_choices_are_the_same_streamed_or_not_and_usage_is_summed_once(path: str) -> None:
    async with serving(script=by_index) as house:
        body = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
        body |= {"n": 4, "max_tokens": 6}
        whole = (await house.post(path, body)).json()
        reply = await house.post(
            path, body | {"stream": True, "stream_options": {"include_usage": True}}
        )
        *parts, last = chunks(reply.content)
        streamed = dict.fromkeys(range(4), "")
        reasons: dict[int, list[str]] = {index: [] for index in range(4)}
        for part in parts:
            (choice,) = part["choices"]
            text = choice["delta"].get("content", "") if path == CHAT else choice["text"]
            streamed[choice["index"]] += text
            if choice["finish_reason"]:
                reasons[choice["index"]].append(choice["finish_reason"])
        texts = [c["message"]["content"] if path == CHAT else c["text"] for c in whole["choices"]]
        assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
        assert texts == list(streamed.values()) == CHOICES
        assert list(reasons.values()) == [["length"], ["length"], ["stop"], ["length"]]
        assert whole["usage"]["completion_tokens"] == 6 + 6 + 4 + 6
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert last["usage"][key] == whole["usage"][key], "the prompt counts once"
        await house.idle()


def briefly(row: SampleRow) -> int:
    """Each sequence says its own letter three times."""
    return 257 if row.position - row.prompt_length == 3 else b"abcdefgh"[row.index]


async def test_openai_python_reads_several_choices_of_a_stream() -> None:
    async with serving(script=briefly) as house:
        client = AsyncOpenAI(base_url=house.url + "/v1", api_key="none", max_retries=0)
        async with client.chat.completions.stream(
            model="bytes", messages=HELLO, n=4, max_tokens=9
        ) as stream:
            final = await stream.get_final_completion()
        texts = [choice.message.content for choice in final.choices]
        assert texts == ["aaa", "bbb", "ccc", "ddd"]
        assert {choice.message.role for choice in final.choices} == {"assistant"}
        await client.close()


async def test_a_stop_string_ends_one_choice_and_the_others_go_on() -> None:
    async with serving(script=by_index) as house:
        body = {"prompt": "x", "n": 2, "max_tokens": 6, "stop": "bb"}
        reply = (await house.post(COMPLETIONS, body)).json()
        assert [c["text"] for c in reply["choices"]] == ["aaaaaa", ""]
        assert [c["finish_reason"] for c in reply["choices"]] == ["length", "stop"]
        assert reply["usage"]["completion_tokens"] == 6 + 2
        await house.idle()


async def test_leaving_in_the_middle_frees_all_choices() -> None:
    async with serving(script=by_index, model_len=1024, blocks=256) as house:
        body = {"prompt": "x", "n": 4, "max_tokens": 900, "stream": True}
        content = json.dumps(body)
        async with house.client.stream("POST", COMPLETIONS, content=content) as reply:
            async for _ in reply.aiter_lines():
                break
        await house.idle()
        assert house.scheduler.counters.cancelled <= 1


async def test_more_choices_than_rows_are_refused_with_the_numbers() -> None:
    async with serving(rows=4) as house:
        reply = await house.post(COMPLETIONS, {"prompt": "x", "n": 5, "max_tokens": 1})
        assert reply.status_code == 400
        assert "5 sequences" in reply.json()["error"]["message"]


async def test_penalties_reach_the_sampler() -> None:
    seen = []

    def looking(row: SampleRow) -> int:
        seen.append(row.controls)
        return 65

    async with serving(script=looking) as house:
        body = {"prompt": "x", "max_tokens": 1, "presence_penalty": -2, "frequency_penalty": 0.5}
        reply = await house.post(COMPLETIONS, body | {"repetition_penalty": 1.3})
        assert reply.status_code == 200
        (controls,) = seen
        assert controls.presence_penalty == -2
        assert controls.frequency_penalty == 0.5
        assert controls.repetition_penalty == 1.3
