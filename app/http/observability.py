"""Logs and Prometheus metrics, without names, notes or images."""

import logging
import os
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import structlog
from asgi_correlation_id import correlation_id
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http import traces

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
_log = structlog.get_logger("secondread")


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
        if scope["type"] != "http" or not traces.is_tracing_on() or scope["path"].startswith(traces.UNTRACED):
            await self._serve(scope, receive, send, traces.TraceSpan())
            return
        with traces.record_span("request", "server", traces.get_parent_header(dict(scope["headers"]))) as span:
            await self._serve(scope, receive, send, span)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, span: traces.TraceSpan) -> None:
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
