"""HTML routes of the report and of the reading policy."""

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from sqlalchemy.orm import Session

from app.accounts.permissions import GuardedRoute, Policy
from app.context import Parts
from app.database.engine import Reader, Writer
from app.http.errors import Conflict, NotFound
from app.http.models import PageText
from app.http.principal import Principal
from app.metrics.schemas import EvaluationIn
from app.pages import report_views
from app.pages.forms import PolicyForm, TargetsForm, WrongFields, checked
from app.pages.render import go, page
from app.pages.report_views import ReportFilter
from app.reports import frozen_evaluations
from app.reports.targets import set_targets
from app.triage.service import add_policy, list_policies

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Viewer = Annotated[Principal, Depends(Policy("metrics:read"))]
_Manager = Annotated[Principal, Depends(Policy("manage"))]
_VIEWING = [Depends(Policy("metrics:read"))]


def _report_filter(
    partition: Annotated[Literal["evaluation", "calibration", "all"], Query()] = "evaluation",
    weighting: Annotated[Literal["ipw", "none"], Query()] = "ipw",
    site: Annotated[PageText, Query(max_length=200)] = "",
) -> ReportFilter:
    return ReportFilter(partition, weighting, site or None)


_Filter = Annotated[ReportFilter, Depends(_report_filter)]


@router.get("/report")
def report(request: Request, context: Parts, principal: _Viewer, chosen: _Filter) -> Response:
    """What the labels collected so far say about the champion, as the worker made it last."""
    view = report_views.report_page(context, principal, chosen)
    query = urlencode({name: value for name, value in asdict(chosen).items() if value})
    return page(request, "report.html", principal, view=view, asked=chosen, query=query)


@router.get("/report/numbers/{name}.csv")
def report_numbers(name: str, context: Parts, principal: _Viewer, chosen: _Filter) -> Response:
    """The numbers of a chart.

    Raises:
        NotFound: there is no such chart, or no report yet.
    """
    found = report_views.numbers(context, principal, chosen, name)
    if found is None:
        raise NotFound("there are no such numbers yet")
    table, as_of = found
    headers = {"Content-Disposition": f'attachment; filename="{name}-{as_of}.csv"'}
    return Response(table, media_type="text/csv; charset=utf-8", headers=headers)


@router.post("/report/targets")
def change_targets(
    context: Parts, principal: _Manager, session: Writer, form: Annotated[TargetsForm, Form()]
) -> Response:
    """Set the laboratory's own targets."""
    set_targets(session, context.keys.audit, principal, form.targets())
    return go("/report")


@router.get("/report/frozen/{evaluation_id}.{kind}", dependencies=_VIEWING)
def frozen_report(
    evaluation_id: uuid.UUID, kind: Literal["html", "csv", "json"], context: Parts, session: Reader
) -> Response:
    """A frozen report as a file that opens offline."""
    if kind == "json":
        data = frozen_evaluations.show(session, evaluation_id).model_dump_json().encode()
    else:
        data = frozen_evaluations.report_file(session, context, evaluation_id, f"report.{kind}")
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
    frozen_evaluations.ask(session, context, principal, body)
    return go("/jobs")


@router.get("/policy")
def policy(
    request: Request,
    context: Parts,
    principal: _Viewer,
    session: Reader,
    share: Annotated[int, Query(ge=5, le=95, multiple_of=5)] = 30,
) -> Response:
    """The reading policy, its versions, and what second reads would catch if others were asked for."""
    return _policy(request, context, principal, session, share)


def _policy(
    request: Request,
    context: Parts,
    principal: Principal,
    session: Session,
    share: int = 30,
    typed: PolicyForm | None = None,
    faults: Mapping[str, str] | None = None,
) -> Response:
    """The page of the policy; after a form that could not be stored with what was typed and what is wrong with it."""
    policies = list_policies(session)
    versions, draws = policies.items, policies.draws
    # a form that was refused still holds its session, and with it the database's only writer
    what_if = report_views.what_if(context, None if faults else principal, share)
    values = {"versions": versions, "now": versions[0], "draws": draws, "what_if": what_if}
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
        return _policy(request, context, principal, session, typed=form, faults=faults)
    return go("/policy")
