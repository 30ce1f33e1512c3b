"""The composition root: from a configuration to a house that is ready to serve.

Everything is made here, in the order in which it can fail: model file, tokenizer, backend, pool,
policy. Nothing is half started when a ConfigurationError leaves this module.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import structlog
from rich.console import Console
from starlette.applications import Starlette

from app.application import create_application
from app.bridge import Bridge
from app.computing import cuda_settings, offload_memory, settle
from app.config import Config, check_pool
from app.config.policies import arms
from app.engine_settings import guard_settings, simulated_cost, step_limits
from app.experiment.experiment import Experiment
from app.experiment.wrong import Wrong
from app.guessing import Guessing, compose_guessing
from app.metrics import Metrics, Subject
from app.metrics.experiment import no_experiment
from app.metrics.shadow import no_shadow
from app.model_files import ensure_default_model
from app.policy_desk import PolicyDesk
from app.policy_loader import load_policy, try_policy
from app.problems import Problem, naming_the_key, refuse
from app.progress import bar
from app.ranks import lead_ranks
from app.recording.recording import Recording, open_recording
from app.service import Service
from app.shadow.machine import machine_of
from app.shadow.shadow import Shadow
from app.structured.grammars import Grammars
from app.tenancy import Tenancy, house_bounds
from app.text.calibration import calibration_tokens
from app.text.files import load_tokenizer
from app.text.template import ChatTemplate
from app.text.tokenizer import ByteTokenizer, Tokenizer
from app.tracing.spans import Spans, open_spans
from engine.allocation import ALLOCATIONS
from engine.backends import CudaSettings, LoadedModel, Progress, load_on_cpu, load_on_cuda
from engine.backends.base import Backend
from engine.backends.choice import CPU, CUDA, SIMULATED, Choice
from engine.backends.memory import auto_kv_bytes
from engine.backends.parallel.followers import Followers
from engine.backends.simulated import SimulatedBackend
from engine.batch import BLOCK
from engine.blocks import BlockPool
from engine.clock import Clock, MonotonicClock
from engine.cost import FittedCost, LearningCost
from engine.decisions import no_log
from engine.loop import Emit, Engine
from engine.outside import OUTSIDE
from engine.recorder import Recorder
from engine.relief import Offload, ReliefSettings
from engine.scheduler import Scheduler
from engine.speculation import Drafter
from engine.thread import EngineThread
from policies.base import Policy, Services

log = structlog.stdlib.get_logger("octavo")

SWITCH_S = 0.0005
"""Seconds that a thread waits for the interpreter before it asks for it. Between two calls into
native code the engine thread has some tenths of a millisecond of Python to do, while streams are
being written to. No difference to a step beside 256 clients was measured between this and Python's
own 5 ms, with which streams of a simulated backend took less CPU time."""

SIMULATED_CONTEXT = 8192
"""Context length of the simulated backend when no model file says otherwise, in tokens."""


@dataclass(frozen=True, slots=True)
class House:
    """What `compose` makes. Serving `application` starts and stops the engine thread.

    followers: the other processes that compute the model, None if there are none.
    """

    application: Starlette
    bridge: Bridge
    service: Service
    followers: Followers | None


@dataclass(frozen=True, slots=True)
class Core:
    """What computes and what it is told in: all but HTTP. The engine runs when it is stepped.

    config: what it was made of, every `auto` settled. choice: what computes, and why. path: the
    model file or folder, None if nothing is loaded. max_model_len: tokens of a request.
    """

    config: Config
    choice: Choice
    engine: Engine
    model: LoadedModel
    guessing: Guessing
    path: Path | None
    tokenizer: Tokenizer
    template: ChatTemplate | None
    max_model_len: int

    def close(self) -> None:
        """Give back what the models hold."""
        self.model.backend.close()
        self.guessing.close()


def compose(config: Config, console: Console) -> House:
    """Load the model and put the parts together. Raises ConfigurationError."""
    sys.setswitchinterval(SWITCH_S)
    bridge = Bridge(
        bounds=house_bounds(config.limits),
        max_lag=config.bridge.max_lag,
        stuck_after_s=config.health.stuck_after_s,
    )
    recording = open_recording(config)
    core = compose_engine(config, console, bridge.emit, recording)
    config, engine = core.config, core.engine
    executor = ThreadPoolExecutor(config.text.workers, thread_name_prefix="octavo-text")
    tenancy = Tenancy(config, engine.clock)
    policies = PolicyDesk(config.scheduler, bridge, partial(_services, engine.cost))
    experiment = _experiment(config, policies, engine.clock, bridge)
    shadow = _shadow(config, policies, engine)
    metrics = _metrics(config, core, tenancy, policies, bridge, experiment, shadow)
    service = Service(
        model_id=config.model.served_name,
        created=int(time.time()),
        max_model_len=core.max_model_len,
        tokenizer=core.tokenizer,
        template=core.template,
        bridge=bridge,
        clock=engine.clock,
        executor=executor,
        limits=config.limits,
        sse=config.sse,
        metrics=metrics,
        version=version("octavo"),
        max_body_bytes=config.server.max_body_bytes,
        tenancy=tenancy,
        policies=policies,
        grammars=Grammars(config.structured, core.tokenizer),
        strict_fields=config.api.strict_fields,
        request_templates=config.api.request_templates,
        per_request_metrics=config.api.per_request_metrics,
        isolate_tenants=config.engine.prefix_scope == "tenant",
        experiment=experiment,
        shadow=shadow,
    )
    spans = open_spans(config.tracing, config.model.served_name, version("octavo"))
    lifespan = _lifespan(service, EngineThread(engine), core, recording, spans)
    server = config.server
    application = create_application(
        service, lifespan, server.admin_key, server.cors_origins, spans
    )
    _announce(core)
    return House(application, bridge, service, core.model.followers)


def _experiment(
    config: Config, policies: PolicyDesk, clock: Clock, bridge: Bridge
) -> Experiment | None:
    """The policies that take turns, if any do. Raises ConfigurationError if one cannot be made."""

    def wrong() -> Wrong:
        return Wrong(bridge.stats.policy_faults, bridge.stats.fallback_steps)

    if not config.experiment.arms:
        return None
    for section, scheduler in arms(config).items():
        try_policy(scheduler, section)
    return Experiment(config.experiment, config.scheduler, policies, clock, wrong)


def _shadow(config: Config, policies: PolicyDesk, engine: Engine) -> Shadow | None:
    """The policies that are scored beside live traffic, if any are."""
    if not config.shadow.policies:
        return None
    make_machine = partial(machine_of, engine, config)
    return Shadow(config.shadow, config.scheduler, policies, engine.clock, make_machine)


def _metrics(
    config: Config,
    core: Core,
    tenancy: Tenancy,
    policies: PolicyDesk,
    bridge: Bridge,
    experiment: Experiment | None,
    shadow: Shadow | None,
) -> Metrics:
    """What is measured, before anything has happened; experiment and shadow hear of it."""
    engine = core.engine
    subject = Subject(
        model=config.model.served_name,
        version=version("octavo"),
        backend=core.choice.backend,
        policy=lambda: policies.current.policy,
        tenants=lambda: tenancy.tenant_names,
        classes=lambda: tenancy.class_names,
        waits=bridge.expected_waits,
        experiment=no_experiment if experiment is None else experiment.figures,
        shadow=no_shadow if shadow is None else shadow.figures,
        clock=engine.clock,
    )
    metrics = Metrics(config.metrics, subject, engine.scheduler.stats(engine.clock.now()))
    if experiment is not None:
        metrics.tell(experiment.ledger)
    if shadow is not None:
        metrics.tell(shadow.history)
        bridge.add_observer(shadow.steps.observe)
    return metrics


def compose_engine(
    config: Config, console: Console, emit: Emit, recording: Recording | None = None
) -> Core:
    """Load the model and make its engine, for who drives it himself. Raises ConfigurationError.

    recording: begins here, if there is one; whoever made it closes it.
    """
    config, choice = settle(config)
    path = model_path(config, console)
    with naming_the_key("model.path"):
        tokenizer = ByteTokenizer() if path is None else load_tokenizer(path)
        template = ChatTemplate.for_tokenizer(tokenizer)
    simulated = simulated_cost(config)
    cost = FittedCost(simulated) if path is None else FittedCost()
    policy = load_policy(config.scheduler, _services(cost))
    model = _load_model(config, choice, path, tokenizer, console)
    max_model_len = _max_model_len(config, model)
    guessing = compose_guessing(config, cost, tokenizer, model)
    recorder = None if recording is None else recording.recorder
    engine = _engine(config, policy, model, max_model_len, cost, guessing.drafter, emit, recorder)
    if recording is not None:
        recording.begin(engine)
    return Core(config, choice, engine, model, guessing, path, tokenizer, template, max_model_len)


def _services(cost: LearningCost) -> Services:
    """What a policy is given. Its random numbers start anew with it."""
    return Services(cost=cost, rng=random.Random(0))


def model_path(config: Config, console: Console) -> Path | None:
    """The model file or folder; None where the simulated backend is to do without."""
    if config.model.path != "auto":
        return Path(config.model.path)
    if config.engine.backend == "simulated":
        return None
    return ensure_default_model(Path(config.model.directory), console=console)


def _load_model(
    config: Config, choice: Choice, path: Path | None, tokenizer: Tokenizer, console: Console
) -> LoadedModel:
    """The model on the backend that was chosen."""
    if path is None or choice.backend == SIMULATED:
        return _simulated(config)
    if choice.backend == CUDA:
        with bar(console, "capturing CUDA graphs") as progress:
            return _load_on_cuda(config, path, cuda_settings(config, choice), progress)
    if config.engine.tensor_parallel > 1:
        return lead_ranks(config, path)
    with naming_the_key("model.path"):
        return load_on_cpu(
            path,
            dtype=config.model.dtype,
            calibration=calibration_tokens(tokenizer) if config.model.dtype == "int8" else (),
            folder=Path(config.model.directory),
            kv_memory_bytes=_kv_memory(config),
            kv_dtype=config.engine.kv_dtype,
            offload_memory_bytes=offload_memory(config),
            threads=config.engine.threads,
        )


def _load_on_cuda(
    config: Config, path: Path, settings: CudaSettings, progress: Progress
) -> LoadedModel:
    """The model on this process's GPU, or on all ranks'."""
    if config.engine.tensor_parallel > 1:
        return lead_ranks(config, path, settings, progress)
    with naming_the_key("model.path"):
        return load_on_cuda(path, settings, progress)


def _simulated(config: Config) -> LoadedModel:
    simulated = config.engine.simulated
    backend = SimulatedBackend(
        simulated_cost(config),
        simulated.total_blocks,
        wait=time.sleep if simulated.real_time else _no_wait,
        host_blocks=simulated.host_blocks,
        move_seconds=simulated.move_s,
    )
    return LoadedModel(backend, SIMULATED_CONTEXT, ByteTokenizer().vocab_size)


def _kv_memory(config: Config) -> int:
    """Bytes of the KV cache."""
    wanted = config.engine.kv_memory
    return auto_kv_bytes() if wanted == "auto" else wanted


def _announce(core: Core) -> None:
    """Log what was put together. Fields that do not apply are None."""
    config, path, model = core.config, core.path, core.model
    backend = core.choice.backend
    real = backend != SIMULATED
    blocks = model.backend.total_blocks
    log.info(
        "ready to serve",
        model=config.model.served_name,
        file=str(path) if path else None,
        backend=backend,
        backend_reason=core.choice.reason,
        attention=core.choice.attention,
        dtype=config.model.dtype if real else None,
        threads=model.threads,
        ranks=config.engine.tensor_parallel if model.followers else None,
        native=model.native,
        kv_blocks=blocks,
        kv_tokens=blocks * BLOCK,
        kv_bytes=_kv_memory(config) if backend == CPU else None,
        kv_dtype=config.engine.kv_dtype if real else None,
        host_blocks=model.backend.host_blocks,
        max_model_len=config.model.max_model_len or model.context_length,
        policy=config.scheduler.policy,
        depth=config.engine.steps_in_flight,
        allocation=config.engine.allocation,
        speculation=config.engine.speculation.method,
        draft_model=config.engine.speculation.model if core.guessing.model else None,
    )


def _no_wait(seconds: float) -> None:
    """Steps take no longer than they take."""


def _max_model_len(config: Config, model: LoadedModel) -> int:
    """Tokens of a request at most; the model and the pool must both hold that many."""
    wanted = config.model.max_model_len
    if wanted is not None and wanted > model.context_length:
        message = f"{wanted} is more than the model's own context of {model.context_length} tokens"
        refuse([Problem("model.max_model_len", message)])
    length = wanted or model.context_length
    check_pool(
        config,
        total_blocks=model.backend.total_blocks,
        block_size=BLOCK,
        max_model_len=length,
    )
    return length


def _engine(
    config: Config,
    policy: Policy,
    model: LoadedModel,
    max_model_len: int,
    cost: LearningCost,
    drafter: Drafter | None,
    emit: Emit,
    recorder: Recorder | None,
) -> Engine:
    pool = BlockPool(model.backend.total_blocks)
    scheduler = Scheduler(
        policy,
        pool,
        step_limits(config, max_model_len),
        guard=guard_settings(config),
        prefix_cache=config.engine.caches_prefixes,
        allocation=ALLOCATIONS[config.engine.allocation],
        relief=_relief(config, model.backend, cost),
        drafter=drafter,
        log=no_log if recorder is None else recorder.decided,
        outside=recorder or OUTSIDE,
    )
    return Engine(
        scheduler=scheduler,
        backend=model.backend,
        clock=MonotonicClock(),
        cost=cost,
        emit=emit,
        depth=config.engine.steps_in_flight,
        recorder=recorder,
    )


def _relief(config: Config, backend: Backend, cost: LearningCost) -> ReliefSettings:
    """How requests give way; without host memory, or if it is not wanted, nothing is offloaded."""
    wanted = config.engine.relief
    offload = None
    if "offload" in wanted and backend.host_blocks:
        offload = Offload(backend.host_blocks, backend.move_seconds, cost)
    return ReliefSettings(offload, recompute="recompute" in wanted)


def _lifespan(
    service: Service,
    thread: EngineThread,
    core: Core,
    recording: Recording | None,
    spans: Spans | None,
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Start the engine thread with the application, and end it with its last request."""

    @asynccontextmanager
    async def lifespan(application: Starlette) -> AsyncIterator[None]:
        service.bridge.start(thread)
        if service.experiment is not None:
            service.experiment.start()
        if service.shadow is not None:
            service.shadow.start()
        try:
            yield
        finally:
            if service.experiment is not None:
                service.experiment.close()
            if service.shadow is not None:
                service.shadow.close()
            await service.bridge.stop(grace=0)
            service.executor.shutdown(wait=False, cancel_futures=True)
            service.policies.close()
            service.grammars.close()
            core.close()
            if recording is not None:
                await asyncio.to_thread(recording.close)
            if spans is not None:
                await spans.end()

    return lifespan
