"""HTML routes of a lead's morning: report, policy, releases, jobs, imports."""

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Query, Request, Response, UploadFile
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.auth.policy import Policy
from app.auth.service import confirm_password
from app.context import Context, Parts
from app.evaluations import frozen
from app.evaluations.report import CHARTS
from app.evaluations.schemas import EvaluationIn
from app.imports.routes import get_import
from app.imports.work import begin_import, check_archive
from app.jobs import engine
from app.jobs.schemas import job_out
from app.pages import lead_views
from app.pages.lead_views import Asked
from app.pages.reader_routes import checked
from app.pages.render import go, page
from app.platform.database import Reader, Writer
from app.platform.errors import Invalid, NotFound
from app.platform.principal import Principal
from app.recalibration.change_plan import ChangePlan
from app.releases.schemas import RecalibrationIn
from app.releases.service import ask_predictions, ask_recalibration, move_alias
from app.tables import Job
from app.triage.schemas import PolicyIn
from app.triage.service import add_policy, list_policies

router = APIRouter(include_in_schema=False)
_Viewer = Annotated[Principal, Depends(Policy("metrics:read"))]
_Manager = Annotated[Principal, Depends(Policy("manage"))]
_Importer = Annotated[Principal, Depends(Policy("cases:write"))]
_Text = Annotated[str, Form(max_length=2000)]
_EVENT_SECONDS, _IDLE, _RETRY_MS = 1.0, 15, 2000


def _asked(
    partition: Annotated[Literal["evaluation", "calibration", "all"], Query()] = "evaluation",
    weighting: Annotated[Literal["ipw", "none"], Query()] = "ipw",
    group_by: Annotated[Literal["", "site", "month"], Query()] = "",
    site: Annotated[str, Query(max_length=200)] = "",
) -> Asked:
    return Asked(partition, weighting, group_by or "site", site or None)


_Question = Annotated[Asked, Depends(_asked)]


@router.get("/report")
def report(request: Request, context: Parts, principal: _Viewer, session: Reader, asked: _Question) -> Response:
    """Everything that the collected labels say about the champion, now."""
    view = lead_views.report(session, context, asked)
    return page(request, "report.html", principal, view=view, asked=asked, titles=CHARTS, query=request.url.query)


@router.get("/report/charts/{name}.svg", dependencies=[Depends(Policy("metrics:read"))])
def report_chart(name: str, context: Parts, session: Reader, asked: _Question) -> Response:
    """A chart of the report.

    Raises:
        NotFound: there is no such chart.
    """
    drawn = lead_views.chart(session, context, asked, name)
    if drawn is None:
        raise NotFound("there is no such chart")
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(drawn, media_type="image/svg+xml", headers=headers)


