"""Over HTTP nobody can tell an answer that was guessed from one that was not, but by its pace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.drafts import Guesser, repeating
from support.serving import COMPLETIONS, chunks, serving

from engine.cost import LinearCost
from engine.speculation import PromptLookup, SpeculationSettings

PROMPT = "All work and no play makes Jack a dull boy. "

ASKED: dict[str, dict[str, Any]] = {
    "to the end": {"max_tokens": 100},
    "stop string": {"max_tokens": 100, "stop": ["dull"]},
    "stop string across guesses": {"max_tokens": 100, "stop": ["boy. All w"]},
    "logprobs": {"max_tokens": 30, "logprobs": 2},
    "several": {"max_tokens": 50, "n": 3, "stop": ["Jack"]},
    "stop token": {"max_tokens": 100, "stop_token_ids": [ord("J")]},
}


async def answers(asked: dict[str, Any], guesser: Guesser | None) -> list[Any]:
    """Choices and usage, at once and streamed."""
    body = {"prompt": PROMPT, "temperature": 0, **asked}
    async with serving(drafter=guesser) as house:
        whole = (await house.post(COMPLETIONS, body)).json()
        streamed = await house.post(
            COMPLETIONS, {**body, "stream": True, "stream_options": {"include_usage": True}}
        )
        await house.idle()
        accepted = house.scheduler.counters.accepted_tokens
        assert (accepted > 0) == (guesser is not None)
    parts = chunks(streamed.content)
    texts = ["" for _ in range(asked.get("n", 1))]
    ends = [None for _ in texts]
    for choice in (choice for part in parts for choice in part["choices"]):
        texts[choice["index"]] += choice["text"]
        ends[choice["index"]] = choice["finish_reason"] or ends[choice["index"]]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert ends == [choice["finish_reason"] for choice in whole["choices"]]
    return [whole["choices"], whole["usage"]["completion_tokens"], parts[-1]["usage"]]


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
async def test_an_answer_is_the_same_whether_it_was_guessed_or_not(asked) -> None:
    expected = await answers(asked, None)
    assert await answers(asked, Guesser(repeating, wrong=1, most=12)) == expected


GUIDED: dict[str, Any] = {
    "guided_regex": r"(All work and no play makes [JM]a(ck|x) a dull boy\. )+",
    "max_tokens": 100,
}
FREE: dict[str, Any] = {"max_tokens": 100}


async def beside(*asked: dict[str, Any], guessing: bool) -> tuple[list[Any], int, int]:
    """The answers to requests at once, and how many tokens were guessed, and how many right."""
    cost = LinearCost(base=4e-3, decode=4e-4, chunk_context=1e-7)
    drafter = PromptLookup(SpeculationSettings(cost)) if guessing else None
    async with serving(drafter=drafter, blocks=256) as house:
        bodies = [{"prompt": PROMPT, "temperature": 0, **each} for each in asked]
        replies = await asyncio.gather(*(house.post(COMPLETIONS, body) for body in bodies))
        await house.idle()
        counters = house.scheduler.counters
        said = [reply.json()["choices"][0] for reply in replies]
        return said, counters.draft_tokens, counters.accepted_tokens


async def test_answers_under_a_grammar_are_not_guessed_and_those_beside_them_are() -> None:
    expected, *_ = await beside(GUIDED, FREE, GUIDED, FREE, guessing=False)
    assert {choice["text"] for choice in expected} == {(3 * PROMPT)[:100]}
    said, drafted, accepted = await beside(GUIDED, FREE, GUIDED, FREE, guessing=True)
    assert said == expected
    assert drafted >= accepted > 0
    alone, drafted, _ = await beside(GUIDED, GUIDED, guessing=True)
    assert alone == expected[:1] * 2
    assert drafted == 0
