"""What the routes need to know, in one frozen record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from app.bridge import Bridge
from app.config.schema import LimitsConfig, SseConfig
from app.directory import Directory
from app.errors import model_not_found
from app.experiment.experiment import Experiment
from app.metrics import Metrics
from app.policy_desk import PolicyDesk
from app.shadow.shadow import Shadow
from app.structured.grammars import Grammars
from app.tenancy import Tenancy
from app.text.template import ChatTemplate
from app.text.tokenizer import Tokenizer
from engine.clock import Clock

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

SMALL_INPUT = 4096
"""Bytes that are read, templated and tokenised in less time than handing them over takes."""


@dataclass(frozen=True, slots=True)
class Service:
    """One served model and the way to its engine.

    model_id: its name in the API. created: Unix seconds at which it was loaded. max_model_len:
    tokens of a request at most, prompt and answer together. clock: the engine's. executor: where
    large inputs are read. max_body_bytes: larger bodies are refused. tenancy: who a request is of.
    policies: which policy is in charge. grammars: what answers may be held to. request_templates:
    whether requests may bring chat templates. per_request_metrics: whether replies say how long
    they took.
    isolate_tenants: whether tenants share no cached prefix. experiment: policies that take turns,
    if any do. shadow: policies that are scored beside what is in charge, if any are. directory:
    open requests by their clients' names.
    """

    model_id: str
    created: int
    max_model_len: int
    tokenizer: Tokenizer
    template: ChatTemplate | None
    bridge: Bridge
    clock: Clock
    executor: Executor
    limits: LimitsConfig
    sse: SseConfig
    metrics: Metrics
    version: str
    max_body_bytes: int
    tenancy: Tenancy
    policies: PolicyDesk
    grammars: Grammars
    strict_fields: bool = False
    request_templates: bool = False
    per_request_metrics: bool = False
    isolate_tenants: bool = False
    experiment: Experiment | None = None
    shadow: Shadow | None = None
    directory: Directory = field(default_factory=Directory)

    @property
    def arm(self) -> str | None:
        """The arm of the experiment that is in charge, None without one."""
        return None if self.experiment is None else self.experiment.arm

    def effort(self, body: bytes) -> int:
        """How much work a body may make, in the bytes that `off_loop` counts.

        With templates in it that is not told by its length.
        """
        return SMALL_INPUT + 1 if self.request_templates else len(body)

    async def off_loop(
        self,
        size: int,
        work: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Do `work` on an input of `size` bytes: small ones here, large ones in the executor."""
        if size <= SMALL_INPUT:
            return work(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, partial(work, *args, **kwargs))

    def require_model(self, name: str | None) -> None:
        """Check the model that a request names; None is the one that is served.

        Raises ApiError (404) for any other.
        """
        if name is not None and name != self.model_id:
            raise model_not_found(name)
