"""Sends the requests of a trace when they are due, whatever became of those before."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from engine.errors import ConfigurationError
from engine.simulation import NO_TARGETS, Targets
from loadtest.live.connections import Client, Lost
from loadtest.live.prompts import Prompts, sample_text
from loadtest.live.records import LiveRecord, LiveRun
from loadtest.live.server_metrics import Look, Scrape
from loadtest.live.stream import Stream
from loadtest.traces import Arrival

AHEAD_S: Final = 0.25
"""How long before a request is due it is written down, so that it is ready in time."""

USUAL_CONTEXT: Final = 2048
"""Tokens of a model that does not say how many it takes."""


class LiveError(ConfigurationError):
    """The server cannot be used for this: it is not there, or says no to what is needed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a trace is replayed.

    model: None asks the server which it has. keys: API keys by
    tenant; the key of "" is everybody else's. classes: whether a request asks for its class
    (`service_tier`). timeout_s: of each request, from when it was sent. seed: of the prompts.
    look_s: seconds between two looks at /metrics, 0 for none. targets: what is promised, by
    class; usual_targets: to any other class. extra: more fields of every request.
    """

    model: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    classes: bool = True
    timeout_s: float = 600.0
    seed: int = 0
    look_s: float = 1.0
    targets: Mapping[str, Targets] = field(default_factory=dict)
    usual_targets: Targets = NO_TARGETS
    extra: Mapping[str, Any] = field(default_factory=dict)


USUAL: Final = Settings()


def replay_live(
    url: str,
    arrivals: Sequence[Arrival],
    settings: Settings = USUAL,
    tick: Callable[[], None] = lambda: None,
) -> LiveRun:
    """Replay a trace against the server at `url`, and return when every request has ended.

    arrivals: in order of arrival, `at` in seconds from the start. tick: called once for every
    request that has ended. Raises LiveError if the server cannot be asked at all; what happens to
    single requests is in their records. Ctrl-C ends it early, with the requests that have ended.
    """

    async def until_interrupted() -> LiveRun:
        enough = asyncio.Event()
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # another thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, enough.set)
        return await play(url, arrivals, settings, tick, enough)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(until_interrupted())


async def play(
    url: str,
    arrivals: Sequence[Arrival],
    settings: Settings = USUAL,
    tick: Callable[[], None] = lambda: None,
    enough: asyncio.Event | None = None,
) -> LiveRun:
    """`replay_live` on a loop that runs already. enough: ends it early once it is set."""
    client = _client(url)
    try:
        model, words = await _introduced(client, settings)
        player = _Player(client, model, Prompts(words, settings.seed), settings, tick)
        requests = await player.play(arrivals, enough or asyncio.Event())
    finally:
        client.close()
    return LiveRun(requests, player.looks, url, model, _targets(arrivals, settings), len(arrivals))


def _targets(arrivals: Sequence[Arrival], settings: Settings) -> dict[str, Targets]:
    classes = {arrival.slo_class for arrival in arrivals}
    return {each: settings.targets.get(each, settings.usual_targets) for each in classes}


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is: the client shall take as little of the machine as it can."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _client(url: str) -> Client:
    try:
        return Client(url)
    except ValueError as error:
        raise LiveError(str(error)) from None


async def _introduced(client: Client, settings: Settings) -> tuple[str, list[int]]:
    """The model, and ids of ordinary tokens of its vocabulary. Raises LiveError."""
    headers = _authorization(settings.keys, "")
    served = (await _asked(client, "GET", "/v1/models", b"", headers))["data"]
    named = [each for each in served if settings.model in (None, each["id"])]
    if not named:
        raise LiveError(f"there is no model {settings.model}: {', '.join(m['id'] for m in served)}")
    model, context = named[0]["id"], named[0].get("max_model_len") or USUAL_CONTEXT
    text = {"model": model, "prompt": sample_text(context), "add_special_tokens": False}
    tokens = await _asked(client, "POST", "/tokenize", orjson.dumps(text), headers)
    return model, sorted(set(tokens["tokens"]))


async def _asked(
    client: Client, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> dict[str, Any]:
    try:
        head, answer = await client.fetch(method, path, body, headers)
    except (OSError, Lost) as error:
        raise LiveError(f"there is no server at {client.url}: {error}") from None
    if head.status != 200:
        raise LiveError(f"{method} {path} was answered {head.status}: {answer[:200].decode()}")
    found: dict[str, Any] = orjson.loads(answer)
    return found


def _authorization(keys: Mapping[str, str], tenant: str) -> dict[str, str]:
    key = keys.get(tenant, keys.get(""))
    return {"Authorization": f"Bearer {key}"} if key else {}


class _Player:
    """Plays one trace."""

    def __init__(
        self,
        client: Client,
        model: str,
        prompts: Prompts,
        settings: Settings,
        tick: Callable[[], None],
    ) -> None:
        self._client = client
        self._model = model
        self._prompts = prompts
        self._settings = settings
        self._tick = tick
        self._start = 0.0
        self.looks: list[Look] = []

    async def play(self, due: Sequence[Arrival], enough: asyncio.Event) -> list[LiveRecord]:
        """Send all when they are due, and wait until the last has ended, or it is enough.

        Returns those that have ended.
        """
        records = [LiveRecord(arrival) for arrival in due]
        self._start = time.perf_counter() + AHEAD_S
        looking = asyncio.ensure_future(self._look_now_and_then())
        sending = asyncio.ensure_future(self._send(records))
        stopping = asyncio.ensure_future(enough.wait())
        try:
            await asyncio.wait((sending, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (looking, sending, stopping):
                task.cancel()
            await asyncio.wait((looking, sending, stopping))
        if not sending.cancelled():
            sending.result()
        if self._settings.look_s:
            await self._look()
        return [record for record in records if record.ended]

    async def _send(self, records: Sequence[LiveRecord]) -> None:
        async with asyncio.TaskGroup() as group:
            for number, record in enumerate(records):
                await self._sleep_until(record.arrival.at - AHEAD_S)
                body = self._body(number, record.arrival)
                group.create_task(self._request(record, body))

    async def _request(self, record: LiveRecord, body: bytes) -> None:
        """One request, when it is due; whatever happens to it is noted."""
        await self._sleep_until(record.arrival.at)
        stream = Stream()
        record.sent_at = self._now()
        headers = _authorization(self._settings.keys, record.arrival.tenant)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                head = await self._client.exchange(
                    "POST", "/v1/completions", body, headers, stream.take
                )
        except TimeoutError:
            stream.error = "timeout"
        except Lost:
            stream.error = stream.error or "connection_lost"
        except OSError:
            stream.error = "connection"
        else:
            record.status = head.status
            record.sent_at = head.sent_at - self._start
            record.arm = head.headers.get("x-ab-arm")
            if head.status != 200:
                stream.fail(head.status)
        record.chunk_times.extend(at - self._start for at in stream.chunk_times)
        record.note(stream)
        self._tick()

    def _body(self, number: int, arrival: Arrival) -> bytes:
        body = {
            "model": self._model,
            "prompt": self._prompts.of(number, arrival),
            "max_tokens": arrival.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if arrival.priority:
            body["priority"] = arrival.priority
        if self._settings.classes and arrival.slo_class != "default":
            body["service_tier"] = arrival.slo_class
        return orjson.dumps(body | dict(self._settings.extra))

    async def _look_now_and_then(self) -> None:
        """Looks at /metrics; a server without it is not looked at again."""
        while self._settings.look_s and await self._look():  # noqa: ASYNC110 - time is all it waits for
            await asyncio.sleep(self._settings.look_s)

    async def _look(self) -> bool:
        """Look once; returns whether there was something to see."""
        headers = _authorization(self._settings.keys, "")
        try:
            head, text = await self._client.fetch("GET", "/metrics", headers=headers)
        except (OSError, Lost):
            return False
        if head.status == 200:
            self.looks.append(Scrape(text.decode()).look(self._now()))
        return head.status == 200

    def _now(self) -> float:
        return time.perf_counter() - self._start

    async def _sleep_until(self, at: float) -> None:
        """Not a moment earlier: timers of a millisecond may be early by one."""
        while (left := at - self._now()) > 0:  # noqa: ASYNC110 - time is all it waits for
            await asyncio.sleep(left)
