"""Over HTTP nobody can tell an answer that was guessed from one that was not, but by its pace."""

from __future__ import annotations

from typing import Any

import pytest
from support.drafts import Guesser, repeating
from support.serving import COMPLETIONS, chunks, serving

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
