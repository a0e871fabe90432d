"""Report page."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute, RequireScope
from app.context import AppContext, ServiceContext
from app.database.engine import ReadSession
from app.http.errors import NotFound
from app.http.languages import class_name
from app.http.models import MetricOut, PageText
from app.http.principal import Principal
from app.metrics.service import BinOut, CohortQuery, DesignOut, EvaluationIn, EvaluationOut, Partition, Weighting
from app.releases.service import all_releases, champion_since, class_names, reading_classes
from app.reports import service as report_service
from app.triage.service import add_policy, list_policies
from app.web.forms import (
    MORE_GROUPS,
    URGENT_ROWS,
    GroupRow,
    PolicyForm,
    TargetsForm,
    UrgentRow,
    back_to,
    validate_form,
)
from app.web.page import ManagerForm, Page, ViewerPage
from app.web.render import redirect_to, render_page

#: Tables that a report offers as CSV.
NUMBERS = (
    *("disagreement", "classes", "each-class", "sensitivity", "triage", "pairs", "weeks"),
    *("sites", "months", "alarm", "losses"),
)
_Rows = Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class ReportFilter:
    """Which cases a report is about, and how they are weighted."""

    partition: Partition = "evaluation"
    weighting: Weighting = "ipw"
    site: str | None = None

    @property
    def question(self) -> CohortQuery:
        """The same as a question to the evaluations."""
        return CohortQuery(self.partition, self.weighting, site=self.site)

    @property
    def query(self) -> str:
        """The same as a part of an address."""
        return urlencode({name: value for name, value in asdict(self).items() if value})


@dataclass(frozen=True)
class ReportPage:
    """The page: the report, None while there is none, and what is there without one."""

    published: report_service.PublishedReport
    report: report_service.DrawnReport | None
    targets: report_service.TargetsOut
    frozen: list[EvaluationOut]
    # names of the releases by their identifiers
    releases: Mapping[str, str]


def load_latest_report(
    context: ServiceContext, principal: Principal | None, chosen: ReportFilter
) -> report_service.PublishedReport:
    """Load the latest report; request a newer one on behalf of the caller where it is due."""
    if principal is not None:
        report_service.request_report(context, principal, chosen.question)
    with context.database.read() as session:
        return report_service.read_published_report(session, chosen.question)


def report_page(context: ServiceContext, principal: Principal, chosen: ReportFilter) -> ReportPage:
    """Everything that the report's page shows."""
    published = load_latest_report(context, principal, chosen)
    with context.database.read() as session:
        targets, listed = report_service.current_targets(session), report_service.list_evaluations(session).items
        drawing = (
            None
            if published.body is None
            else report_service.draw_report(published.body, targets, _names_of(session, published.body))
        )
        releases = {str(row.id): row.name for row in all_releases(session)}
    return ReportPage(published, drawing, targets, listed, releases)


def _names_of(session: Session, body: report_service.ReportBody) -> Mapping[str, str]:
    return class_names(session, uuid.UUID(body.document.release))


@dataclass(frozen=True)
class WhatIf:
    """Simulated results of reading another share of the cases twice."""

    # the report that it comes from
    published: report_service.PublishedReport
    # of every share that can be asked for; empty before two annotators have differed
    rows: list[report_service.WhatIfOut]
    # the row of the share that is asked for
    asked: report_service.WhatIfOut | None
    # version of the policy that orders them
    version: int
    # what it reads twice while it is in force
    today: report_service.SecondReadsOut | None
    n_cases: int
    # the operating curve with today's share
    plot: report_service.ReportPlot
    # ways to choose the second reads, compared
    designs: list[DesignOut]
    # why random second reads are offered first, None if disagreement probabilities beat them
    doubt: str | None


def compute_what_if(context: ServiceContext, principal: Principal | None, share: int, version: int) -> WhatIf:
    """Simulate reading a share of the cases twice, in per cent: cases caught and cost."""
    published = load_latest_report(context, principal, ReportFilter())
    body = published.body
    if body is None:
        return WhatIf(published, [], None, version, None, 0, report_service.draw_operating_curve([], None), [], None)
    rows, of = body.what_if, body.findings.second_reads
    today = of if of.policy_version == version else None
    chosen_row = next((row for row in rows if round(100 * row.share) == share), None)
    plot = report_service.draw_operating_curve(rows, today)
    doubt = report_service.doubt_triage(body.document)
    n_cases = body.document.n_cases
    return WhatIf(published, rows, chosen_row, of.policy_version, today, n_cases, plot, body.designs, doubt)


