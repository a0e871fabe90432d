"""What the report's and the policy's page show, computed when asked for and kept for a short while."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations import frozen
from app.evaluations.cohort import Partition, Question, Weighting
from app.evaluations.report import CHARTS, chart_csv, chart_rows, draw_chart, headline, triage_rows
from app.evaluations.schemas import AgreementOut, EvaluationOut, MetricsOut, TriageCurve
from app.evaluations.service import agreement, metrics, triage_curve_now
from app.platform import audit_chain
from app.platform.values import MetricOut

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class ReportFilter:
    """Which cases a report is about, how they are weighted and by what they are grouped."""

    partition: Partition = "evaluation"
    weighting: Weighting = "ipw"
    group_by: Literal["site", "month"] | None = None
    site: str | None = None

    @property
    def question(self) -> Question:
        """The same as a question to the evaluations."""
        return Question(self.partition, self.weighting, site=self.site)

    @property
    def ungrouped(self) -> "ReportFilter":
        """The same for parts of a report that are not grouped."""
        return replace(self, group_by=None)


@dataclass(frozen=True)
class Report:
    """A report: the document, the names of its charts, agreement, and what was frozen before."""

    document: MetricsOut
    headline: list[tuple[str, str, MetricOut]]
    charts: list[str]
    agreement: AgreementOut
    frozen: list[EvaluationOut]


class RecentParts:
    """Computed parts of reports, kept until they are too old or too many, whichever comes first.

    Args:
        size: how many at most; the least recently used one goes first.
        seconds: how long at most.
        clock: a clock that never goes back.
    """

    def __init__(self, size: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._size, self._seconds, self._clock = size, seconds, clock
        self._parts: OrderedDict[tuple[Any, ...], tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...], compute: Callable[[], _Part]) -> _Part:
        """The part of a key; computed where it is not there or too old."""
        with self._lock:
            known = self._parts.get(key)
            if known is not None and self._clock() - known[0] < self._seconds:
                self._parts.move_to_end(key)
                part: _Part = known[1]
                return part
        started, new = self._clock(), compute()
        with self._lock:
            self._parts[key] = started, new
            self._parts.move_to_end(key)
            while len(self._parts) > self._size:
                self._parts.popitem(last=False)
        return new


# planned reads close by the clock too, so nothing is kept for long even where no event has changed anything
_recent = RecentParts(size=32, seconds=60)


def _part(session: Session, context: Context, chosen: ReportFilter, name: str, compute: Callable[[], _Part]) -> _Part:
    """A part of a report, recomputed once anything was recorded in the audit."""
    return _recent.get((str(context.settings.home), audit_chain.head_of(session), chosen, name), compute)


def _document(session: Session, context: Context, chosen: ReportFilter) -> MetricsOut:
    def compute() -> MetricsOut:
        return metrics(session, context.settings.home, None, chosen.question, chosen.group_by)

    return _part(session, context, chosen, "document", compute)


def report(session: Session, context: Context, chosen: ReportFilter) -> Report:
    """The current report; its charts are drawn when the browser asks for them."""
    document = _document(session, context, chosen)

    def compute_agreement() -> AgreementOut:
        return agreement(session, context.settings.home, chosen.question, None)

    return Report(
        document=document,
        headline=headline(document),
        charts=[name for name in CHARTS if chart_rows(document, name)],
        agreement=_part(session, context, chosen.ungrouped, "agreement", compute_agreement),
        frozen=frozen.list_evaluations(session).items,
    )


def triage(session: Session, context: Context, chosen: ReportFilter) -> TriageCurve:
    """Share of disagreements that second reads catch at each capacity."""

    def compute() -> TriageCurve:
        return triage_curve_now(session, context.settings.home, chosen.question)

    return _part(session, context, chosen.ungrouped, "triage", compute)


def _chart_rows(session: Session, context: Context, chosen: ReportFilter, name: str) -> list[dict[str, Any]]:
    """The numbers of a chart, none for a chart that does not exist; the triage curve needs no other metric."""
    if name not in CHARTS:
        return []
    if name == "triage":
        return triage_rows(triage(session, context, chosen).rows)
    return chart_rows(_document(session, context, chosen), name)


def chart_svg(session: Session, context: Context, chosen: ReportFilter, name: str) -> str | None:
    """One chart of a report as SVG, None where there is none."""
    rows = _chart_rows(session, context, chosen, name)
    return _part(session, context, chosen, f"chart {name}", lambda: draw_chart(rows, name)) if rows else None


def chart_numbers(session: Session, context: Context, chosen: ReportFilter, name: str) -> str | None:
    """The numbers of one chart as CSV, None where there is no such chart."""
    rows = _chart_rows(session, context, chosen, name)
    return chart_csv(rows) if rows else None
