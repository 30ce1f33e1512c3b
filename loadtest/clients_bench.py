"""What streaming to clients costs a step: the same server, with clients and with nobody listening.

A server of its own process decodes as many rows as there are clients. In one phase the rows are
those of clients, which stream over SSE from a third process; in the other the same requests are
posted to the engine and nobody reads their tokens. Phases take turns. Only steps in which all rows
decode count, and of these the time that the engine itself measures. All processes share the
machine's cores, so the clients' own work counts against the server, too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from app.compose import House
from app.config import Config
from engine.controls import RowControls
from engine.inbox import Submission
from engine.outputs import Output, Stats
from loadtest.bench_server import BenchServer, bench_server
from loadtest.machine import Unmeasured
from loadtest.streaming_clients import stream

CLIENTS: Final = 256
PROMPT: Final = 16
OUTPUT: Final = 96
"""Tokens of each request."""

Prompts = list[list[int]]
Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Steps:
    """Median seconds of a step with nobody listening, and beside clients, over all rounds."""

    alone: float
    beside: float

    @property
    def ratio(self) -> float:
        """How many times as long a step beside clients takes."""
        return self.beside / self.alone


def measure_clients(
    config: Config, rounds: int, clients: int = CLIENTS, tick: Tick = lambda: None
) -> Steps:
    """Measure both; `tick` is called after each phase. Raises Unmeasured."""
    alone, beside = [], []
    with bench_server(_with_room(config, clients), _answering) as server:
        for number in range(rounds):
            alone.append(_alone(server, _prompts(2 * number, clients, server.vocab)))
            tick()
            beside.append(_beside(server, _prompts(2 * number + 1, clients, server.vocab)))
            tick()
    return Steps(statistics.median(alone), statistics.median(beside))


def _prompts(seed: int, number: int, vocab: int) -> Prompts:
    """Others in each phase, lest they be found in the prefix cache."""
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(PROMPT)] for _ in range(number)]


def _with_room(config: Config, clients: int) -> Config:
    """A server on a free port that computes all clients' rows in each step."""
    engine, limits = config.engine, config.limits
    tokens = max(engine.step_tokens, 4 * clients)
    opened = max(limits.max_open_requests, clients)
    parts = {
        "server": config.server.model_copy(update={"host": "127.0.0.1", "port": 0}),
        "engine": engine.model_copy(update={"max_rows": clients, "max_step_tokens": tokens}),
        "limits": limits.model_copy(update={"max_open_requests": opened}),
    }
    return config.model_copy(update=parts)


# ── from outside ──────────────────────────────────────────────────────────────────────────────


def _alone(server: BenchServer, prompts: Prompts) -> float:
    """The median step with nobody listening. Raises Unmeasured."""
    server.pipe.send(("alone", prompts))
    return _median(server, None)


def _beside(server: BenchServer, prompts: Prompts) -> float:
    """The median step while clients stream. Raises Unmeasured."""
    server.pipe.send(("beside", prompts))
    bodies = [_body(server.model, prompt) for prompt in prompts]
    arguments = "127.0.0.1", server.port, bodies
    clients = multiprocessing.get_context("spawn").Process(target=stream, args=arguments)
    clients.start()
    try:
        found = _median(server, clients)
        clients.join()
    finally:
        clients.kill()
    return found


def _body(model: str, prompt: list[int]) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


def _median(server: BenchServer, clients: BaseProcess | None) -> float:
    seconds: list[float] = server.answer(clients)
    if not seconds:
        raise Unmeasured("no step had the rows of all clients")
    return statistics.median(seconds)


# ── in the server's process ───────────────────────────────────────────────────────────────────


async def _answering(house: House, pipe: Connection) -> None:
    """Do what the pipe says until it says end."""
    watch = StepWatch()
    house.bridge.add_observer(watch)
    while True:
        phase, prompts = await asyncio.to_thread(pipe.recv)
        if phase == "end":
            return
        watch.expect(len(prompts))
        if phase == "alone":
            for prompt in prompts:
                house.bridge.post(_submission(house, prompt))
        await watch.done.wait()
        pipe.send(watch.seconds)


def _submission(house: House, prompt: Sequence[int]) -> Submission:
    """What a client's request becomes, without a reader."""
    controls = RowControls(temperature=0.0, ignore_eos=True)
    service, bridge = house.service, house.bridge
    return Submission(bridge.next_id(), prompt, OUTPUT, controls, service.clock.now())


class StepWatch:
    """Keeps the seconds of each step in which all rows decode, until all requests have ended.

    Called with what each step has put out, as the server's metrics are.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.done = asyncio.Event()
        self._rows = 0
        self._last = Stats()
        self._ended_before = 0

    def expect(self, rows: int) -> None:
        """Begin anew; so many requests will come."""
        self.seconds = []
        self.done.clear()
        self._rows = rows
        self._ended_before = _ended(self._last)

    def __call__(self, outputs: Sequence[Output], stats: Stats) -> None:
        computed = stats.counters.steps != self._last.counters.steps
        self._last = stats
        if computed and stats.step_rows == stats.step_tokens == self._rows:
            self.seconds.append(stats.step_seconds)
        if self._rows and _ended(stats) - self._ended_before >= self._rows:
            self.done.set()


def _ended(stats: Stats) -> int:
    counters = stats.counters
    refused = counters.rejected + counters.cancelled + counters.failed + counters.expired
    return counters.finished + refused
