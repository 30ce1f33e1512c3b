"""An engine that is stuck in a step is told from one that is idle, or busy with many steps."""

import asyncio
import threading

from support.serving import COMPLETIONS, serving, until

from engine.clock import VirtualClock

PROBES = ["/health", "/health/live", "/health/ready"]
LIMIT_S = 60.0


class Steps:
    """Holds every step of a scripted backend until it is let go; the clock stands meanwhile."""

    def __init__(self, steps: int = 100) -> None:
        self.clock = VirtualClock()
        self.hooks = dict.fromkeys(range(steps), self._hold_the_step)
        self._begun = threading.Semaphore(0)
        self._let_go = threading.Semaphore(0)

    def _hold_the_step(self, batch) -> None:
        self._begun.release()
        self._let_go.acquire(timeout=60)

    async def begun(self) -> None:
        """Wait until one more step has begun."""
        assert await asyncio.to_thread(self._begun.acquire, timeout=60)

    def let_go(self, steps: int = 1) -> None:
        self._let_go.release(steps)

    def serving(self):
        return serving(clock=self.clock, stuck_after_s=LIMIT_S, hooks=self.hooks)


async def statuses(house) -> list[int]:
    return [(await house.client.get(path)).status_code for path in PROBES]


async def test_b55_who_has_nothing_to_do_is_not_stuck():
    steps = Steps()
    async with steps.serving() as house:
        steps.clock.advance(1000)
        assert await statuses(house) == [200, 200, 200]
        steps.let_go(100)
        assert (await house.post(COMPLETIONS, {"prompt": "x"})).status_code == 200
        steps.clock.advance(1000)
        await until(lambda: house.bridge.failure is None)
        assert await statuses(house) == [200, 200, 200]


async def test_b55_a_long_prompt_is_many_steps_and_none_of_them_is_stuck():
    steps = Steps()
    async with steps.serving() as house:
        body = {"prompt": "x" * 250, "max_tokens": 1}
        asked = asyncio.create_task(house.post(COMPLETIONS, body))
        for _ in range(4):  # 64 tokens each
            await steps.begun()
            steps.clock.advance(LIMIT_S - 1)
            assert await statuses(house) == [200, 200, 200]
            steps.let_go()
        assert (await asked).status_code == 200


async def test_b55_a_stuck_step_is_told_by_every_probe_and_to_newcomers_until_it_ends(caplog):
    steps = Steps()
    async with steps.serving() as house:
        asked = asyncio.create_task(house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2}))
        await steps.begun()
        steps.clock.advance(LIMIT_S + 1)
        assert await statuses(house) == [503, 503, 503]
        for refused in (
            await house.client.get("/health/live"),
            await house.client.get("/health/ready"),
            await house.post(COMPLETIONS, {"prompt": "x"}),
        ):
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "not_ready"
            assert "61 s" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) >= 1
        steps.let_go(100)
        assert (await asked).status_code == 200
        await house.idle()
        assert await statuses(house) == [200, 200, 200]
    (told,) = [each for each in caplog.messages if "stuck" in each]
    assert "_hold_the_step" in told, "the log says where"


async def test_a_house_that_drains_while_it_is_stuck_needs_a_new_process():
    steps = Steps()
    async with steps.serving() as house:
        asked = asyncio.create_task(house.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1}))
        await steps.begun()
        house.bridge.drain()
        assert await statuses(house) == [503, 200, 503]
        steps.clock.advance(LIMIT_S + 1)
        assert await statuses(house) == [503, 503, 503]
        steps.let_go(100)
        assert (await asked).status_code == 200
