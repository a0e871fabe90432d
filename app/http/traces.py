"""Traces with OpenTelemetry, from a request to the network and to its jobs.

OpenTelemetry's own variables say where they go (``OTEL_EXPORTER_OTLP_ENDPOINT``); unset, nothing of it is imported.
Spans are few and made here: what frameworks record by themselves has paths and parameters, which name cases and
patients. A span has the route's template, identifiers and numbers, as the log has, and never an exception's words.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

import structlog

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

#: Header, and name of the workflow's attribute, that carries a trace on (W3C Trace Context).
TRACEPARENT = "traceparent"
#: What supervisors and monitoring ask for every few seconds.
UNTRACED = ("/healthz", "/readyz", "/metrics", "/v2/health/", "/static/")
# how long a process that ends waits for its last spans to be delivered, and how often it says that they are not
_LAST_SECONDS, _SAY_SECONDS = 3.0, 60.0
_log = structlog.get_logger("secondread")
_tracer: "trace.Tracer | None" = None
_provider: "TracerProvider | None" = None


def start_tracing(process: str, variable: str | None) -> None:
    """Start exporting this process's spans to the configured collector, if any."""
    global _tracer, _provider
    if variable is None:
        return
    try:
        _provider = _provider_of(process)
    except ImportError as exc:
        raise ValueError(f"{variable} is set, and traces need the extra otel: pip install 'secondread[otel]'") from exc
    own = logging.getLogger("opentelemetry")
    own.propagate = False
    own.addHandler(_UndeliveredSpanHandler())
    _tracer = _provider.get_tracer("secondread", version("secondread"))


def stop_tracing() -> None:
    """Deliver the last spans and stop; repeated calls do nothing."""
    global _tracer, _provider
    provider, _tracer, _provider = _provider, None, None
    if provider is not None:
        last = threading.Thread(target=provider.shutdown, daemon=True)
        last.start()
        last.join(_LAST_SECONDS)


def _provider_of(process: str) -> "TracerProvider":
    """Make a provider that batches spans and sends them from its own thread."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {"service.name": f"secondread-{process}", "service.instance.id": str(uuid.uuid4())}
    own = Resource(about | {"service.version": version("secondread")})
    environment = OTELResourceDetector().detect()  # OTEL_SERVICE_NAME and so on, which win
    # not the global one: what libraries record by themselves goes nowhere
    provider = TracerProvider(resource=own.merge(environment), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class _UndeliveredSpanHandler(logging.Handler):
    """Logs at most once a minute that spans are not delivered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said_at = -_SAY_SECONDS

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        if time.monotonic() - self._said_at >= _SAY_SECONDS:
            self._said_at = time.monotonic()
            _log.warning("traces are not delivered", reason=record.getMessage().splitlines()[0][:300])


class TraceSpan:
    """Span, or a stand-in where traces are off."""

    def __init__(self, recorded: "trace.Span | None" = None) -> None:
        self._recorded = recorded

    def describe_request(self, method: str, route: str, status: int, request_id: str | None) -> None:
        """Say which request it was."""
        if self._recorded is not None:
            self._recorded.update_name(f"{method} {route}")
            self._recorded.set_attributes(
                {
                    "http.request.method": method,
                    "http.route": route,
                    "http.response.status_code": status,
                    "secondread.request_id": request_id or "unknown",
                }
            )
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                self.fail(str(status))

    def fail(self, kind: str) -> None:
        """Mark it as failed, by the kind of failure alone."""
        if self._recorded is not None:
            from opentelemetry.trace import StatusCode

            self._recorded.set_status(StatusCode.ERROR)
            self._recorded.set_attribute("error.type", kind)


@contextmanager
def record_span(
    name: str,
    kind: Literal["internal", "server", "client", "consumer"] = "internal",
    parent: str | None = None,
    **attributes: str | int,
) -> Iterator[TraceSpan]:
    """Record what is done within the block, below the span that this thread is in."""
    tracer = _tracer
    if tracer is None:
        yield TraceSpan()
        return
    from opentelemetry.trace import SpanKind

    recorded = tracer.start_as_current_span(
        name,
        context=None if parent is None else _context_of(parent),
        kind=SpanKind[kind.upper()],
        record_exception=False,
        set_status_on_exception=False,
        attributes={f"secondread.{name}": value for name, value in attributes.items()},
    )
    with recorded as current:
        own = TraceSpan(current)
        try:
            yield own
        except BaseException as exc:
            own.fail(type(exc).__name__)
            raise


def _context_of(parent: str) -> "Context":
    """Context of another process's span; a new trace if it cannot be parsed."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # not what the caller may have added for others (tracestate, baggage)
    return TraceContextTextMapPropagator().extract({TRACEPARENT: parent}, Context())


def get_trace_headers() -> dict[str, str]:
    """Headers that continue the present trace in another process."""
    if _tracer is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name: value for name, value in carrier.items() if name == TRACEPARENT}


def get_parent_header(headers: Mapping[bytes, bytes]) -> str:
    """Traceparent of a request's headers, empty where it has none."""
    return headers.get(TRACEPARENT.encode(), b"").decode("latin-1")


def is_tracing_on() -> bool:
    """Whether spans are collected."""
    return _tracer is not None
