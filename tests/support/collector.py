"""A collector of traces: it takes what OpenTelemetry's exporters send by HTTP, and keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class KeptSpan:
    """A span as it came over the wire."""

    process: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]


@dataclass
class Collector:
    """What has arrived."""

    port: int = 0
    spans: list[KeptSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    freed: threading.Event = field(default_factory=threading.Event)

    @property
    def variables(self) -> dict[str, str]:
        """What makes a process send its spans here, soon after each."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}", "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def named(self, name: str) -> list[KeptSpan]:
        return [span for span in self.spans if span.name == name]

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {row.key: row.value.string_value for row in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    said = {row.key: row.value.string_value or str(row.value.int_value) for row in span.attributes}
                    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                    self.spans.append(KeptSpan(about["service.name"], span.name, *ids, said))


@contextmanager
def collecting() -> Iterator[Collector]:
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if kept.held.is_set():
                kept.freed.wait()
                return
            kept.take(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    kept.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        kept.freed.set()
        server.shutdown()
        server.server_close()
        thread.join()
