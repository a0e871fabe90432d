"""Liveness, readiness and Prometheus metrics; never reveals how often a case is read."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute, allow_everyone, require_monitoring_token
from app.audit.anchor import HeadFile
from app.audit.chain import events
from app.context import AppContext, ServiceContext
from app.database.engine import settings_without_force
from app.http import observability
from app.http.errors import Problem, StorageFull, list_problem_responses
from app.http.limiter import COUNTED_LIMITS, Limit, Limiter, LimitUnit
from app.http.models import ResponseModel
from app.jobs.service import count_living_workers, counts_by_state, list_missing_workers
from app.metrics.service import read_published_estimates
from app.releases.service import get_champion_alias
from app.settings import Settings
from app.storage.blobs import require_space

router = APIRouter(tags=["operations"], route_class=GuardedRoute)


class HealthOut(ResponseModel):
    """The process responds."""

    status: Literal["ok"]


class LimitOut(ResponseModel):
    """A limit and its current use."""

    name: str
    per: str
    unit: LimitUnit
    size: int | None
    queue: int | None
    wait_seconds: float | None
    in_use: int | None = None
    waiting: int | None = None


class ReadyOut(ResponseModel):
    """Readiness, part by part."""

    status: Literal["ready", "not ready"]
    database: str
    release: str
    worker: str
    storage: str = "ok"
    device: str = "cpu"
    limits: list[LimitOut] | None = None


@router.get("/healthz", operation_id="healthz", dependencies=[Depends(allow_everyone)])
async def report_liveness() -> HealthOut:
    """Check that the process responds. Even if all threads are busy."""
    return HealthOut(status="ok")


@router.get(
    "/readyz",
    operation_id="readyz",
    response_model=ReadyOut,
    responses={422: list_problem_responses()[422], 503: {"model": ReadyOut, "description": "not ready"}},
    dependencies=[Depends(allow_everyone)],
)
def report_readiness(
    request: Request,
    context: AppContext,
    verbose: Annotated[str | None, Query()] = None,
) -> Response:
    """Check that requests can be served. Database, model release and storage; 503 if not."""
    body = check_readiness(context, request.app.state.heads)
    if verbose is not None:
        body.limits = _list_limits([*request.app.state.limiters, *context.list_limiters()], context.settings)
    return JSONResponse(body.model_dump(exclude_unset=True), 200 if body.status == "ready" else 503)


def check_readiness(context: ServiceContext, heads: HeadFile) -> ReadyOut:
    """Ask database, release and storage whether they can serve."""
    release = worker = "ok"
    database, storage = heads.lost or "ok", heads.unwritten or "ok"  # without a line outside labels are still taken
    works = True
    try:
        context.images.store.check()
        require_space(context.settings.home, context.settings.min_free_bytes)
    except Problem as exc:
        # with little space left labels are still taken: the process stays in service
        storage, works = exc.detail, isinstance(exc, StorageFull)
    try:
        with context.database.read() as session:
            if events.count_keys(session) != len(context.keys.audit.signers):
                database = "its key was rotated; start this process again with the current key ring"
            without_force = settings_without_force(session)
            if without_force:
                database = f"its time-outs are not in force: {', '.join(without_force)}"
            worker = _describe_workers(session)
            served = context.inference.served(get_champion_alias(session))
        release = served.predictor.network.trouble() or release
        if context.inference.fault is not None:
            release = "the champion cannot be loaded; an earlier release is serving"
    except SQLAlchemyError:
        database, release, worker = "the database does not answer", "unknown", "unknown"
    except Problem as exc:
        release = exc.detail
    ready = works and database == release == "ok"
    return ReadyOut(
        status="ready" if ready else "not ready",
        database=database,
        release=release,
        worker=worker,
        storage=storage,
        device=context.inference.place(),
    )


def _list_limits(limiters: Sequence[Limiter], settings: Settings) -> list[LimitOut]:
    rows: list[tuple[Limit, int | None, int | None, int | None, int | None]]
    rows = [(one.limit, one.size, one.queue, *one.count_use()) for one in limiters]
    for limit in COUNTED_LIMITS:
        size = getattr(settings, limit.setting.lower()) if limit.setting else limit.size
        rows.append((limit, size or None, 0, None, None))  # 0 is no limit
    return [
        LimitOut(
            name=limit.name,
            per=limit.per,
            unit=limit.unit,
            size=size,
            queue=queue,
            wait_seconds=limit.wait_seconds,
            in_use=in_use,
            waiting=waiting,
        )
        for limit, size, queue, in_use, waiting in rows
    ]


def _describe_workers(session: Session) -> str:
    if not count_living_workers(session):
        return "no worker is running; jobs wait"
    missing = [f"{row.executor_id} since {row.seen_at:%Y-%m-%d %H:%M} UTC" for row in list_missing_workers(session)]
    return f"missing: {', '.join(missing)}" if missing else "ok"


@router.get(
    "/metrics",
    operation_id="prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **list_problem_responses()},
    dependencies=[Depends(require_monitoring_token)],
)
def report_prometheus_metrics(context: AppContext) -> Response:
    """Get Prometheus metrics. Requests, latencies, jobs, and the champion's published estimates."""
    if observability.counts_are_old():
        try:
            with context.database.read() as session:
                _count_database_rows(session)
        except SQLAlchemyError:
            pass  # what the process itself counts is reported all the same
    return Response(observability.render_prometheus_text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _count_database_rows(session: Session) -> None:
    published = read_published_estimates(session)
    observability.publish_database_counts(
        observability.DatabaseCounts(
            jobs=counts_by_state(session),
            n_workers=count_living_workers(session),
            release="" if published is None else str(published.release_id),
            estimates={} if published is None else published.estimates,
        )
    )
