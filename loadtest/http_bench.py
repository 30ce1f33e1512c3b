"""How many one-token frames a second the HTTP side streams, the clients on the same machine.

A simulated device makes a token for each of 256 clients in each step; each token is detokenised,
put into a frame of its own and written to its client's socket. A step takes as long as a rate says,
and the rate is raised until the server cannot follow: frames hold more than one token, or the event
loop comes too late to whatever else it has to do. Server and clients are processes of their own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from app.compose import House
from app.config import Config
from app.config.schema import SimulatedConfig
from engine.blocks import blocks_for
from engine.outputs import Output, Stats
from loadtest.bench_server import BenchServer, bench_server
from loadtest.machine import Unmeasured
from loadtest.streaming_clients import Counted, count_frames

CLIENTS: Final = 256
PROMPT: Final = 16
SECONDS: Final = 4.0
"""How long a rate is tried."""

GOAL: Final = 20_000
"""Frames a second."""

LAG_GOAL_MS: Final = 20.0
"""The event loop's 99th percentile."""

PROBE_S: Final = 0.002
"""Seconds between two looks at how late the event loop is."""

FIRST_RATE: Final = 20_000
RAISE: Final = 1.5
REFINEMENTS: Final = 3
USUAL_PHASES: Final = 9
"""Rates that are tried on most machines."""

Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Phase:
    """What one rate came to, while all clients were streaming.

    offered: frames a second that the device asks for, if the host's own work took no time.
    tokens_per_frame: over whole streams. CPU seconds are of the same time as `seconds`.
    """

    offered: float
    frames_per_s: float
    tokens_per_frame: float
    lag_p50_ms: float
    lag_p99_ms: float
    seconds: float
    server_cpu_s: float
    engine_cpu_s: float
    loop_cpu_s: float
    client_cpu_s: float

    @property
    def followed(self) -> bool:
        """Whether every token had its frame, and nothing else had to wait for long."""
        return self.tokens_per_frame == 1 and self.lag_p99_ms < LAG_GOAL_MS

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "followed": self.followed}


def measure_http(
    config: Config, clients: int = CLIENTS, seconds: float = SECONDS, tick: Tick = lambda: None
) -> list[Phase]:
    """Try rates until the highest that the server follows is known; all of them, in order.

    `tick` is called after each. Raises Unmeasured.
    """
    phases: list[Phase] = []

    def follows(rate: float) -> bool:
        phases.append(measure_rate(config, rate, clients, seconds))
        tick()
        return phases[-1].followed

    bracket(follows, FIRST_RATE)
    return phases


def bracket(follows: Callable[[float], bool], rate: float) -> None:
    """Ask for higher rates, or lower ones, until the answer changes; then between the two."""
    good, bad = (rate, 0.0) if follows(rate) else (0.0, rate)
    while not bad or not good:
        rate = rate * RAISE if good else rate / RAISE
        if follows(rate):
            good = rate
        else:
            bad = rate
        if bad and bad < FIRST_RATE / 8:
            return
    for _ in range(REFINEMENTS):
        rate = (good + bad) / 2
        if follows(rate):
            good = rate
        else:
            bad = rate


def best(phases: Sequence[Phase]) -> Phase | None:
    """The fastest that the server followed; None if it followed none."""
    followed = [phase for phase in phases if phase.followed]
    return max(followed, key=lambda phase: phase.frames_per_s, default=None)


def report(phases: Sequence[Phase]) -> dict[str, Any]:
    """All phases, and the figures of the best; these are None if no rate could be followed."""
    fastest = best(phases)
    return {
        "clients": CLIENTS,
        "frames_per_s": fastest and fastest.frames_per_s,
        "lag_p99_ms": fastest and fastest.lag_p99_ms,
        "phases": [phase.as_json() for phase in phases],
    }


