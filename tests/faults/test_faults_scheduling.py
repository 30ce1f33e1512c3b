"""Long prompts beside running streams, and prompts in chunks."""

from __future__ import annotations

import asyncio
from importlib.metadata import entry_points
from itertools import pairwise

import pytest
from support.answers import at_once, gauge
from support.engines import Harness
from support.hashed import HashedBackend
from support.serving import COMPLETIONS, House, chunks, serving, until
from support.sockets import held_at

from engine.batch import Batch
from policies.decode_priority import DecodePriority
from policies.fcfs import FCFS

pytestmark = pytest.mark.usefixtures("one_thread")

BUILT_IN = {
    entry.name: entry.load()
    for entry in entry_points(group="octavo.policies")
    if entry.value.startswith("policies.")
}
"""With the parameters that users get."""

# ── B32 ───────────────────────────────────────────────────────────────────────────────────────


def meanwhile(batches: list[Batch], request: int) -> list[Batch]:
    """The steps from the first that computes some of a request's prompt to the last that does."""
    steps = [
        number
        for number, batch in enumerate(batches)
        if any(row.request == request and row.count > 1 for row in batch.rows)
    ]
    return list(batches[steps[0] : steps[-1] + 1])


@pytest.mark.parametrize("policy", BUILT_IN.values(), ids=BUILT_IN.keys())
def test_b32_every_stream_gets_its_token_in_every_step_of_a_long_prompt(policy) -> None:
    most = {}
    for length in (1000, 4000):
        harness = Harness(policy=policy, blocks=400, model_len=8192, budget=64)
        streams = [harness.submit(10, 300) for _ in range(2)]
        for _ in range(21):
            harness.step()
        long = harness.submit(length, 4)
        harness.run()
        steps = meanwhile(harness.backend.batches, long)
        if policy is not BUILT_IN["static-batch"]:  # where a batch is over before the next begins
            assert len(steps) >= length / 64
            for batch in steps:
                rows = {row.request: row.count for row in batch.rows}
                assert [rows.get(stream) for stream in streams] == [1, 1]
        most[length] = max(batch.tokens for batch in harness.backend.batches)
        assert [len(harness.tokens(stream)) for stream in streams] == [300, 300]
    assert most[1000] == most[4000] <= 64


@pytest.mark.parametrize("policy", [FCFS, DecodePriority])
async def test_b32_over_http_two_streams_go_on_token_by_token(policy) -> None:
    gate, hooks = held_at(20)
    async with serving(
        policy=policy,
        hooks=hooks,
        blocks=400,
        model_len=8192,
        step_tokens=64,
        max_body_bytes=1 << 22,
    ) as house:
        body = {"prompt": "x", "max_tokens": 300, "stream": True}
        streams = [asyncio.ensure_future(house.post(COMPLETIONS, body)) for _ in range(2)]
        await until(lambda: len(house.backend.batches) == 21)
        long = {"prompt": [7] * 4000, "max_tokens": 4}
        asked = asyncio.ensure_future(house.post(COMPLETIONS, long))
        await until(lambda: house.bridge.open_requests == 3)
        gate.set()
        for reply in await asyncio.gather(*streams):
            assert "".join(c["choices"][0]["text"] for c in chunks(reply.content)) == "x" * 300
        assert (await asked).json()["usage"]["completion_tokens"] == 4
        steps = meanwhile(house.backend.batches, 3)
        assert len(steps) >= 4000 / 64
        assert all({row.request for row in batch.rows} == {1, 2, 3} for batch in steps)
        assert max(batch.tokens for batch in steps) <= 64
        await house.idle()


# ── B33 ───────────────────────────────────────────────────────────────────────────────────────

LENGTHS = (31, 32, 33, 200)


def bodies() -> list[dict]:
    """A neighbour that decodes from the beginning, then each prompt plain and with all it has."""
    made = [{"prompt": [5, 6, 7], "max_tokens": 60, "temperature": 0}]
    for number, length in enumerate(LENGTHS):
        ids = [(number * 31 + 7 * i) % 64 for i in range(length)]
        plain = {"prompt": ids, "max_tokens": 5, "temperature": 0}
        made += [plain, plain | {"logprobs": 1, "echo": True}]
    return [body | {"stream": True, "stream_options": {"include_usage": True}} for body in made]


async def served(step_tokens: int) -> tuple[list[tuple], House]:
    """What is said in steps of so many tokens, nothing being cached."""
    gate, hooks = held_at(0)
    backend = HashedBackend(128, hooks=hooks)
    async with serving(
        backend=backend, blocks=128, step_tokens=step_tokens, rows=16, prefix_cache=False,
        model_len=512,
    ) as house:  # fmt: skip
        replies = await at_once(house, gate, bodies())
        page = (await house.client.get("/metrics")).text
        prompts = sum(len(body["prompt"]) for body in bodies())
        assert gauge(page, "octavo_prompt_tokens_total") == prompts
        await house.idle()
        return [spoken(reply) for reply in replies], house


def spoken(reply) -> tuple[str, list, dict]:
    *said, last = chunks(reply.content)
    choices = [chunk["choices"][0] for chunk in said]
    entries = [
        entry
        for choice in choices
        for entry in zip(*(choice["logprobs"] or {"": []}).values(), strict=True)
    ]
    usage = {key: last["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
    return "".join(choice["text"] for choice in choices), entries, usage


async def test_b33_chunks_change_no_text_no_number_and_no_count() -> None:
    expected, _ = await served(1000)
    assert [usage["completion_tokens"] for *_, usage in expected] == [60, *[5] * 8]
    for step_tokens in (16, 32):
        said, house = await served(step_tokens)
        assert said == expected
        for request, body in enumerate(bodies(), 1):
            rows = [
                row for batch in house.backend.batches for row in batch.rows
                if row.request == request
            ]  # fmt: skip
            prompt = [row for row in rows if row.start < len(body["prompt"])]
            assert sum(row.count for row in prompt) == len(body["prompt"])
            assert [row.samples for row in prompt] == [False] * (len(prompt) - 1) + [True]


@pytest.mark.parametrize(
    ("length", "budget", "expected"),
    [(31, 16, [16, 15]), (32, 16, [16, 16]), (33, 16, [16, 16, 1]), (33, 32, [32, 1])],
)
@pytest.mark.parametrize("depth", [0, 1])
def test_b33_a_chunk_is_counted_when_it_is_computed(length, budget, expected, depth) -> None:
    harness = Harness(budget=budget, depth=depth)
    request = harness.submit(length, 3)
    counted = [0]
    while not harness.outputs[request, 0]:
        harness.step()
        total = harness.scheduler.counters.prompt_tokens
        if total != counted[-1]:
            counted.append(total)
    assert [now - before for before, now in pairwise(counted)] == expected
    harness.run()
    assert len(harness.tokens(request)) == 3
