"""The whole HTTP side on a real socket, with a scripted or simulated engine behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx2
import uvicorn
from pydantic import SecretStr

from app.application import create_application
from app.bounds import Bounds, limit
from app.bridge import Bridge
from app.config.schema import Config, LimitsConfig, SseConfig
from app.draining_server import uvicorn_config
from app.experiment.experiment import Experiment
from app.metrics import Metrics, Subject
from app.metrics.experiment import no_experiment
from app.metrics.shadow import no_shadow
from app.middleware import count_rejected
from app.policy_desk import PolicyDesk
from app.service import Service
from app.shadow.machine import machine_of
from app.shadow.shadow import Shadow
from app.structured.grammars import Grammars
from app.tenancy import Tenancy, class_limits
from app.text.template import ChatTemplate
from app.text.tokenizer import ByteTokenizer, Tokenizer
from app.tracing.spans import Spans
from engine.backends.base import Backend
from engine.backends.scripted import ScriptedBackend
from engine.blocks import BlockPool
from engine.clock import Clock, MonotonicClock
from engine.controls import SampleRow
from engine.cost import LearningCost, LinearCost
from engine.inbox import Abort
from engine.limits import Limits
from engine.loop import Engine
from engine.scheduler import Scheduler
from engine.speculation import Drafter
from engine.thread import EngineThread
from policies.base import Policy
from policies.fcfs import FCFS
from support.engines import NO_CPU_LIMIT, services

MODEL = "bytes"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]


def saying(text: str, eos: int = 257) -> Any:
    """A script that answers every prompt with `text`, then ends, over the byte tokenizer."""
    answer = [*text.encode(), eos]

    def script(row: SampleRow) -> int:
        return answer[min(row.position - row.prompt_length, len(answer) - 1)]

    return script


class Mark(Abort):
    """An abort of nobody, which tells when the engine gets to it."""

    def __init__(self) -> None:
        object.__setattr__(self, "read", threading.Event())

    @property
    def id(self) -> int:
        self.read.set()
        return 0


class House:
    """A served engine. `client` speaks to it; the parts stand open for tests to look into."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer | None = None,
        template: ChatTemplate | str | None = "own",
        backend: Backend | None = None,
        policy: Callable[..., Policy] = FCFS,
        model_len: int = 256,
        blocks: int = 64,
        rows: int = 8,
        step_tokens: int = 64,
        max_open: int = 64,
        max_lag: int = 4096,
        limits: Mapping[str, Any] | None = None,
        sse: Mapping[str, Any] | None = None,
        strict_fields: bool = False,
        request_templates: bool = False,
        per_request_metrics: bool = False,
        max_body_bytes: int = 1 << 20,
        send_timeout_s: float = 60.0,
        keep_alive_s: int = 60,
        send_buffer: int | None = None,
        admin_key: str | None = None,
        config: Mapping[str, Any] | None = None,
        isolate_tenants: bool = False,
        clock: Clock | None = None,
        max_waiting: float = math.inf,
        max_waiting_tokens: int | None = None,
        max_wait_s: float = math.inf,
        stuck_after_s: float | None = None,
        workers: int = 2,
        model: str = MODEL,
        spans: Spans | None = None,
        prefix_cache: bool = True,
        depth: int = 0,
        drafter: Drafter | None = None,
        cost: LearningCost | None = None,
        **scripted: Any,
    ) -> None:
        self.model = model
        self.send_timeout_s = send_timeout_s
        self.keep_alive_s = keep_alive_s
        self.send_buffer = send_buffer
        self.tokenizer = tokenizer or ByteTokenizer()
        self.backend: Any = backend or ScriptedBackend(blocks, **scripted)
        self.config = Config.model_validate(dict(config or {}))
        self.bridge = Bridge(
            bounds=Bounds(max_open, max_waiting, limit(max_waiting_tokens), max_wait_s),
            max_lag=max_lag,
            stuck_after_s=stuck_after_s,
            clock=clock,
        )
        self.pool = BlockPool(blocks)
        self.scheduler = Scheduler(
            policy(services=services()),
            self.pool,
            Limits(step_tokens, rows, model_len, class_limits(self.config)),
            guard=NO_CPU_LIMIT,
            prefix_cache=prefix_cache,
            drafter=drafter,
        )
        self.clock = clock or MonotonicClock()
        self.tenancy = Tenancy(self.config, self.clock)
        self.policies = PolicyDesk(self.config.scheduler, self.bridge, services)
        arms = self.config.experiment.arms
        self.experiment = (
            Experiment(self.config.experiment, self.config.scheduler, self.policies, self.clock)
            if arms
            else None
        )
        engine = Engine(
            scheduler=self.scheduler,
            backend=self.backend,
            clock=self.clock,
            cost=cost or LinearCost(),
            emit=self.bridge.emit,
            depth=depth,
        )
        self.shadow = self._shadow(engine) if self.config.shadow.policies else None
        self.metrics = self._metrics()
        self.thread = EngineThread(engine)
        self.executor = ThreadPoolExecutor(workers)
        own = ChatTemplate.for_tokenizer(self.tokenizer)
        self.service = Service(
            model_id=model,
            created=1_700_000_000,
            max_model_len=model_len,
            tokenizer=self.tokenizer,
            template=own if template == "own" else template,  # type: ignore[arg-type]
            bridge=self.bridge,
            clock=self.clock,
            executor=self.executor,
            limits=LimitsConfig(**(limits or {})),
            sse=SseConfig(**(sse or {})),
            metrics=self.metrics,
            version="0.0.0",
            max_body_bytes=max_body_bytes,
            tenancy=self.tenancy,
            policies=self.policies,
            grammars=Grammars(self.config.structured, self.tokenizer),
            strict_fields=strict_fields,
            request_templates=request_templates,
            per_request_metrics=per_request_metrics,
            isolate_tenants=isolate_tenants,
            experiment=self.experiment,
            shadow=self.shadow,
        )
        key = None if admin_key is None else SecretStr(admin_key)
        self.application = create_application(
            self.service,
            admin_key=key,
            cors_origins=self.config.server.cors_origins,
            spans=spans,
        )
        self.port = 0
        self.server: uvicorn.Server = None  # type: ignore[assignment]
        self.client: httpx2.AsyncClient = None  # type: ignore[assignment]

    def _metrics(self) -> Metrics:
        subject = Subject(
            model=self.model,
            policy=lambda: self.policies.current.policy,
            tenants=lambda: self.tenancy.tenant_names,
            classes=lambda: self.tenancy.class_names,
            waits=self.bridge.expected_waits,
            experiment=no_experiment if self.experiment is None else self.experiment.figures,
            shadow=no_shadow if self.shadow is None else self.shadow.figures,
            clock=self.clock,
        )
        metrics = Metrics(self.config.metrics, subject, self.scheduler.stats(self.clock.now()))
        if self.experiment is not None:
            metrics.tell(self.experiment.ledger)
        if self.shadow is not None:
            metrics.tell(self.shadow.history)
            self.bridge.add_observer(self.shadow.steps.observe)
        return metrics

    def _shadow(self, engine: Engine) -> Shadow:
        make_machine = partial(machine_of, engine, self.config)
        return Shadow(
            self.config.shadow, self.config.scheduler, self.policies, self.clock, make_machine
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        """Post JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **options.pop("headers", {})}
        return await self.client.post(path, content=content, headers=headers, **options)

    async def idle(self) -> None:
        """Wait until nobody is served, then assert that nothing leaked."""
        await self._everybody_heard()
        await until(lambda: self.bridge.open_requests == 0)
        await self._mail_read()
        await until(lambda: self.scheduler.live == 0)
        await self._mail_read()  # the step in which the last request ended is over, too
        self.scheduler.check()
        assert self.pool.free == self.pool.total

    async def _everybody_heard(self) -> None:
        """Wait until the server is done with all that was sent to it so far.

        Who has sent a request and left may not have been noticed yet, and would come in later.
        Connections are taken and read in the order in which they come.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await reader.read()
        writer.close()
        await until(lambda: not self.server.server_state.tasks)

    async def _mail_read(self) -> None:
        """Wait until the engine has read everything that was posted so far."""
        mark = Mark()
        self.thread.post(mark)
        await until(lambda: mark.read.is_set() or not self.thread.alive)

    async def probe(self) -> None:
        """Assert that the server still answers."""
        reply = await self.post(COMPLETIONS, {"prompt": "2+2=", "max_tokens": 4})
        assert reply.status_code == 200, reply.text


async def until(holds: Any, seconds: float = 60.0) -> None:
    """Wait for a condition; fail if it does not come true."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what it asks about lives on another thread
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[House]:
    """A house that is served on a free port of loopback; everything is checked when it closes."""
    house = House(**options)
    house.bridge.start(house.thread)
    own = {"keep_alive_s": house.keep_alive_s, "send_timeout_s": house.send_timeout_s}
    config = house.config.server.model_copy(update=own)
    server = uvicorn.Server(
        uvicorn_config(
            house.application, config, partial(count_rejected, house.metrics), lifespan="off"
        )
    )
    house.server = server
    listener = socket.create_server(("127.0.0.1", 0))
    if house.send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, house.send_buffer)
    serve = asyncio.ensure_future(server.serve(sockets=[listener]))
    await until(lambda: server.started or serve.done())
    house.port = listener.getsockname()[1]
    try:
        async with httpx2.AsyncClient(base_url=house.url, timeout=60) as house.client:
            yield house
    finally:
        if house.shadow is not None:
            house.shadow.close()
        await house.bridge.stop(grace=5)
        server.should_exit = True
        await serve
        house.executor.shutdown()
        house.service.policies.close()
        house.service.grammars.close()


def events(raw: bytes) -> list[bytes]:
    """The events of a stream, as whoever splits on blank lines sees them."""
    assert raw.endswith(b"\n\n")
    return raw.removesuffix(b"\n\n").split(b"\n\n")


def chunks(raw: bytes) -> list[dict[str, Any]]:
    """The JSON chunks of a stream that ended well."""
    *data, done = events(raw)
    assert done == b"data: [DONE]"
    assert all(event.startswith(b"data: ") for event in data)
    return [json.loads(event.removeprefix(b"data: ")) for event in data]
