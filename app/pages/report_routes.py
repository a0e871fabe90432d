"""HTML routes of the report and of the reading policy."""

import uuid
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from sqlalchemy.orm import Session

from app.auth.policy import GuardedRoute, Policy
from app.context import Parts
from app.evaluations import frozen
from app.evaluations.report import CHARTS
from app.evaluations.schemas import EvaluationIn
from app.pages import report_views
from app.pages.forms import PolicyForm, WrongFields, checked
from app.pages.render import go, page
from app.pages.report_views import ReportFilter
from app.platform.database import Reader, Writer
from app.platform.errors import Conflict, NoRelease, NotFound
from app.platform.principal import Principal
from app.platform.values import PageText
from app.triage.service import add_policy, list_policies

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Viewer = Annotated[Principal, Depends(Policy("metrics:read"))]
_Manager = Annotated[Principal, Depends(Policy("manage"))]
_VIEWING = [Depends(Policy("metrics:read"))]


def _report_filter(
    partition: Annotated[Literal["evaluation", "calibration", "all"], Query()] = "evaluation",
    weighting: Annotated[Literal["ipw", "none"], Query()] = "ipw",
    group_by: Annotated[Literal["", "site", "month"], Query()] = "",
    site: Annotated[PageText, Query(max_length=200)] = "",
) -> ReportFilter:
    return ReportFilter(partition, weighting, group_by or "site", site or None)


_Filter = Annotated[ReportFilter, Depends(_report_filter)]
#: Of the page that shows a chart.
_State = Annotated[PageText | None, Query(max_length=100)]


@router.get("/report")
def report(request: Request, context: Parts, principal: _Viewer, session: Reader, chosen: _Filter) -> Response:
    """Everything that the labels collected so far say about the champion."""
    try:
        view = report_views.report(session, context, chosen)
    except NoRelease:
        return page(request, "report_empty.html", principal)
    query = request.url.include_query_params(state=view.state).query
    return page(request, "report.html", principal, view=view, asked=chosen, titles=CHARTS, query=query)


@router.get("/report/charts/{name}.svg", dependencies=_VIEWING)
def report_chart(name: str, context: Parts, session: Reader, chosen: _Filter, state: _State = None) -> Response:
    """A chart of the report.

    Raises:
        NotFound: there is no such chart.
    """
    svg = report_views.chart_svg(session, context, chosen, name, state)
    if svg is None:
        raise NotFound("there is no such chart")
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(svg, media_type="image/svg+xml", headers=headers)


@router.get("/report/charts/{name}.csv", dependencies=_VIEWING)
def report_numbers(name: str, context: Parts, session: Reader, chosen: _Filter, state: _State = None) -> Response:
    """The numbers of a chart.

    Raises:
        NotFound: there is no such chart.
    """
    table = report_views.chart_numbers(session, context, chosen, name, state)
    if table is None:
        raise NotFound("there is no such chart")
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(table, media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/report/frozen/{evaluation_id}.{kind}", dependencies=_VIEWING)
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
    partition: Annotated[PageText, Form(max_length=20)] = "evaluation",
    weighting: Annotated[PageText, Form(max_length=20)] = "ipw",
) -> Response:
    """Freeze the current labels and predictions, and evaluate them in a job."""
    body = checked(EvaluationIn, partition=partition, weighting=weighting)
    frozen.ask(session, context, principal, body)
    return go("/jobs")


@router.get("/policy")
def policy(request: Request, context: Parts, principal: _Viewer, session: Reader) -> Response:
    """The reading policy, its versions, and what second reads catch at each capacity."""
    return _policy(request, context, principal, session)


def _policy(
    request: Request,
    context: Parts,
    principal: Principal,
    session: Session,
    typed: PolicyForm | None = None,
    faults: Mapping[str, str] | None = None,
) -> Response:
    """The page of the policy; after a form that could not be stored with what was typed and what is wrong with it."""
    policies = list_policies(session)
    versions, draws = policies.items, policies.draws
    try:
        curve = report_views.triage(session, context, ReportFilter())
    except NoRelease:
        curve = None
    values = {"versions": versions, "now": versions[0], "draws": draws, "curve": curve}
    form, status = typed or PolicyForm.of(versions[0]), 422 if faults else 200
    return page(request, "policy.html", principal, status, form=form, faults=faults or {}, **values)


@router.post("/policy")
def change_policy(
    request: Request, context: Parts, principal: _Manager, session: Writer, form: Annotated[PolicyForm, Form()]
) -> Response:
    """Store a new version of the policy."""
    try:
        add_policy(session, context.keys.audit, principal, form.policy())
    except (WrongFields, Conflict) as exc:
        session.rollback()
        faults = exc.faults if isinstance(exc, WrongFields) else {"": exc.detail}
        return _policy(request, context, principal, session, form, faults)
    return go("/policy")
