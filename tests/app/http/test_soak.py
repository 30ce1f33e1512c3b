"""64 concurrent SSE clients, a third of whom leave at random moments, round after round."""

import asyncio
import gc
import random
from pathlib import Path
from typing import Any

import pytest
from support.serving import CHAT, HELLO, House, serving, until

from engine.backends.simulated import SimulatedBackend
from engine.cost import LinearCost

CLIENTS = 64
ROUNDS = 20
MODEL = Path(__file__).parents[3] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def resident_bytes() -> int | None:
    """Memory of this process, clients and server together; None where /proc is not there."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * 4096


async def client(house: House, rng: random.Random, max_tokens: int) -> str:
    """One chat; returns how it ended. Leavers go while queued, in prefill or in decode."""
    body = {
        "messages": [{"role": "user", "content": HELLO[0]["content"] * rng.randrange(1, 12)}],
        "max_tokens": rng.randrange(1, max_tokens),
        "stream": True,
    }
    leaves_after = rng.choice([0.0, 0.002, 0.02, 0.1, 0.3]) if rng.random() < 1 / 3 else None
    talk = asyncio.create_task(stream(house, body))
    if leaves_after is None:
        assert await talk == "data: [DONE]"
        return "stayed"
    await asyncio.wait({talk}, timeout=leaves_after)
    if talk.done():
        return "done before leaving"
    talk.cancel()
    await asyncio.wait({talk})
    return "left"


async def stream(house: House, body: dict[str, Any]) -> str:
    last = ""
    async with house.client.stream("POST", CHAT, json=body) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            last = line or last
    return last


async def soak(house: House, rounds: int, max_tokens: int) -> None:
    rng = random.Random(64)
    ends: set[str] = set()
    early: int | None = None
    for number in range(rounds):
        ends.update(await asyncio.gather(*(client(house, rng, max_tokens) for _ in range(CLIENTS))))
        await house.idle()
        await until(lambda: house.bridge.stats.running == house.bridge.stats.waiting == 0)
        metrics = (await house.client.get("/metrics")).text
        assert "octavo_requests_running 0.0" in metrics
        assert "octavo_requests_waiting 0.0" in metrics
        if number == rounds // 4:
            early = resident_bytes()
    assert {"stayed", "left"} <= ends
    late = resident_bytes()
    if early is not None and late is not None:
        assert late - early < 24 * 2**20, "memory grows from round to round"
    counters = house.scheduler.counters
    assert counters.arrived == counters.finished + counters.cancelled
    assert counters.failed == counters.rejected == 0
    assert counters.cancelled > 0


async def test_leavers_leave_nothing_behind_in_20_rounds_of_64_clients() -> None:
    backend = SimulatedBackend(LinearCost(base=0.0005, prompt_token=1e-5, decode=1e-5), 64)
    async with serving(backend=backend, max_open=CLIENTS) as house:
        await soak(house, ROUNDS, max_tokens=60)


@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_leavers_leave_nothing_behind_on_the_real_model() -> None:
    if not MODEL.exists():
        pytest.skip("the default model is not there (make model)")
    from app.text.gguf_tokenizer import GGUFTokenizer
    from engine.backends.cpu import create

    backend = create(MODEL, kv_memory_bytes=64 * 2**20)
    for part in backend.cache.parts:
        part.zero_()  # touched now, not as rounds go on
    async with serving(
        backend=backend,
        tokenizer=GGUFTokenizer.from_file(MODEL),
        blocks=backend.total_blocks,
        rows=32,
        model_len=512,
        max_open=CLIENTS,
    ) as house:
        house.client.timeout = 600
        await soak(house, rounds=5, max_tokens=12)
