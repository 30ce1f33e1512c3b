"""A collector of OpenTelemetry: a tiny HTTP server that keeps the spans which it is posted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What came: spans, and the attributes and headers that came along with the latest."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.raw = b""

    def take(self, headers: dict[str, str], body: bytes) -> None:
        """Read a post."""
        request = ExportTraceServiceRequest.FromString(body)
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.raw += body
        for group in request.resource_spans:
            self.resource = attributes(group.resource)
            for scope in group.scope_spans:
                self.spans.extend(scope.spans)


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a span or of a resource."""
    return {each.key: _value(each.value) for each in holder.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collector.take(dict(self.headers), body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