def measure_rate(config: Config, rate: float, clients: int, seconds: float) -> Phase:
    """One rate, with a server and clients of its own. Raises Unmeasured."""
    tokens = max(8, int(rate * seconds / clients))
    paced = _paced(config, clients / rate, clients, tokens)
    with bench_server(paced, _observed) as server:
        server.pipe.send(("watch", clients))
        counted = _stream(server, clients, tokens)
        seen: Seen = server.answer()
    if not counted.seconds or not seen.seconds:
        raise Unmeasured("the clients never streamed all at once")
    lags = sorted(seen.lags)
    return Phase(
        offered=rate,
        frames_per_s=counted.steady_frames / counted.seconds,
        tokens_per_frame=clients * tokens / counted.frames,
        lag_p50_ms=1e3 * lags[len(lags) // 2],
        lag_p99_ms=1e3 * lags[len(lags) * 99 // 100],
        seconds=counted.seconds,
        server_cpu_s=seen.process_cpu_s,
        engine_cpu_s=seen.engine_cpu_s,
        loop_cpu_s=seen.loop_cpu_s,
        client_cpu_s=counted.cpu_seconds,
    )


def _paced(config: Config, step_s: float, clients: int, tokens: int) -> Config:
    """A simulated server on a free port, with room for all clients in each step."""
    engine = config.engine
    blocks = clients * (1 + blocks_for(PROMPT + tokens))
    device = SimulatedConfig(
        base_s=step_s,
        prompt_token_s=0,
        decode_s=0,
        total_blocks=max(blocks, engine.simulated.total_blocks),
    )
    rows = {
        "backend": "simulated",
        "simulated": device,
        "max_rows": clients,
        "max_step_tokens": max(engine.step_tokens, 4 * clients),
    }
    opened = max(config.limits.max_open_requests, clients)
    parts = {
        "server": config.server.model_copy(update={"host": "127.0.0.1", "port": 0}),
        "engine": engine.model_copy(update=rows),
        "limits": config.limits.model_copy(update={"max_open_requests": opened}),
    }
    return config.model_copy(update=parts)


def _stream(server: BenchServer, clients: int, tokens: int) -> Counted:
    """What all clients counted. Raises Unmeasured."""
    rng = random.Random(0)
    prompts = ([rng.randrange(97, 123) for _ in range(PROMPT)] for _ in range(clients))
    bodies = [
        {
            "model": server.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        for prompt in prompts
    ]
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    arguments = "127.0.0.1", server.port, bodies, there
    process = context.Process(target=count_frames, args=arguments, daemon=True)
    process.start()
    there.close()
    try:
        while not here.poll(0.2):
            if not server.process.is_alive() or process.exitcode:
                raise Unmeasured("the server ended, or refused the clients")
        counted: Counted = here.recv()
    except EOFError:
        raise Unmeasured("the clients were refused") from None
    finally:
        process.join(10)
        process.kill()
    return counted


# ── in the server's process ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Seen:
    """What the server saw of itself while all rows decoded. lags: of the event loop, seconds."""

    lags: list[float]
    seconds: float
    process_cpu_s: float
    engine_cpu_s: float
    loop_cpu_s: float


async def _observed(house: House, pipe: Connection) -> None:
    """Measure once, and wait for the end."""
    _, rows = await asyncio.to_thread(pipe.recv)
    window = Window(rows)
    house.bridge.add_observer(window)
    probing = asyncio.ensure_future(window.probe())
    over = asyncio.ensure_future(window.over.wait())
    end = asyncio.ensure_future(asyncio.to_thread(pipe.recv))
    await asyncio.wait({over, end}, return_when=asyncio.FIRST_COMPLETED)
    if over.done():
        pipe.send(window.seen)
    over.cancel()
    probing.cancel()
    await end


class Window:
    """From the first step in which all rows decode to the first request that ends.

    Called with what each step has put out, as the server's metrics are.
    """

    def __init__(self, rows: int) -> None:
        self.over = asyncio.Event()
        self.seen = Seen([], 0, 0, 0, 0)
        self._rows = rows
        self._lags: list[float] = []
        self._began: tuple[float, ...] | None = None

    def __call__(self, outputs: Sequence[Output], stats: Stats) -> None:
        if self.over.is_set():
            return
        if self._began is None:
            if stats.step_rows == stats.step_tokens == self._rows:
                self._began = _clocks()
                self._lags.clear()
        elif stats.counters.finished:
            spent = [now - then for now, then in zip(_clocks(), self._began, strict=True)]
            self.seen = Seen(self._lags or [0.0], *spent)
            self.over.set()

    async def probe(self) -> None:
        """Sleep, and look how late one wakes up, for ever."""
        while True:
            due = time.perf_counter() + PROBE_S
            await asyncio.sleep(PROBE_S)
            self._lags.append(max(0.0, time.perf_counter() - due))


def _clocks() -> tuple[float, float, float, float]:
    """The time, and CPU seconds of the process, the engine's thread, and this one."""
    engine = next(each for each in threading.enumerate() if each.name == "octavo-engine")
    assert engine.ident is not None
    clock = time.pthread_getcpuclockid(engine.ident)
    return time.perf_counter(), time.process_time(), time.clock_gettime(clock), time.thread_time()
