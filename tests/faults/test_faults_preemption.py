"""Too few blocks: who gives way loses no text, and nobody waits for what can never be."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from support.answers import at_once, gauge
from support.built_in import BUILT_IN
from support.engines import Harness
from support.hashed import HashedBackend
from support.scripts import hashed
from support.serving import COMPLETIONS, House, chunks, serving
from support.sockets import held_at

from engine.backends.scripted import ScriptedBackend
from engine.blocks import blocks_for

pytestmark = pytest.mark.usefixtures("one_thread")

EVERY_POLICY = pytest.mark.parametrize("policy", BUILT_IN.values(), ids=BUILT_IN.keys())

# ── B27 ───────────────────────────────────────────────────────────────────────────────────────


def three() -> list[dict]:
    """Prompts of 40 tokens; one with a penalty; the last gets a stop string from its own text."""
    rng = random.Random(27)
    fields = {"temperature": 0, "max_tokens": 48, "stream": True, "logprobs": 2}
    fields["stream_options"] = {"include_usage": True}
    return [
        {**fields, **extra, "prompt": [rng.randrange(64) for _ in range(40)]}
        for extra in ({}, {"presence_penalty": 1}, {"stop": []})
    ]


def spoken(reply) -> tuple[str, list, str, dict]:
    """Text, log-probabilities, how it ended and the usage."""
    *said, last = chunks(reply.content)
    choices = [chunk["choices"][0] for chunk in said]
    logprobs = [entry for choice in choices for entry in choice["logprobs"]["token_logprobs"]]
    usage = {key: last["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
    text = "".join(choice["text"] for choice in choices)
    return text, logprobs, choices[-1]["finish_reason"], usage


async def served(bodies: list[dict], blocks: int, depth: int) -> tuple[list, House]:
    gate, hooks = held_at(0)
    backend = HashedBackend(blocks, hooks=hooks)
    async with serving(backend=backend, blocks=blocks, depth=depth) as house:
        replies = await at_once(house, gate, bodies)
        await house.idle()
        return [spoken(reply) for reply in replies], house


@pytest.mark.parametrize("depth", [0, 1])
async def test_b27_who_gave_way_says_what_it_would_have_said(depth) -> None:
    bodies = three()
    (*_, (text, *_)), _ = await served(bodies, 64, depth)
    assert len(text) == 48
    cut = next(i for i in range(20, 46) if text.index(text[i : i + 3]) == i)
    bodies[-1]["stop"] = [text[cut : cut + 3]]
    expected, roomy = await served(bodies, 64, depth)
    assert roomy.scheduler.counters.preemptions == 0
    assert expected[-1][0] == text[:cut]
    said, tight = await served(bodies, 9, depth)
    assert tight.scheduler.counters.preemptions > 0
    assert tight.scheduler.counters.recomputed_tokens > 0
    assert said == expected
    assert [usage["prompt_tokens"] for *_, usage in said] == [40] * 3
    assert [usage["completion_tokens"] for *_, usage in said][:2] == [48] * 2


async def test_b27_nor_does_it_matter_how_often_one_gives_way() -> None:
    rng = random.Random(28)
    bodies = [
        {**body, "prompt": [rng.randrange(64) for _ in range(40)], "max_tokens": 100}
        for body in [*three(), *three()]
    ]
    expected, _ = await served(bodies, 64, 0)
    said, tight = await served(bodies, 9, 0)
    assert said == expected
    assert max(restarts(tight.backend, request) for request in range(1, 7)) >= 2


def restarts(backend: ScriptedBackend, request: int) -> int:
    """How often a request was computed again from an earlier token."""
    rows = [row for batch in backend.batches for row in batch.rows if row.request == request]
    return sum(then.start < row.start + row.count for row, then in pairwise(rows))


# ── B29 ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("prompt", "max_tokens"), [(300, 1), (150, 100), (193, 1), (192, 2)])
async def test_b29_what_the_pool_can_never_hold_is_refused_at_once(
    prompt, max_tokens, stream
) -> None:
    """12 blocks of 16 hold 192 tokens. Such a pool is refused at start, where it is not the whole
    of what the model can take; behind this door it is met as well."""
    async with serving(model_len=512, blocks=12, script=lambda row: 65) as house:
        body = {"prompt": [7] * prompt, "max_tokens": max_tokens, "stream": stream}
        reply = await house.post(COMPLETIONS, body)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
        assert f"needs {blocks_for(prompt + max_tokens - 1)} KV blocks of 16" in error["message"]
        assert "has 12" in error["message"]
        await house.probe()
        await house.idle()


@pytest.mark.parametrize(("prompt", "max_tokens"), [(192, 1), (191, 2), (150, 43), (1, 192)])
async def test_b29_what_just_fits_is_served_to_its_end(prompt, max_tokens) -> None:
    """The last token of an answer needs no KV, and no block is reserved for anything else."""
    async with serving(model_len=512, blocks=12, script=lambda row: 65) as house:
        body = {"prompt": [7] * prompt, "max_tokens": max_tokens}
        for _ in range(2):  # the second time most of it is cached
            reply = (await house.post(COMPLETIONS, body)).json()
            assert reply["usage"]["completion_tokens"] == max_tokens
            assert reply["choices"][0]["finish_reason"] == "length"
        await house.idle()


# ── B30 ───────────────────────────────────────────────────────────────────────────────────────


@EVERY_POLICY
@pytest.mark.parametrize(("count", "share"), [(2, 0.6), (3, 0.4)])
@pytest.mark.parametrize("depth", [0, 1])
def test_b30_equals_that_do_not_fit_together_both_get_on(policy, count, share, depth) -> None:
    blocks, prompt = 20, 32
    answer = int(blocks * share) * 16 - prompt
    harness = Harness(
        blocks=blocks, policy=policy, script=hashed, model_len=1024, depth=depth, budget=64
    )
    requests = [harness.submit(prompt, answer) for _ in range(count)]
    harness.run(limit=5000)
    assert [len(harness.tokens(request)) for request in requests] == [answer] * count
    counters = harness.scheduler.counters
    work = count * (prompt + answer)
    assert counters.recomputed_tokens <= work
    assert counters.preemptions <= 2 * count
    assert not restarts(harness.backend, requests[0]), (
        "who came first never gives way to its equals"
    )


async def test_b30_over_http_too_two_that_need_most_of_the_pool_both_end() -> None:
    gate, hooks = held_at(0)
    backend = HashedBackend(20, hooks=hooks)
    async with serving(backend=backend, blocks=20, model_len=512) as house:
        bodies = [{"prompt": [n] * 32, "max_tokens": 160, "temperature": 0} for n in (1, 2)]
        for reply in await at_once(house, gate, bodies):
            assert reply.json()["usage"]["completion_tokens"] == 160
        page = (await house.client.get("/metrics")).text
        assert 1 <= gauge(page, "octavo_preemptions_total") <= 4
        assert gauge(page, "octavo_recomputed_tokens_total") <= 2 * 192
        await house.idle()
