"""Penalties, the edges of the sampling controls, several choices, and log-probabilities.

The real sampler draws from made-up logits, which the same history always gives.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.answers import asking, at_once
from support.hashed import HashedBackend
from support.serving import CHAT, COMPLETIONS, chunks, serving, until
from support.sockets import held_at

from engine.backends.scripted import ScriptedBackend
from engine.controls import Sampled, SampleRow

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("one_thread"),
]

PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
MODES = pytest.mark.parametrize("stream", [True, False])


class Letters(HashedBackend):
    """Says any byte, but never ends by itself."""

    vocab = 256


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drawing():
    """A house with the real sampler."""
    async with serving(backend=Letters(64), rows=16) as drawing:
        yield drawing
        await drawing.idle()


async def ids(house, **fields: Any) -> list[int]:
    """The token ids of an answer."""
    body = {"prompt": "blue blue blue sky", "max_tokens": 12, "return_token_ids": True, **fields}
    reply = await house.post(COMPLETIONS, body)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["token_ids"]


async def refused(house, param: str, value: Any, path: str = COMPLETIONS, **fields: Any) -> None:
    """The value is refused, and the field that it stands in is named."""
    reply = await house.post(path, asking(path, **fields, **{param: value}))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), value


# ── B40 ───────────────────────────────────────────────────────────────────────────────────────

PENALTIES = [
    {},
    {"repetition_penalty": 1.8},
    {"frequency_penalty": 2},
    {"presence_penalty": -2},
]


async def together(bodies: Sequence[dict]) -> list[list[int]]:
    """What these say, side by side from the first step on and in this order."""
    gate, hooks = held_at(0)
    async with serving(backend=Letters(64, hooks=hooks), rows=16) as house:
        replies = await at_once(house, gate, bodies)
        await house.idle()
        return [reply.json()["choices"][0]["token_ids"] for reply in replies]


async def test_b40_a_penalty_holds_for_its_own_request_and_for_nobody_beside_it(drawing) -> None:
    base = {"prompt": "blue blue blue sky", "temperature": 0, "return_token_ids": True}
    bodies = [base | {"max_tokens": 24} | penalty for penalty in PENALTIES]
    solo = [(await drawing.post(COMPLETIONS, b)).json()["choices"][0]["token_ids"] for b in bodies]
    assert len({tuple(each) for each in solo}) > 2, "they matter"
    plain, *penalised = range(len(bodies))
    for other in penalised:
        for order in ([plain, other], [other, plain]):
            assert await together([bodies[k] for k in order]) == [solo[k] for k in order]
    mixed = [k % 4 for k in range(8)]
    assert await together([bodies[k] for k in mixed]) == [solo[k] for k in mixed]
    short = {**bodies[1], "max_tokens": 5}
    assert await together([short, bodies[0]]) == [solo[1][:5], solo[0]], "one leaves first"


class Two(ScriptedBackend):
    """`b` is a little likelier than `c`, and nothing else is likely at all."""

    def _sample(self, rows: Sequence[SampleRow]) -> Sampled:
        import torch

        from engine.backends.sampler import sample

        logits = np.full((len(rows), 256), -50, dtype=np.float32)
        logits[:, ord("b")], logits[:, ord("c")] = 3, 2.5
        return sample(torch.from_numpy(logits), rows)


@pytest.mark.parametrize(
    ("penalty", "text"),
    [
        ({}, "bbbb"),
        ({"presence_penalty": 1}, "bcbb"),  # b, then c is better; then both are, equally, worse
        ({"frequency_penalty": 1}, "bcbc"),
        ({"repetition_penalty": 1.3}, "cbbb"),  # 3 / 1.3 is less than 2.5
    ],
)
async def test_b40_only_repetition_counts_the_prompt(penalty, text) -> None:
    async with serving(backend=Two(64)) as house:
        body = {"prompt": "bbb", "max_tokens": 4, "temperature": 0, **penalty}
        assert (await house.post(COMPLETIONS, body)).json()["choices"][0]["text"] == text


@PATHS
async def test_b40_penalties_out_of_range_are_refused_and_none_is_zero(drawing, path) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        for bad in (2.1, -2.1, "1", True, [1], 1e300):
            await refused(drawing, name, bad, path)
        for edge in (2, -2, 0, None):
            reply = await drawing.post(path, asking(path, max_tokens=2, **{name: edge}))
            assert reply.status_code == 200
    for bad in (0, -1, "1", 1e300):
        await refused(drawing, "repetition_penalty", bad, path)
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1}
    assert await ids(drawing, temperature=0, **neutral) == await ids(drawing, temperature=0)


# ── B41 ───────────────────────────────────────────────────────────────────────────────────────


async def test_b41_temperature_0_is_the_best_token_whatever_else_is_set(drawing) -> None:
    best = await ids(drawing, temperature=0)
    for fields in (
        {"temperature": 0, "top_p": 0.1, "seed": 5},
        {"temperature": 0, "top_k": 3, "min_p": 0.5, "seed": 6},
        {"temperature": 0.0, "top_p": 0},
        {"temperature": -0.0},
        {"temperature": 1e-6, "seed": 1},
        {"temperature": 5e-324, "seed": 1},
        {"temperature": 1.5, "top_k": 1, "seed": 1},
        {"temperature": 1.5, "top_p": 0, "seed": 1},
        {"temperature": 1.5, "top_p": 1e-9, "seed": 1},
        {"temperature": 2, "min_p": 1, "seed": 1},
    ):
        assert await ids(drawing, **fields) == best, fields


async def test_b41_what_keeps_all_tokens_changes_nothing(drawing) -> None:
    for seed in range(3):
        plain = await ids(drawing, temperature=1.5, seed=seed)
        for fields in (
            {"top_p": 1},
            {"top_k": 0},
            {"top_k": -1},
            {"top_k": 49152},
            {"top_k": 10**9},
            {"min_p": 0},
            {"top_p": None, "top_k": None, "min_p": None},
        ):
            assert await ids(drawing, temperature=1.5, seed=seed, **fields) == plain, fields


async def test_b41_seeds_differ_unless_one_token_is_kept(drawing) -> None:
    texts = {tuple(await ids(drawing, temperature=1.5, seed=seed)) for seed in range(10)}
    assert len(texts) > 5
    kept = {tuple(await ids(drawing, temperature=1.5, top_k=1, seed=seed)) for seed in range(10)}
    assert len(kept) == 1


@PATHS
async def test_b41_what_is_out_of_range_or_no_number_is_refused(drawing, path) -> None:
    for name, values in (
        ("temperature", (2.1, -1, -1e-9, "0.5", True, [0], 1e300)),
        ("top_p", (1.1, -0.1, "1", False)),
        ("top_k", (-2, 1.5, "1", True)),
        ("min_p", (1.5, -0.1, "0")),
    ):
        for bad in values:
            await refused(drawing, name, bad, path)
        for literal in ("NaN", "Infinity", "-Infinity", "nan", "1e999", "0x1", "01", ".5", "+1"):
            body = asking(path)
            body.pop("temperature")
            raw = json.dumps(body)[:-1] + f', "{name}": {literal}}}'
            reply = await drawing.post(path, raw.encode())
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")


# ── B42 ───────────────────────────────────────────────────────────────────────────────────────


async def choices(house, path: str, **fields: Any) -> tuple[list, list, dict]:
    """Texts and ends of the choices by index, and the usage; streamed or not."""
    reply = await house.post(path, asking(path, **fields))
    assert reply.status_code == 200, reply.text
    if not fields.get("stream"):
        body = reply.json()
        found = body["choices"]
        assert [choice["index"] for choice in found] == list(range(len(found)))
        texts = [c["message"]["content"] if path == CHAT else c["text"] for c in found]
        return texts, [choice["finish_reason"] for choice in found], body["usage"]
    *parts, last = chunks(reply.content)
    said = [part["choices"][0] for part in parts]
    count = 1 + max(choice["index"] for choice in said)
    texts, reasons = [""] * count, [None] * count
    for choice in said:
        index = choice["index"]
        assert reasons[index] is None, "nothing comes after the end"
        texts[index] += (choice["delta"].get("content") or "") if path == CHAT else choice["text"]
        reasons[index] = choice["finish_reason"]
    return texts, reasons, last["usage"]


@PATHS
async def test_b42_four_choices_differ_and_come_again_streamed_or_not(drawing, path) -> None:
    fields = {"n": 4, "seed": 5, "temperature": 1, "max_tokens": 12}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    texts, reasons, usage = await choices(drawing, path, **fields)
    assert len(set(texts)) == 4
    assert reasons == ["length"] * 4
    alone = await choices(drawing, path, **fields | {"n": 1})
    assert alone[0] == texts[:1]
    for extra in ({}, streamed, streamed):
        again = await choices(drawing, path, **fields, **extra)
        assert again[:2] == (texts, reasons)
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert again[2][key] == usage[key]
    assert usage["prompt_tokens"] == alone[2]["prompt_tokens"]
    assert usage["completion_tokens"] == 48


@MODES
async def test_b42_greedy_choices_are_equal_and_stops_end_each_by_itself(drawing, stream) -> None:
    extra = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    greedy, *_ = await choices(drawing, COMPLETIONS, n=4, max_tokens=12, **extra)
    assert len(set(greedy)) == 1
    fields = {"n": 4, "seed": 5, "temperature": 1, "max_tokens": 12, "logit_bias": {"65": 4}}
    texts, reasons, usage = await choices(drawing, COMPLETIONS, stop="A", **fields, **extra)
    whole, *_ = await choices(drawing, COMPLETIONS, **fields)
    assert texts == [text.partition("A")[0] for text in whole]
    assert reasons == ["stop" if "A" in text else "length" for text in whole]
    assert len(set(map(len, texts))) > 1
    ends = [len((text.partition("A")[0]).encode()) for text in whole]
    assert usage["completion_tokens"] <= 48
    assert usage["completion_tokens"] >= min(ends)


async def test_b42_counts_that_cannot_be_are_refused(drawing) -> None:
    for path in (CHAT, COMPLETIONS):
        for bad in (0, -1, 129, 100_000, "2", 1.5, True):
            await refused(drawing, "n", bad, path)
    await refused(drawing, "best_of", 2, n=3)
    await refused(drawing, "best_of", 2, stream=True)
    for bad in (0, -1, 129, "2"):
        await refused(drawing, "best_of", bad)


@MODES
async def test_b42_leaving_in_the_middle_frees_all_choices(stream) -> None:
    gate, hooks = held_at(5)
    async with serving(hooks=hooks, model_len=1024, blocks=256) as house:
        body = asking(COMPLETIONS, n=4, max_tokens=900, stream=stream, ignore_eos=True)
        asked = asyncio.ensure_future(house.post(COMPLETIONS, body))
        await until(lambda: len(house.backend.batches) == 6)
        asked.cancel()
        await until(lambda: house.bridge.open_requests == 0)
        gate.set()
        await house.idle()
        assert house.scheduler.counters.cancelled == 1
        assert house.scheduler.counters.generated_tokens < 4 * 10


# ── B43 ───────────────────────────────────────────────────────────────────────────────────────


async def entries(house, path: str, **fields: Any) -> list[tuple[str, float, list]]:
    """(token, logprob, alternatives) of each token of an answer; streamed or not."""
    reply = await house.post(path, asking(path, max_tokens=6, **fields))
    assert reply.status_code == 200, reply.text
    if fields.get("stream"):
        found = [chunk["choices"][0] for chunk in chunks(reply.content)]
        assert [c["finish_reason"] for c in found] == [None] * (len(found) - 1) + ["length"]
    else:
        found = reply.json()["choices"]
    made: list[tuple[str, float, list]] = []
    for choice in found:
        logprobs = choice["logprobs"]
        if path == CHAT:
            for entry in logprobs["content"]:
                assert bytes(entry["bytes"]).decode("utf-8", "replace") or not entry["bytes"]
                top = [(each["token"], each["logprob"]) for each in entry["top_logprobs"]]
                made.append((entry["token"], entry["logprob"], top))
        else:
            columns = (logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs"))
            made += [(t, p, list((top or {}).items())) for t, p, top in zip(*columns, strict=True)]
    return made


@MODES
@pytest.mark.parametrize("count", [None, 0, 3, 20])
async def test_b43_chat_has_an_entry_a_token_with_so_many_alternatives(
    drawing, count, stream
) -> None:
    fields = {"logprobs": True} | ({} if count is None else {"top_logprobs": count})
    said = await entries(drawing, CHAT, stream=stream, **fields)
    assert len(said) == 6
    for token, logprob, top in said:
        assert logprob <= 0
        assert len(top) == (count or 0)
        numbers = [number for _, number in top]
        assert numbers == sorted(numbers, reverse=True)
        assert sum(map(math.exp, numbers)) <= 1 + 1e-6
        assert not top or top[0] == (token, logprob), "greedy takes the best"


@MODES
@pytest.mark.parametrize("count", [0, 1, 5])
async def test_b43_completions_have_the_best_and_the_chosen(drawing, count, stream) -> None:
    fields = {"logprobs": count, "temperature": 2, "seed": 3}
    said = await entries(drawing, COMPLETIONS, stream=stream, **fields)
    assert len(said) == 6
    assert any(len(top) == count + 1 for *_, top in said), "a token that is none of the best"
    for token, logprob, top in said:
        assert logprob <= 0
        assert dict(top)[token] == logprob
        assert len(top) in (count, count + 1)
        assert sum(math.exp(number) for _, number in top) <= 1 + 1e-6


async def test_b43_numbers_are_the_models_own_at_any_temperature(drawing) -> None:
    """The answer is forced to the same tokens: what may be chosen changes no number."""
    chosen = await entries(drawing, COMPLETIONS, logprobs=5, temperature=0)
    for fields in ({"temperature": 1.5, "top_k": 1}, {"temperature": 2, "top_p": 0}):
        assert await entries(drawing, COMPLETIONS, logprobs=5, **fields) == chosen
    forced = {"logit_bias": {"65": 100}}
    first, *others = [
        await entries(drawing, CHAT, logprobs=True, top_logprobs=3, **forced, **fields)
        for fields in (
            {"temperature": 0},
            {"temperature": 1.5, "seed": 1},
            {"temperature": 1.5, "seed": 2, "stream": True},
            {"temperature": 0, "presence_penalty": 1},
        )
    ]
    assert [token for token, *_ in first] == ["A"] * 6
    assert others == [first] * 3


async def test_b43_counts_out_of_range_and_half_a_pair_are_refused(drawing) -> None:
    for bad in (21, -1, 1.5, "3", True):
        await refused(drawing, "top_logprobs", bad, CHAT, logprobs=True)
    for alone in (0, 3):
        await refused(drawing, "top_logprobs", alone, CHAT)
        await refused(drawing, "top_logprobs", alone, CHAT, logprobs=False)
    for bad in (1, "true", [True]):
        await refused(drawing, "logprobs", bad, CHAT)
    for bad in (6, -1, True, 1.5, "1"):
        await refused(drawing, "logprobs", bad, COMPLETIONS)
