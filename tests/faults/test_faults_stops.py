"""Stop strings that lie across tokens, or end inside one."""

from __future__ import annotations

import threading

import pytest
from support.answers import answer
from support.serving import CHAT, COMPLETIONS, serving

PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
MODES = pytest.mark.parametrize("stream", [True, False])
DEF = 33203
USAGE = {"include_usage": True}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@PATHS
@MODES
@pytest.mark.parametrize(
    ("stop", "text", "tokens"), [("FD", "DE", 2), ("EF", "D", 1), ("D", "", 1), ("FDEFD", "DE", 3)]
)
async def test_b05_a_stop_string_over_a_token_boundary_leaks_nothing(
    house, path, stream, stop, text, tokens
) -> None:
    fields = {"logit_bias": {str(DEF): 100}, "max_tokens": 6, "stop": [stop], "stream": stream}
    got = await answer(house, path, **fields, **({"stream_options": USAGE} if stream else {}))
    assert got.text == text
    assert got.finish_reason == "stop"
    assert got.usage["completion_tokens"] == tokens


async def test_b05_a_stop_string_ends_the_computation(smollm2) -> None:
    answered = threading.Event()
    hooks = {8: lambda batch: answered.wait(60)}
    async with serving(tokenizer=smollm2, hooks=hooks, model_len=1024) as house:
        fields = {"logit_bias": {str(DEF): 100}, "max_tokens": 900, "stop": ["FD"]}
        await answer(house, COMPLETIONS, **fields)  # comes while the engine is held at step 8
        answered.set()
        await house.idle()
        assert house.scheduler.counters.generated_tokens < 10


TEXT = "The quick brown fox jumps over 日本, naïve as ever; “quoted” 🦙🧪 and done."


@PATHS
async def test_b05_a_stop_string_over_any_two_tokens_of_real_text_cuts_there(
    house, speaker, smollm2, path
) -> None:
    ids = smollm2.encode(TEXT)
    speaker.ids = [*ids, 2]
    ends = [len(smollm2.decode(ids[:place]).rstrip("\ufffd")) for place in range(len(ids) + 1)]
    edges = [end for end in dict.fromkeys(ends) if 2 <= end <= len(TEXT) - 2]
    assert len(edges) > 12
    assert (await answer(house, path)).text == TEXT
    for edge in edges[::3]:
        stop = TEXT[edge - 2 : edge + 2]
        for stream in (False, True):
            got = await answer(house, path, stop=[stop], stream=stream)
            assert (got.text, got.finish_reason) == (TEXT[: TEXT.index(stop)], "stop")