@router.get("/report/charts/{name}.csv", dependencies=[Depends(Policy("metrics:read"))])
def report_numbers(name: str, context: Parts, session: Reader, asked: _Question) -> Response:
    """The numbers of a chart.

    Raises:
        NotFound: there is no such chart.
    """
    table = lead_views.chart_numbers(session, context, asked, name)
    if table is None:
        raise NotFound("there is no such chart")
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(table, media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/report/frozen/{evaluation_id}.{kind}", dependencies=[Depends(Policy("metrics:read"))])
def frozen_report(
    evaluation_id: uuid.UUID, kind: Literal["html", "csv", "json"], context: Parts, session: Reader
) -> Response:
    """A frozen report as a file that opens offline."""
    if kind == "json":
        data = frozen.show(session, evaluation_id).model_dump_json().encode()
    else:
        data = frozen.report_file(session, context, evaluation_id, f"report.{kind}")
    disposition = f'attachment; filename="evaluation-{evaluation_id}.{kind}"'
    media = {"html": "text/html", "csv": "text/csv", "json": "application/json"}[kind]
    return Response(data, media_type=f"{media}; charset=utf-8", headers={"Content-Disposition": disposition})


@router.post("/report/freeze")
def freeze(
    context: Parts,
    principal: _Manager,
    session: Writer,
    partition: Annotated[str, Form(max_length=20)] = "evaluation",
    weighting: Annotated[str, Form(max_length=20)] = "ipw",
) -> Response:
    """Freeze labels and predictions of now, and evaluate them in a job."""
    body: EvaluationIn = checked(EvaluationIn, partition=partition, weighting=weighting)
    frozen.ask(session, context, principal, body)
    return go("/jobs")


@router.get("/policy")
def policy(request: Request, context: Parts, principal: _Viewer, session: Reader) -> Response:
    """The reading policy, its versions, and what second reads catch at each capacity."""
    versions = list_policies(session).items
    view = lead_views.report(session, context, Asked())
    return page(request, "policy.html", principal, versions=versions, now=versions[0], view=view)


@router.post("/policy")
async def change_policy(request: Request, context: Parts, principal: _Manager) -> Response:
    """Store a new version of the policy."""
    form = {name: str(value) for name, value in (await request.form()).items() if value != ""}
    unused = "threshold" if form.get("rule") == "capacity" else "capacity_per_day"
    form.pop(unused, None)
    body: PolicyIn = checked(PolicyIn, **{"adjudicate_below": None, **form})

    def store() -> None:
        with context.database.write() as session:
            add_policy(session, context.secret, principal, body)

    await run_in_threadpool(store)
    return go("/policy")


@router.get("/releases")
def releases(request: Request, context: Parts, principal: _Viewer, session: Reader) -> Response:
    """Champion, challengers and candidates."""
    methods = ChangePlan.read(context.settings.change_plan).methods
    return page(request, "releases.html", principal, view=lead_views.releases(session), methods=methods)


@router.get("/releases/{release_id}")
def one_release(
    release_id: uuid.UUID, request: Request, context: Parts, principal: _Viewer, session: Reader
) -> Response:
    """A release beside the champion: what changed, whether the gate let it through."""
    return page(request, "release.html", principal, view=lead_views.release(session, context, release_id))


@router.post("/releases/{release_id}/move")
def move(
    release_id: uuid.UUID,
    context: Parts,
    principal: _Manager,
    session: Writer,
    alias: Annotated[Literal["champion", "challenger"], Form()],
    revision: Annotated[int, Form(ge=0)],
    reason: _Text = "",
    password: Annotated[str, Form(max_length=300)] = "",
) -> Response:
    """Promote a release, or roll back to an earlier one.

    Raises:
        Invalid: no reason was given.
    """
    if not reason.strip():
        raise Invalid("say why")
    confirm_password(session, principal, password)
    move_alias(session, context, principal.name, alias, release_id, reason.strip(), revision)
    return go("/releases")


@router.post("/releases/{release_id}/predict")
def predict_old_cases(release_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Ask for the predictions that old cases lack, so that the release can be compared on them."""
    ask_predictions(session, context, release_id, principal)
    return go("/jobs")


@router.post("/releases/recalibrate")
def recalibrate(
    context: Parts, principal: _Manager, session: Writer, method: Annotated[str, Form(max_length=20)] = "temperature"
) -> Response:
    """Fit a candidate on the labels collected so far, in a job."""
    body: RecalibrationIn = checked(RecalibrationIn, method=method)
    ask_recalibration(session, context, principal, body)
    return go("/jobs")


@router.get("/jobs")
def list_jobs(request: Request, principal: _Viewer, session: Reader) -> Response:
    """Jobs with their progress."""
    return page(request, "jobs.html", principal, jobs=[job_out(row) for row in engine.jobs_where(session, limit=100)])


def _states(context: Context) -> tuple[str, bool]:
    """The newest jobs as JSON, and whether one of them is under way."""
    with context.database.read() as session:
        rows = engine.jobs_where(session, limit=100)
        told = [
            {"id": str(row.id), "state": row.state, "progress": row.progress, "message": row.error or row.message}
            for row in rows
        ]
        return json.dumps(told), any(row.state in engine.OPEN for row in rows)


@router.get("/jobs/events", dependencies=[Depends(Policy("metrics:read"))])
async def job_events(request: Request, context: Parts) -> Response:
    """Progress of the jobs as server-sent events, a message whenever something has changed.

    With nothing under way, or nothing new for a while, the stream ends; browsers ask again after a few seconds.
    """

    async def events() -> AsyncIterator[str]:
        told, busy, idle = "", True, 0
        yield f"retry: {_RETRY_MS}\n\n"
        while busy and idle < _IDLE and not await request.is_disconnected():
            states, busy = await run_in_threadpool(_states, context)
            idle = idle + 1 if states == told else 0
            yield f"data: {states}\n\n" if states != told else ": nothing new\n\n"
            told = states
            await asyncio.sleep(_EVENT_SECONDS if busy else 0)

    return StreamingResponse(events(), media_type="text/event-stream")


@router.post("/jobs/{job_id}/cancel")
def cancel(job_id: uuid.UUID, context: Parts, principal: _Manager) -> Response:
    """Cancel a job."""
    engine.cancel(context, principal, job_id)
    return go("/jobs")


@router.post("/jobs/{job_id}/retry")
def retry(job_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Queue a job again."""
    engine.retry(session, context, principal, job_id)
    return go("/jobs")


@router.get("/imports")
def imports(request: Request, principal: _Importer, session: Reader) -> Response:
    """Imports so far, and a form for another one."""
    rows = engine.jobs_where(session, Job.kind == "import", limit=50)
    return page(request, "imports.html", principal, jobs=[job_out(row) for row in rows])


@router.post("/imports")
async def upload_archive(context: Parts, principal: _Importer, archive: UploadFile) -> Response:
    """Take an archive and import it in a job."""
    job_id = await run_in_threadpool(_take, context, principal, archive)
    return go(f"/imports/{job_id}")


def _take(context: Context, principal: Principal, archive: UploadFile) -> uuid.UUID:
    folder = context.settings.home / "imports"
    folder.mkdir(parents=True, exist_ok=True)
    path: Path = folder / f".{uuid.uuid4().hex}.part"
    digest = hashlib.sha256()
    try:
        with path.open("wb") as stream:
            while chunk := archive.file.read(1 << 20):
                digest.update(chunk)
                stream.write(chunk)
        check_archive(path)
        with context.database.write() as session:
            return begin_import(session, context, principal, path, digest.hexdigest()).id
    finally:
        path.unlink(missing_ok=True)


@router.get("/imports/{import_id}")
def one_import(
    import_id: uuid.UUID,
    request: Request,
    principal: _Importer,
    session: Reader,
    cursor: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    status: Annotated[Literal["", "created", "known", "failed"], Query()] = "",
) -> Response:
    """An import, row by row."""
    found = get_import(import_id, session, cursor, 200, status or None)
    return page(request, "import.html", principal, view=found, chosen=status)
