"""Logs, Prometheus metrics and traces, without names, notes or images."""

import logging
import os
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import structlog
from asgi_correlation_id import correlation_id
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from secondread import __version__

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
        raise ValueError(
            f"{variable} is set, and traces need the extra otel: pip install 'secondread-cells[otel]'"
        ) from exc
    own = logging.getLogger("opentelemetry")
    own.propagate = False
    own.addHandler(_UndeliveredSpanHandler())
    _tracer = _provider.get_tracer("secondread", __version__)


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
    own = Resource(about | {"service.version": __version__})
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


REQUESTS = Counter("secondread_requests", "Requests answered.", ["method", "route", "status"])
SECONDS = Histogram("secondread_request_seconds", "Time to answer.", ["method", "route"])
WAITING = Gauge(
    "secondread_predictions_waiting", "Predictions that wait for the network, or run.", multiprocess_mode="livesum"
)
BATCHES = Histogram("secondread_batch_size", "Images per run of the network.", buckets=[1, 2, 4, 8, 16, 32, 64])
#: Variable that names the folder in which server processes of one port keep what they count, to be added up.
COUNTED_TOGETHER = "PROMETHEUS_MULTIPROC_DIR"
_COUNT_SECONDS = 10.0
_counted_in: Path | None = None
# the last ones before a defect, as logged
_CALLS = 10
_counted_at = -_COUNT_SECONDS
_counting = threading.Lock()


def configure_logging() -> None:
    """One JSON line per event on stderr."""
    # Pillow's, of which a picture may be worth 65,000
    warnings.filterwarnings("ignore", module=r"PIL\.")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=_get_stderr()),
    )


def _get_stderr() -> Any:
    import sys

    return sys.stderr


@dataclass(frozen=True)
class DatabaseCounts:
    """Numbers of rows in the database, counted by one process for all."""

    # number of jobs by state
    jobs: Mapping[str, int] = field(default_factory=dict)
    # worker processes that live
    n_workers: int = 0
    # the champion, as the worker last published its estimates; empty before
    release: str = ""
    # of its metrics, by name
    estimates: Mapping[str, float] = field(default_factory=dict)


class _DatabaseCountsCollector(Collector):
    """Gauges of what the database contains, all of one moment."""

    shown = DatabaseCounts()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges, with their values."""
        counts = self.shown
        estimates = GaugeMetricFamily(
            "secondread_estimate",
            "Metrics of the champion on the evaluation partition, weighted for selection, as the worker last published "
            "them.",
            labels=["metric", "release"],
        )
        for metric, value in counts.estimates.items():
            estimates.add_metric([metric, counts.release], value)
        jobs = GaugeMetricFamily("secondread_jobs", "Jobs by state, counted in the last ten seconds.", labels=["state"])
        for state, count in counts.jobs.items():
            jobs.add_metric([state], count)
        yield estimates
        yield jobs
        yield GaugeMetricFamily(
            "secondread_workers", "Worker processes that live, counted in the last ten seconds.", counts.n_workers
        )


_counts, _in_database = _DatabaseCountsCollector(), CollectorRegistry()
_in_database.register(_counts)


def publish_database_counts(counted: DatabaseCounts) -> None:
    """Publish new counts of the database."""
    _counts.shown = counted


def counts_are_old() -> bool:
    """Whether rows should be counted again: at most every few seconds, whoever asks how often."""
    global _counted_at
    with _counting:
        old = time.monotonic() - _counted_at > _COUNT_SECONDS
        if old:
            _counted_at = time.monotonic()
        return old


def render_prometheus_text() -> bytes:
    """Render Prometheus text, summed over the processes of this port."""
    measured: CollectorRegistry = REGISTRY
    if _counted_in is not None and _counted_in.is_dir():  # else somebody has tidied up: its own are better than none
        measured = CollectorRegistry()
        multiprocess.MultiProcessCollector(measured, str(_counted_in))  # type: ignore[no-untyped-call]
    return generate_latest(measured) + generate_latest(_in_database)


def share_process_metrics(folder: Path) -> None:
    """Share the metrics of all processes of this port."""
    global _counted_in
    _counted_in = folder
    for path in folder.glob("gauge_live*_*.db"):
        pid = int(path.stem.rpartition("_")[2])
        if not _is_process_alive(pid):
            multiprocess.mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]


def _is_process_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def log_defect(error: Exception) -> str:
    """Log an unexpected error by its kind and calls, without its message."""
    frames = traceback.extract_tb(error.__traceback__)[-_CALLS:]
    calls = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
    _log.error("defect", error=type(error).__name__, calls=calls, request_id=correlation_id.get())
    return correlation_id.get() or "unknown"


class RequestLog:
    """ASGI middleware: log line, count, latency and span of a request, by the route's template, not its path."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or not is_tracing_on() or scope["path"].startswith(UNTRACED):
            await self._serve(scope, receive, send, TraceSpan())
            return
        with record_span("request", "server", get_parent_header(dict(scope["headers"]))) as span:
            await self._serve(scope, receive, send, span)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, span: TraceSpan) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path", "unmatched")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            answered, took = _of_route(method, route, status)
            answered.inc()
            took.observe(seconds)
            request_id = correlation_id.get()
            span.describe_request(method, route, status, request_id)
            _log.info(
                "request",
                method=method,
                route=route,
                status=status,
                milliseconds=round(1000 * seconds, 1),
                request_id=request_id,
            )


@cache
def _of_route(method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    """The metrics of a route's answers: to look them up by their labels takes several times as long as to count."""
    return REQUESTS.labels(method, route, str(status)), SECONDS.labels(method, route)


_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