def load_chart_csv(
    context: ServiceContext, principal: Principal, chosen: ReportFilter, name: str
) -> tuple[str, str] | None:
    """Load one chart's numbers of the latest report as CSV, with its time; None where missing."""
    published = load_latest_report(context, principal, chosen)
    if published.body is None or published.as_of is None or name not in NUMBERS:
        return None
    with context.database.read() as session:
        rows = _chart_rows(published.body, name, _names_of(session, published.body))
    return (report_service.chart_csv(rows), f"{published.as_of:%Y-%m-%dT%H%MZ}") if rows else None


def _chart_rows(body: report_service.ReportBody, name: str, names: Mapping[str, str]) -> _Rows:
    document = body.document
    tables: dict[str, _Rows] = {
        "disagreement": _bin_rows(document.disagreement_bins),
        "classes": _bin_rows(document.class_bins),
        "each-class": [
            {"class": row.name, "name": class_name(row.name, names), **one}
            for row in document.classes
            for one in _bin_rows(row.bins)
        ],
        "triage": [
            {**row.model_dump(exclude={"caught"}), **_estimate_columns("caught", row.caught)} for row in body.what_if
        ],
        "sensitivity": [
            {
                "class": row.class_code,
                "name": class_name(row.class_code, names),
                **_estimate_columns("sensitivity", row.sensitivity),
            }
            for row in body.findings.sensitivity
        ],
        "pairs": [
            {
                "first": row.first,
                "second": row.second,
                "first_name": class_name(row.first, names),
                "second_name": class_name(row.second, names),
                "n_cases": row.n_cases,
                **_estimate_columns("share", row.share),
            }
            for row in body.pairs
        ],
        "weeks": [row.model_dump() for row in body.workload.weeks],
        "sites": _trend_rows(body.by_site),
        "months": _trend_rows(body.by_month),
        "alarm": [
            {"site": monitor.site or "all", **step.model_dump()}
            for monitor in document.score_monitor
            for step in monitor.steps
        ],
        "losses": [
            {"name": label, **_estimate_columns("value", document.metrics[key])}
            for label, key in (("EL", "EL"), ("CL", "CL_paired"), ("DL", "DL"))
        ],
    }
    return tables[name]


def _bin_rows(bins: Sequence[BinOut]) -> _Rows:
    return [row.model_dump() for row in bins]


def _estimate_columns(name: str, found: MetricOut | None) -> dict[str, object]:
    ends = {"low": f"{name}_low", "high": f"{name}_high", "n": f"{name}_n"}
    if found is None:
        return dict.fromkeys((name, *ends.values()))
    return {name: found.value} | {column: getattr(found, key) for key, column in ends.items()}


def _trend_rows(rows: Sequence[report_service.TrendOut]) -> _Rows:
    return [
        {
            "group": row.group,
            "n_cases": row.n_cases,
            "said": row.said,
            **_estimate_columns("differed", row.differed),
            **_estimate_columns("agreement", row.agreement),
        }
        for row in rows
    ]


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Viewer = Annotated[Principal, Depends(RequireScope("metrics:read"))]
_VIEWING = [Depends(RequireScope("metrics:read"))]


def _report_filter(
    request: Request,
    partition: Annotated[Literal["evaluation", "calibration", "all"], Query()] = "evaluation",
    weighting: Annotated[Literal["ipw", "none"], Query()] = "ipw",
    site: Annotated[PageText, Query(max_length=200)] = "",
) -> ReportFilter:
    request.state.chosen = chosen = ReportFilter(partition, weighting, site or None)  # for a refused form
    return chosen


_Filter = Annotated[ReportFilter, Depends(_report_filter)]


@router.get("/report")
def show_report(request: Request, context: AppContext, principal: _Viewer, chosen: _Filter) -> Response:
    """What the labels collected so far say about the champion, as the worker made it last."""
    return _show_page(request, context, principal, chosen, "report.html")


@router.get("/report/appendix")
def show_appendix(request: Request, context: AppContext, principal: _Viewer, chosen: _Filter) -> Response:
    """Every number of the same report, for a statistician."""
    return _show_page(request, context, principal, chosen, "appendix.html")


def _show_page(
    request: Request, context: ServiceContext, principal: Principal, chosen: ReportFilter, template: str
) -> Response:
    view = report_page(context, principal, chosen)
    unweighted = f"?{replace(chosen, weighting='none').query}"
    links = {  # of reports that count what this one leaves out for a reason
        "partition": f"?{replace(chosen, partition='all').query}",
        "other-cells": f"?{replace(chosen, site=None).query}",
        "open": unweighted,
        "outside": unweighted,
        "unanswered": unweighted,
    }
    return render_page(request, template, principal, view=view, asked=chosen, query=chosen.query, links=links)


