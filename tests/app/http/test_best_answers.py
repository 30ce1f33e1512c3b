"""Answers that are chosen from more sequences: beam search and `best_of`, over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from support.serving import CHAT, COMPLETIONS, HELLO, MODEL, serving, until

from engine.backends.scripted import ScriptedBackend
from engine.controls import Sampled, SampleRow, TokenLogprobs

EOS = 257


def branches(row: SampleRow) -> list[tuple[int, float]]:
    """Four letters to begin with; each goes on by itself, and `b` may end after three."""
    said = row.tokens[row.prompt_length : row.position]
    if not said:
        return [(ord(letter), -1.0 - place / 4) for place, letter in enumerate("abcd")]
    if len(said) == 3 and said[0] == ord("b"):
        return [(EOS, -0.01), (said[0], -9.0)]
    return [(said[0], -0.1), (ord("z"), -40.0)]


BEAMS = {"use_beam_search": True, "n": 3, "max_tokens": 6, "temperature": 0}


def texts(reply: dict[str, Any]) -> list[str]:
    return [c["message"]["content"] if "message" in c else c["text"] for c in reply["choices"]]


# ── beams ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_best_sequences_are_the_choices_best_first(path: str) -> None:
    async with serving(branches=branches) as house:
        prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
        reply = (await house.post(path, prompt | BEAMS)).json()
        assert texts(reply) == ["aaaaaa", "cccccc", "bbb"], "sums of -1.5, -2, -1.46 over lengths"
        assert [c["index"] for c in reply["choices"]] == [0, 1, 2]
        assert [c["finish_reason"] for c in reply["choices"]] == ["length", "length", "stop"]
        assert reply["usage"]["completion_tokens"] == 6 + 6 + 4
        await house.idle()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"length_penalty": 0}, ["bbb", "aaaaaa", "cccccc"]),
        ({"length_penalty": 0, "early_stopping": True}, ["bbb", "aaaaaa", "cccccc"]),
        ({"early_stopping": "never"}, ["aaaaaa", "cccccc", "bbb"]),
        ({"n": 1}, ["aaaaaa"]),
        ({"n": 2, "best_of": 4}, ["aaaaaa", "cccccc"]),
        ({"n": 2, "best_of": 4, "length_penalty": 0}, ["bbb", "aaaaaa"]),
        ({"n": 4, "stop_token_ids": [ord("c")]}, ["aaaaaa", "bbb", "dddddd", ""]),
        ({"ignore_eos": True}, ["aaaaaa", "bbbbb", "cccccc"]),
        ({"temperature": None, "early_stopping": False}, ["aaaaaa", "cccccc", "bbb"]),
    ],
)
async def test_fields_of_a_search(fields: dict[str, Any], expected: list[str]) -> None:
    async with serving(branches=branches) as house:
        body = {"prompt": "hello"} | BEAMS | fields
        reply = (await house.post(COMPLETIONS, body)).json()
        assert texts(reply) == expected


async def test_log_probabilities_of_a_hypothesis_are_those_of_its_tokens() -> None:
    async with serving(branches=branches) as house:
        body = {"prompt": "hello", "logprobs": 0} | BEAMS
        reply = (await house.post(COMPLETIONS, body)).json()
        logprobs = [choice["logprobs"]["token_logprobs"] for choice in reply["choices"]]
        assert logprobs[0] == [-1.0, -0.1, -0.1, -0.1, -0.1, -0.1]
        assert logprobs[2] == [-1.25, -0.1, -0.1, -0.01]


async def test_a_long_answer_that_comes_at_once_is_not_a_lag() -> None:
    async with serving(branches=branches, model_len=1024, blocks=256, max_lag=16) as house:
        body = {"prompt": "hello"} | BEAMS | {"max_tokens": 200}
        reply = await house.post(COMPLETIONS, body)
        assert texts(reply.json()) == ["a" * 200, "c" * 200, "b" * 200]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"temperature": 0.5}, "temperature"),
        ({"stop": "x"}, "stop"),
        ({"n": 33}, "n"),
        ({"best_of": 33}, "best_of"),
        ({"best_of": 2}, "best_of"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"use_beam_search": None, "length_penalty": 2}, "length_penalty"),
        ({"use_beam_search": False, "early_stopping": "never"}, "early_stopping"),
    ],
)
async def test_what_does_not_go_together_is_a_400_that_names_the_field(fields, param) -> None:
    async with serving(branches=branches) as house:
        reply = await house.post(COMPLETIONS, {"prompt": "hello"} | BEAMS | fields)
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert error["param"].split(".")[0] == param
        await house.idle()


async def test_a_search_wider_than_a_step_is_refused_with_the_numbers() -> None:
    async with serving(branches=branches, rows=4) as house:
        reply = await house.post(COMPLETIONS, {"prompt": "hello"} | BEAMS | {"best_of": 5})
        assert reply.status_code == 400
        assert "5 sequences" in reply.json()["error"]["message"]


async def test_all_beams_count_towards_what_the_house_holds() -> None:
    async with serving(branches=branches, max_open=5) as house:
        body = {"prompt": "hello"} | BEAMS
        reply = await house.post(COMPLETIONS, body | {"best_of": 6})
        assert reply.status_code == 429
        await house.post(COMPLETIONS, body | {"best_of": 5})
        await house.idle()


async def test_whoever_leaves_a_search_frees_its_beams() -> None:
    gate = threading.Event()
    hooks = {5: lambda batch: gate.wait(60)}
    async with serving(branches=branches, model_len=1024, blocks=256, hooks=hooks) as house:
        body = json.dumps({"prompt": "hello"} | BEAMS | {"max_tokens": 900})
        asking = asyncio.ensure_future(house.post(COMPLETIONS, body.encode()))
        await until(lambda: len(house.backend.batches) == 6)
        asking.cancel()
        await until(lambda: house.bridge.open_requests == 0)
        gate.set()
        await house.idle()
        assert house.scheduler.counters.cancelled == 1


# ── best_of ───────────────────────────────────────────────────────────────────────────────────


class Rated(ScriptedBackend):
    """Sequence i says its own letter, which is the likelier the closer i is to 2."""

    def _sample(self, rows: Sequence[SampleRow]) -> Sampled:
        asked = [row.controls.logprobs for row in rows]
        known = [TokenLogprobs(-1.0 - abs(row.index - 2) - row.index / 10) for row in rows]
        return Sampled(
            [_letter(row) for row in rows],
            [None if a is None else k for a, k in zip(asked, known, strict=True)],
        )


def _letter(row: SampleRow) -> int:
    """Sequence 3 ends early, so that its sum is the best of all."""
    ends = row.index == 3 and row.position - row.prompt_length == 1
    return EOS if ends else b"abcdefgh"[row.index]


def rated(**options: Any) -> Any:
    return serving(backend=Rated(64), **options)


async def test_the_likeliest_a_token_are_returned_and_all_tokens_are_counted() -> None:
    async with rated() as house:
        body = {"prompt": "hello", "max_tokens": 4, "n": 2, "best_of": 5}
        reply = (await house.post(COMPLETIONS, body)).json()
        assert texts(reply) == ["cccc", "bbbb"]
        assert [c["index"] for c in reply["choices"]] == [0, 1]
        assert all(c["logprobs"] is None for c in reply["choices"])
        assert reply["usage"]["completion_tokens"] == 4 * 4 + 2
        await house.idle()


async def test_a_stop_string_ends_a_candidate_like_any_other_sequence() -> None:
    async with rated() as house:
        body = {"prompt": "hello", "max_tokens": 4, "n": 5, "best_of": 5, "stop": "cc"}
        reply = (await house.post(COMPLETIONS, body)).json()
        assert texts(reply) == ["", "bbbb", "d", "aaaa", "eeee"]
        assert reply["usage"]["completion_tokens"] == 2 + 4 + 2 + 4 + 4
        await house.idle()


async def test_logprobs_are_shown_as_they_were_asked_for() -> None:
    async with rated() as house:
        body = {"prompt": "hello", "max_tokens": 2, "best_of": 3, "logprobs": 0}
        reply = (await house.post(COMPLETIONS, body)).json()
        assert reply["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx([-1.2, -1.2])


async def test_n_alone_is_in_the_order_of_the_sequences() -> None:
    async with rated() as house:
        reply = await house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2, "n": 3})
        assert texts(reply.json()) == ["aa", "bb", "cc"]


async def test_openai_python_asks_for_the_best_of_several() -> None:
    async with (
        rated(limits={"max_open_requests": 8}) as house,
        AsyncOpenAI(base_url=house.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        ask = {"model": MODEL, "prompt": "hello", "max_tokens": 4}
        reply = await client.completions.create(**ask, n=1, best_of=4)
        assert [choice.text for choice in reply.choices] == ["cccc"]
        assert reply.usage.completion_tokens == 3 * 4 + 2
        for wrong in ({"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}, {"best_of": 9}):
            with pytest.raises(BadRequestError) as caught:
                await client.completions.create(**ask, **wrong)
            assert caught.value.param == "best_of"
        stream = await client.completions.create(**ask, best_of=1, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "aaaa"
