"""From ended requests to a collector. OpenTelemetry is imported only if somebody wants spans."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.types import Scope

from app.config.tracing_schema import TracingConfig
from app.record import Record
from app.tracing.attributes import OPERATIONS, attributes

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import Sampler

_BATCH: Final = 512
"""Spans of one post; OpenTelemetry's number."""

_PARENT: Final = ("traceparent", "tracestate")
"""Headers that say whose child a span is (W3C Trace Context)."""


class Spans:
    """Makes the span of a request that is over. Who makes it waits for nobody: a thread of
    OpenTelemetry's posts what is queued, and what is too much for the queue is lost."""

    def __init__(self, provider: TracerProvider, config: TracingConfig, model: str) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._config = config
        self._model = model
        self._tracer = provider.get_tracer("octavo")
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)

    def close(self, scope: Scope, record: Record, duration: float) -> None:
        """Make the span of a request that took `duration` seconds, if it was one for tokens.

        Its status is an error if it ended in one; who leaves has made none.
        """
        operation = OPERATIONS.get(scope["path"]) if scope["method"] == "POST" else None
        if operation is None:
            return
        end = time.time_ns()
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=self._propagator.extract(_carrier(scope)),
            kind=self._kind,
            attributes=attributes(
                record,
                operation=operation,
                model=self._model,
                duration=duration,
                stop_strings=self._config.stop_strings,
            ),
            start_time=end - int(duration * 1e9),
        )
        if record.error is not None:
            span.set_status(self._failed)
        span.end(end)

    async def end(self) -> None:
        """Post what is queued, for as long as a collector may take; what is left then is lost.

        The thread that posts is a daemon, which keeps no process alive.
        """
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, self._config.timeout_s)


def open_spans(config: TracingConfig, model: str, version: str) -> Spans | None:
    """Spans as they are configured; None if nobody wants any. Needs the extra `otel`."""
    if not config.enabled:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(
        endpoint=config.endpoint,
        headers={name: value.get_secret_value() for name, value in config.headers.items()} or None,
        timeout=config.timeout_s,
    )
    provider = TracerProvider(
        sampler=_sampler(config.sample_ratio),
        resource=_resource(version),
        shutdown_on_exit=False,  # `Spans.end` waits for a bounded time, an exit would not
    )
    processor = BatchSpanProcessor(
        exporter,
        max_queue_size=config.max_queued,
        max_export_batch_size=min(config.max_queued, _BATCH),
    )
    provider.add_span_processor(processor)
    return Spans(provider, config, model)


def _sampler(ratio: float | None) -> Sampler | None:
    """None is for OTEL_TRACES_SAMPLER. Whoever sends a traceparent has decided already."""
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    return None if ratio is None else ParentBasedTraceIdRatio(ratio)


def _resource(version: str) -> Resource:
    """Who makes the spans; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    ours = Resource.create({"service.name": "octavo", "service.version": version})
    return ours.merge(OTELResourceDetector().detect())


def _carrier(scope: Scope) -> Mapping[str, str]:
    """The headers of a trace; one that comes twice says nothing."""
    headers = Headers(scope=scope)
    given = {name: headers.getlist(name) for name in _PARENT}
    return {name: values[0] for name, values in given.items() if len(values) == 1}
