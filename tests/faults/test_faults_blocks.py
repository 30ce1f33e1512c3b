"""KV blocks: what is counted, what is shared, and what becomes of a request that leaves."""

from __future__ import annotations

import asyncio
import random

import pytest
from support.answers import gauge
from support.engines import Harness
from support.hashed import HashedBackend
from support.scripts import hashed
from support.serving import COMPLETIONS, serving, until
from support.sockets import Socket

from engine.backends.scripted import ScriptedBackend
from engine.controls import RowControls, SampleRow

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = [15, 16, 17, 31, 32, 33, 63, 64, 65, 80, 95, 96, 97]


def byte(row: SampleRow) -> int:
    """A letter that depends on everything before it."""
    return hashed(row) % 128


def prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(64) for _ in range(length)]


# ── B19 ───────────────────────────────────────────────────────────────────────────────────────


async def test_b19_two_hundred_requests_later_all_blocks_are_free_and_usable() -> None:
    """Half of them begin with the same 64 tokens."""
    rng = random.Random(19)
    shared = prompt(rng, 64)
    async with serving(blocks=32, model_len=512) as house:
        for number in range(200):
            ids = prompt(rng, LENGTHS[number % len(LENGTHS)])
            body = {"prompt": shared + ids if number % 2 else ids, "max_tokens": 3}
            assert (await house.post(COMPLETIONS, body)).status_code == 200
            if number % 5 == 0:
                page = (await house.client.get("/metrics")).text
                assert gauge(page, "octavo_kv_usage_ratio") == 0
                assert gauge(page, 'octavo_kv_blocks{state="free"}') == 32
        assert gauge(page, 'octavo_kv_blocks{state="cached"}') > 20
        whole = {"prompt": prompt(rng, 32 * 16 - 4), "max_tokens": 4}
        reply = await house.post(COMPLETIONS, whole)
        assert reply.json()["usage"]["completion_tokens"] == 4
        await house.idle()


@pytest.mark.parametrize("depth", [0, 1])
def test_b19_no_step_loses_a_block_or_finds_a_prefix_that_is_not_there(depth) -> None:
    """Invariants are checked after each step, and each row reads back its own tokens."""
    rng = random.Random(19)
    shared = prompt(rng, 64)
    harness = Harness(blocks=20, rows=4, budget=48, depth=depth, script=hashed)
    for number in range(200):
        ids = prompt(rng, LENGTHS[number % len(LENGTHS)])
        harness.submit(shared + ids if number % 2 else ids, max_tokens=rng.randrange(1, 20))
        for _ in range(rng.randrange(4)):
            harness.step()
            assert 0 <= harness.pool.free <= harness.pool.total
    harness.run()
    assert harness.pool.free == harness.pool.total == 20
    assert harness.scheduler.counters.cached_tokens > 0


# ── B20 ───────────────────────────────────────────────────────────────────────────────────────


def leave_at_random(rounds: int, depth: int) -> int:
    """Six requests of 60 + 80 tokens in 12 blocks, some of which leave; how many gave way."""
    preemptions = 0
    for seed in range(rounds):
        rng = random.Random(seed)
        prompts = [prompt(rng, 60) for _ in range(6)]
        controls = RowControls(temperature=0)
        expected = {}
        for number, ids in enumerate(prompts, 1):
            alone = Harness(blocks=12, script=hashed)
            expected[number] = alone.submit(ids, 80, controls), alone
            alone.run()
        harness = Harness(blocks=12, script=hashed, depth=depth)
        requests = [harness.submit(ids, 80, controls) for ids in prompts]
        leaving = {request: rng.randrange(250) for request in rng.sample(requests, 3)}
        for step in range(250):
            for request, at in leaving.items():
                if step in (at, at + 1):  # twice: what has left already is left alone
                    harness.abort(request)
            harness.step()
        harness.run()
        for request in requests:
            harness.abort(request)  # after the end, too
        harness.step()
        assert harness.pool.free == harness.pool.total
        for number, request in enumerate(requests, 1):
            first, alone = expected[number]
            said, whole = harness.tokens(request), alone.tokens(first)
            assert said == whole if request not in leaving else said == whole[: len(said)]
        preemptions += harness.scheduler.counters.preemptions
    return preemptions


@pytest.mark.parametrize("depth", [0, 1])
def test_b20_whoever_leaves_while_others_fight_for_blocks_leaves_nothing(depth) -> None:
    assert leave_at_random(6, depth) > 6


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
def test_b20_two_hundred_rounds_of_leaving_at_random(depth) -> None:
    assert leave_at_random(200, depth) > 200


async def test_b20_clients_close_under_pressure_and_survivors_hear_all_of_it() -> None:
    rng = random.Random(20)
    prompts = [prompt(rng, 60) for _ in range(6)]
    async with serving(backend=ScriptedBackend(400, script=byte), blocks=400) as big:
        body = {"max_tokens": 80, "seed": 7, "return_token_ids": True}
        solo = [
            (await big.post(COMPLETIONS, body | {"prompt": ids})).json()["choices"][0]["token_ids"]
            for ids in prompts
        ]
    backend = ScriptedBackend(12, script=byte)
    async with serving(backend=backend, blocks=12) as house:
        for _ in range(6):
            kept = rng.sample(range(6), 3)

            async def leaver(number: int) -> None:
                fields = body | {"prompt": prompts[number], "stream": number % 2 == 0}
                client = await Socket.post(house, **fields)
                steps = len(backend.batches) + rng.randrange(60)
                await until(lambda: len(backend.batches) >= steps or not house.scheduler.live)
                await client.leave()

            stay = [house.post(COMPLETIONS, body | {"prompt": prompts[n]}) for n in kept]
            leave = [leaver(number) for number in range(6) if number not in kept]
            replies = (await asyncio.gather(*stay, *leave))[:3]
            for number, reply in zip(kept, replies, strict=True):
                assert reply.json()["choices"][0]["token_ids"] == solo[number]
            await house.idle()
        page = (await house.client.get("/metrics")).text
        assert gauge(page, "octavo_preemptions_total") > 0
        assert gauge(page, "octavo_kv_usage_ratio") == 0


# ── B23 ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step_tokens", [16, 64])
async def test_b23_a_prompt_that_is_cached_to_its_end_is_answered_all_the_same(step_tokens) -> None:
    rng = random.Random(23)
    async with serving(backend=HashedBackend(64), step_tokens=step_tokens) as house:

        async def four(ids: list[int]) -> tuple[str, int]:
            body = {"prompt": ids, "max_tokens": 4, "temperature": 0}
            reply = (await house.post(COMPLETIONS, body)).json()
            assert reply["usage"]["completion_tokens"] == 4
            return (
                reply["choices"][0]["text"],
                reply["usage"]["prompt_tokens_details"]["cached_tokens"],
            )

        for length in (15, 16, 17, 32, 48):
            ids = prompt(rng, length)
            said = [await four(ids) for _ in range(3)]
            said += await asyncio.gather(four(ids), four(ids))
            assert len({text for text, _ in said}) == 1
            most = (length - 1) // 16 * 16
            assert [cached for _, cached in said] == [0, *[most] * 4]
            assert most <= length - 1
        await house.idle()
