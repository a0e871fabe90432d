"""Liveness, readiness and Prometheus metrics; never reveals how often a case is read."""

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute, allow_everyone, require_monitoring_token
from app.audit.chain import events
from app.context import AppContext
from app.database.engine import settings_without_force
from app.http import observability
from app.http.errors import Problem, list_problem_responses
from app.http.models import ResponseModel
from app.jobs.service import count_living_workers, counts_by_state
from app.metrics.service import read_published_estimates
from app.releases.service import get_champion_alias

router = APIRouter(tags=["operations"], route_class=GuardedRoute)


class HealthOut(ResponseModel):
    """Whether the process answers."""

    status: str


class ReadyOut(ResponseModel):
    """Whether requests can be served, part by part; without a worker they can, but jobs wait.

    ``device`` is where the network runs: ``cpu``, ``cuda`` or ``remote``, with why it is not the GPU.
    """

    status: str
    database: str
    release: str
    worker: str
    storage: str = "ok"
    device: str = "cpu"


@router.get("/healthz", operation_id="healthz", dependencies=[Depends(allow_everyone)])
async def report_liveness() -> HealthOut:
    """The process answers, however many requests wait for a thread."""
    return HealthOut(status="ok")


@router.get(
    "/readyz",
    operation_id="readyz",
    response_model=ReadyOut,
    responses={503: {"model": ReadyOut, "description": "not ready"}},
    dependencies=[Depends(allow_everyone)],
)
def report_readiness(context: AppContext) -> Response:
    """Database, release and storage can serve."""
    database = release = worker = storage = "ok"
    try:
        context.images.store.check()
    except Problem as exc:
        storage = exc.detail
    try:
        with context.database.read() as session:
            if events.count_keys(session) != len(context.keys.audit.signers):
                database = "its key was rotated; start this process again with the current key ring"
            without_force = settings_without_force(session)
            if without_force:
                database = f"its time-outs are not in force: {', '.join(without_force)}"
            if not count_living_workers(session):
                worker = "no worker lives; jobs wait"
            served = context.inference.served(get_champion_alias(session))
        release = served.predictor.network.trouble() or release
        if context.inference.fault is not None:
            release = "the champion cannot be loaded; an earlier release is serving"
    except SQLAlchemyError:
        database, release, worker = "the database does not answer", "unknown", "unknown"
    except Problem as exc:
        release = exc.detail
    ready = database == release == storage == "ok"
    status = "ready" if ready else "not ready"
    body = ReadyOut(
        status=status,
        database=database,
        release=release,
        worker=worker,
        storage=storage,
        device=context.inference.place(),
    )
    return JSONResponse(body.model_dump(), 200 if ready else 503)


@router.get(
    "/metrics",
    operation_id="prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **list_problem_responses()},
    dependencies=[Depends(require_monitoring_token)],
)
def report_prometheus_metrics(context: AppContext) -> Response:
    """Prometheus text: requests, latency, jobs, and the champion's estimates that the worker published last."""
    if observability.counts_are_old():
        try:
            with context.database.read() as session:
                _count_database_rows(session)
        except SQLAlchemyError:
            pass  # what the process itself counts is reported all the same
    return Response(observability.render_prometheus_text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _count_database_rows(session: Session) -> None:
    """Set the gauges of what the database contains."""
    published = read_published_estimates(session)
    observability.publish_database_counts(
        observability.DatabaseCounts(
            jobs=counts_by_state(session),
            n_workers=count_living_workers(session),
            release="" if published is None else str(published.release_id),
            estimates={} if published is None else published.estimates,
        )
    )
