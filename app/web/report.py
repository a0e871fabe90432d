"""Report page."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from sqlalchemy.orm import Session

from app.accounts.permissions import GuardedRoute, Policy
from app.context import Context, Parts
from app.database.engine import Reader, Writer
from app.http.errors import Conflict, NotFound
from app.http.models import MetricOut, PageText
from app.http.principal import Principal
from app.metrics.cohort import Partition, Question, Weighting
from app.metrics.schemas import BinOut, DesignOut, EvaluationIn, EvaluationOut
from app.reports import charts, frozen_evaluations
from app.reports.charts import Plot, Report, drawn_report, share_today
from app.reports.publishing import ask_for_report, published_report
from app.reports.report import chart_csv
from app.reports.schemas import PublishedReport, ReportBody, TrendOut, WhatIfOut
from app.reports.targets import TargetsOut, current_targets, set_targets
from app.triage.service import add_policy, list_policies
from app.web.forms import PolicyForm, TargetsForm, WrongFields, checked
from app.web.render import go, page

#: Tables that a report offers as CSV.
NUMBERS = ("disagreement", "classes", "each-class", "triage", "pairs", "weeks", "sites", "months", "alarm", "losses")
_Rows = Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class ReportFilter:
    """Which cases a report is about, and how they are weighted."""

    partition: Partition = "evaluation"
    weighting: Weighting = "ipw"
    site: str | None = None

    @property
    def question(self) -> Question:
        """The same as a question to the evaluations."""
        return Question(self.partition, self.weighting, site=self.site)


@dataclass(frozen=True)
class ReportPage:
    """The page: the report, None while there is none, and what is there without one."""

    published: PublishedReport
    report: Report | None
    targets: TargetsOut
    frozen: list[EvaluationOut]


def latest(context: Context, principal: Principal | None, chosen: ReportFilter) -> PublishedReport:
    """The latest report; where it is due, a newer one is asked for in somebody's name."""
    if principal is not None:
        ask_for_report(context, principal, chosen.question)
    with context.database.read() as session:
        return published_report(session, chosen.question)


def report_page(context: Context, principal: Principal, chosen: ReportFilter) -> ReportPage:
    """Everything that the report's page shows."""
    published = latest(context, principal, chosen)
    with context.database.read() as session:
        targets, listed = current_targets(session), frozen_evaluations.list_evaluations(session).items
        made = (
            None
            if published.body is None
            else drawn_report(published.body, targets, share_today(session, published.body))
        )
    return ReportPage(published, made, targets, listed)


@dataclass(frozen=True)
class WhatIf:
    """What the policy's page says of reading another share of the cases twice.

    Attributes:
        published: the report that it comes from.
        rows: of every share that can be asked for; empty before two annotators have differed.
        asked: the row of the share that is asked for.
        today: the row nearest to what is read twice today, and that share.
        plot: the operating curve with today's share.
        designs: ways to choose the second reads, compared.
    """

    published: PublishedReport
    rows: list[WhatIfOut]
    asked: WhatIfOut | None
    today: WhatIfOut | None
    now: float | None
    n_cases: int
    plot: Plot
    designs: list[DesignOut]


def compute_what_if(context: Context, principal: Principal | None, share: int) -> WhatIf:
    """What reading a share of the cases twice, in per cent, would catch and cost."""
    published = latest(context, principal, ReportFilter())
    body = published.body
    if body is None:
        return WhatIf(published, [], None, None, None, 0, charts.operating_curve([], None), [])
    with context.database.read() as session:
        now = share_today(session, body)
    rows = body.what_if
    nearest = None if now is None or not rows else min(rows, key=lambda row: abs(row.share - now))
    asked = next((row for row in rows if round(100 * row.share) == share), None)
    plot = charts.operating_curve(rows, now)
    return WhatIf(published, rows, asked, nearest, now, body.document.n_cases, plot, body.designs)


def numbers(context: Context, principal: Principal, chosen: ReportFilter, name: str) -> tuple[str, str] | None:
    """The numbers of one chart of the latest report as CSV, and when that was made; None where there are none."""
    published = latest(context, principal, chosen)
    if published.body is None or published.as_of is None or name not in NUMBERS:
        return None
    rows = _rows(published.body, name)
    return (chart_csv(rows), f"{published.as_of:%Y-%m-%dT%H%MZ}") if rows else None


def _rows(body: ReportBody, name: str) -> _Rows:
    document = body.document
    tables: dict[str, _Rows] = {
        "disagreement": _bins(document.disagreement_bins),
        "classes": _bins(document.class_bins),
        "each-class": [{"class": row.name, **one} for row in document.classes for one in _bins(row.bins)],
        "triage": [{**row.model_dump(exclude={"caught"}), **_estimate("caught", row.caught)} for row in body.what_if],
        "pairs": [
            {"first": row.first, "second": row.second, "n_cases": row.n_cases, **_estimate("share", row.share)}
            for row in body.pairs
        ],
        "weeks": [row.model_dump() for row in body.workload.weeks],
        "sites": _trends(body.by_site),
        "months": _trends(body.by_month),
        "alarm": [
            {"site": monitor.site or "all", **step.model_dump()}
            for monitor in document.score_monitor
            for step in monitor.steps
        ],
        "losses": [
            {"name": label, **_estimate("value", document.metrics[key])}
            for label, key in (("EL", "EL"), ("CL", "CL_paired"), ("DL", "DL"))
        ],
    }
    return tables[name]


def _bins(bins: Sequence[BinOut]) -> _Rows:
    return [row.model_dump() for row in bins]


def _estimate(name: str, found: MetricOut | None) -> dict[str, object]:
    ends = {"low": f"{name}_low", "high": f"{name}_high", "n": f"{name}_n"}
    if found is None:
        return dict.fromkeys((name, *ends.values()))
    return {name: found.value} | {column: getattr(found, key) for key, column in ends.items()}


def _trends(rows: Sequence[TrendOut]) -> _Rows:
    return [
        {
            "group": row.group,
            "n_cases": row.n_cases,
            "said": row.said,
            **_estimate("differed", row.differed),
            **_estimate("agreement", row.agreement),
        }
        for row in rows
    ]


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
    view = report_page(context, principal, chosen)
    query = urlencode({name: value for name, value in asdict(chosen).items() if value})
    return page(request, "report.html", principal, view=view, asked=chosen, query=query)


@router.get("/report/numbers/{name}.csv")
def report_numbers(name: str, context: Parts, principal: _Viewer, chosen: _Filter) -> Response:
    """The numbers of a chart.

    Raises:
        NotFound: there is no such chart, or no report yet.
    """
    found = numbers(context, principal, chosen, name)
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
    what_if = compute_what_if(context, None if faults else principal, share)
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