@router.get("/report/numbers/{name}.csv")
def report_numbers(name: str, context: AppContext, principal: _Viewer, chosen: _Filter) -> Response:
    """The numbers of a chart."""
    csv_and_time = load_chart_csv(context, principal, chosen, name)
    if csv_and_time is None:
        raise NotFound("there are no such numbers yet")
    table, as_of = csv_and_time
    headers = {"Content-Disposition": f'attachment; filename="{name}-{as_of}.csv"'}
    return Response(table, media_type="text/csv; charset=utf-8", headers=headers)


def _show_report_of_form(page: Page) -> Response:
    chosen = getattr(page.request.state, "chosen", ReportFilter())
    return show_report(page.request, page.context, page.principal, chosen)


@router.post("/report/targets")
@back_to(_show_report_of_form)
def change_targets(page: ManagerForm, form: Annotated[TargetsForm, Form()], chosen: _Filter) -> Response:
    """Set the laboratory's own targets."""
    report_service.set_targets(page.session, page.context.keys.audit, page.principal, form.targets())
    return redirect_to(f"/report?{chosen.query}")


@router.get("/report/frozen/{evaluation_id}.{kind}", dependencies=_VIEWING)
def frozen_report(
    evaluation_id: uuid.UUID, kind: Literal["html", "csv", "json"], context: AppContext, session: ReadSession
) -> Response:
    """A frozen report as a file that opens offline."""
    if kind == "json":
        data = report_service.read_evaluation(session, evaluation_id).model_dump_json().encode()
    else:
        data = report_service.read_report_file(session, context, evaluation_id, f"report.{kind}")
    disposition = f'attachment; filename="evaluation-{evaluation_id}.{kind}"'
    media = {"html": "text/html", "csv": "text/csv", "json": "application/json"}[kind]
    return Response(data, media_type=f"{media}; charset=utf-8", headers={"Content-Disposition": disposition})


@router.post("/report/freeze")
def freeze_evaluation(
    page: ManagerForm,
    partition: Annotated[PageText, Form(max_length=20)] = "evaluation",
    weighting: Annotated[PageText, Form(max_length=20)] = "ipw",
) -> Response:
    """Freeze the current labels and predictions, and evaluate them in a job."""
    body = validate_form(EvaluationIn, partition=partition, weighting=weighting)
    report_service.request_evaluation(page.session, page.context, page.principal, body)
    return redirect_to("/jobs")


@router.get("/policy")
def show_policy(
    page: ViewerPage,
    share: Annotated[int, Query(ge=5, le=95, multiple_of=5)] = 30,
    random: Annotated[int | None, Query(ge=5, le=95)] = None,
) -> Response:
    """The reading policy, its versions, and what second reads would catch; random second reads, %, fill the form."""
    policies = list_policies(page.session)
    versions, draws = policies.items, policies.draws
    stored, now = PolicyForm.of(versions[0]), versions[0]
    if random is not None:  # a threshold that no disagreement probability exceeds
        changes = {"rule": "disagreement", "threshold": "0.9999", "audit_rate": f"{random / 100:g}"}
        stored = stored.model_copy(update=changes)
    what_if = compute_what_if(page.context, page.principal, share, now.version)
    typed = page.refused.at("/policy").typed
    urgent = UrgentRow.typed(typed) or [UrgentRow.of(rule) for rule in now.urgent]
    urgent += [UrgentRow()] * max(1, URGENT_ROWS - len(urgent))
    groups = GroupRow.typed(typed) if typed else [GroupRow.of(group) for group in now.reporting_groups]
    groups = [*(row for row in groups if row != GroupRow()), *[GroupRow()] * MORE_GROUPS]
    classes = reading_classes(page.session) if champion_since(page.session) else []
    return page.render(
        "policy.html",
        stored=stored,
        prefilled=random is not None,
        versions=versions,
        now=now,
        draws=draws,
        what_if=what_if,
        urgent=urgent,
        groups=groups,
        classes=classes,
        names={info.code: info.name for info in classes},
    )


@router.post("/policy")
@back_to(show_policy)
def change_policy(page: ManagerForm, form: Annotated[PolicyForm, Form()]) -> Response:
    """Store a new version of the policy."""
    add_policy(page.session, page.context.keys.audit, page.principal, form.policy())
    return redirect_to("/policy")
