"""The HTTP side before an engine in virtual time: one thread, no socket, no waiting."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
from pydantic import SecretStr

from app.application import create_application
from app.bounds import Bounds
from app.bridge import Bridge
from app.config import Config
from app.metrics import Metrics
from app.policy_desk import PolicyDesk
from app.service import Service
from app.structured.grammars import Grammars
from app.tenancy import Tenancy
from app.text.tokenizer import ByteTokenizer
from engine.backends.simulated import SimulatedBackend
from engine.blocks import BlockPool
from engine.clock import VirtualClock
from engine.cost import LinearCost
from engine.decisions import DecisionLog
from engine.guard import GuardSettings
from engine.inbox import Message
from engine.limits import Limits
from engine.loop import Engine
from engine.scheduler import Scheduler
from policies.base import Policy, Services

KEY = "k"


class VirtualThread:
    """Stands for the engine thread: what is posted waits until a step takes it."""

    alive = False
    ended = None

    def __init__(self) -> None:
        self.mail: list[Message] = []

    def start(self) -> None:
        """There is nothing to start."""

    def join(self, timeout: float | None = None) -> None:
        """Nor to wait for."""

    def post(self, message: Message) -> None:
        self.mail.append(message)


class VirtualHouse:
    """A served engine whose steps take what `cost` says, and no time at all."""

    def __init__(
        self, policy: type[Policy], cost: LinearCost, *, blocks: int, limits: Limits
    ) -> None:
        self.clock = VirtualClock()
        self.log = DecisionLog()
        self.thread: Any = VirtualThread()
        self.bridge = Bridge(bounds=Bounds(1000), max_lag=1000)
        self.scheduler = Scheduler(
            policy(services=Services(cost, random.Random(0))),
            BlockPool(blocks),
            limits,
            guard=GuardSettings(max_step_cpu_s=math.inf),
            log=self.log,
        )
        self.engine = Engine(
            scheduler=self.scheduler,
            backend=SimulatedBackend.virtual(cost, blocks, self.clock),
            clock=self.clock,
            cost=cost,
            emit=lambda outputs, look: None,
        )
        config, executor = Config(), ThreadPoolExecutor(1)
        service = Service(
            model_id="m",
            created=0,
            max_model_len=limits.model_len,
            tokenizer=ByteTokenizer(),
            template=None,
            bridge=self.bridge,
            clock=self.clock,
            executor=executor,
            limits=config.limits,
            sse=config.sse,
            metrics=Metrics(),
            version="0",
            max_body_bytes=1000,
            tenancy=Tenancy(config),
            policies=PolicyDesk(config.scheduler, self.bridge, lambda: None),  # type: ignore[arg-type,return-value]
            grammars=Grammars(config.structured, ByteTokenizer()),
        )
        application = create_application(service, admin_key=SecretStr(KEY))
        self.client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(application),
            base_url="http://house",
            headers={"authorization": f"Bearer {KEY}"},
        )

    async def open(self) -> None:
        """Take requests from now on."""
        self.bridge.start(self.thread)

    async def step(self, mail: Iterable[Message], paths: Iterable[str] = ()) -> list[Any]:
        """One step; what GETs of `paths` say that are posted before it, as JSON."""
        self.thread.mail += mail
        before = len(self.thread.mail)
        replies = [asyncio.ensure_future(self.client.get(path)) for path in paths]
        async with asyncio.timeout(60):
            while len(self.thread.mail) < before + len(replies):  # noqa: ASYNC110
                await asyncio.sleep(0)
        letters, self.thread.mail = self.thread.mail, []
        self.engine.step(letters)
        return [(await reply).raise_for_status().json() for reply in replies]
