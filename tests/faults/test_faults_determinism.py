"""The same chat says the same, whatever is cached and whoever is beside it."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest
from support.float_parity import MODEL
from support.hashed import HashedBackend
from support.serving import CHAT, House, serving

from engine.prefix import KEY_BYTES, block_keys

TURNS = ["Hi!", "What is 2+2?", "And 3+3?", "Why?", "Once more, please.", "Thanks."]
NEIGHBOURS = ["Sing.", "Tell me a story about a fox. " * 5, "?", "1 2 3 4 5 6 7 8 9 10", "Ok"]

Turn = tuple[str, list[float]]


async def talk(house: House, salt: str | None = None) -> list[Turn]:
    """A chat of six turns, each with all that was said before."""
    messages = [{"role": "system", "content": "You are a friend of short answers."}]
    said: list[Turn] = []
    for question in TURNS:
        messages.append({"role": "user", "content": question})
        body = {
            "messages": messages,
            "temperature": 0,
            "max_tokens": 12,
            "logprobs": True,
            "cache_salt": salt,
        }
        (choice,) = (await house.post(CHAT, body)).json()["choices"]
        text = choice["message"]["content"]
        messages.append({"role": "assistant", "content": text})
        said.append((text, [entry["logprob"] for entry in choice["logprobs"]["content"]]))
    return said


async def chatter(house: House, seed: int) -> list[str]:
    """What seven unlike neighbours hear, who come one after the other as they like."""
    rng = random.Random(seed)

    async def one(number: int) -> str:
        body = {
            "messages": [{"role": "user", "content": NEIGHBOURS[number % len(NEIGHBOURS)]}],
            "seed": number,
            "max_tokens": 20 + 10 * number,
            "temperature": number % 3 / 2,
        }
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)
        return (await house.post(CHAT, body)).json()["choices"][0]["message"]["content"]

    return await asyncio.gather(*(one(number) for number in range(7)))


def house(backend, cache: bool, **options):
    return serving(
        backend=backend, blocks=backend.total_blocks, model_len=1024, prefix_cache=cache, **options
    )


async def every_way(make, **options) -> tuple[list[list[Turn]], list[list[str]]]:
    """The chat alone without a cache, with one, beside others, when all is forgotten; and what the
    others heard in five runs."""
    async with house(make(), cache=False, **options) as one:
        ways = [await talk(one)]
        assert one.scheduler.counters.cached_tokens == 0
        await one.idle()
    heard = []
    async with house(make(), cache=True, **options) as one:
        ways += [await talk(one), await talk(one)]
        assert one.scheduler.counters.cached_tokens > 0
        for run in range(5):
            beside, others = await asyncio.gather(talk(one), chatter(one, run))
            ways.append(beside)
            heard.append(others)
        await one.idle()
        one.pool.forget_all()
        ways.append(await talk(one))
        ways.append(await talk(one, salt="another"))
        await one.idle()
    return ways, heard


async def test_b25_a_chat_says_the_same_whatever_is_cached_and_beside_whomever(one_thread) -> None:
    ways, heard = await every_way(lambda: HashedBackend(400))
    assert all(text for text, _ in ways[0])
    assert all(way == ways[0] for way in ways)
    assert all(others == heard[0] for others in heard)


@pytest.mark.slow
@pytest.mark.skipif(not MODEL.exists(), reason=f"{MODEL.name} is not in models/")
async def test_b25_and_so_does_the_real_model_to_the_last_bit(smollm2) -> None:
    from engine.backends.cpu import create

    ways, heard = await every_way(
        lambda: create(MODEL, dtype="int8", kv_memory_bytes=64 * 2**20), tokenizer=smollm2
    )
    assert all(text for text, _ in ways[0])
    assert all(way == ways[0] for way in ways)
    assert all(others == heard[0] for others in heard)


def test_b25_a_key_of_the_cache_names_all_tokens_before_it_in_128_bits() -> None:
    """No two prefixes that differ anywhere, however alike, have one key; nor do two salts."""
    assert KEY_BYTES >= 16
    base = [0] * 48
    keys = set(block_keys(base, b""))
    assert len(keys) == 3, "the same tokens at another place"
    for place in range(48):
        for token in (1, -1, 2**31 - 1, struct.unpack("<i", b"\0\0\1\0")[0]):
            changed = [*base[:place], token, *base[place + 1 :]]
            made = block_keys(changed, b"")
            assert [key in keys for key in made] == [block < place // 16 for block in range(3)]
    assert not keys & set(block_keys(base, b"salt"))
