"""What the report's and the policy's page show, computed when asked for and kept for a short while."""

import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations import frozen
from app.evaluations.cohort import Partition, Question, Weighting
from app.evaluations.report import CHARTS, ChartData, chart_csv, chart_data, draw_chart, headline, triage_data
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
    """A report: its state, the document, the names of its charts, agreement, and what was frozen before."""

    state: str
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
        self._parts: OrderedDict[tuple[Any, ...], tuple[float, Future[Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...], compute: Callable[[], _Part]) -> _Part:
        """The part of a key; computed where it is not there or too old, once for all who ask meanwhile."""
        with self._lock:
            waiting = self._fresh(key)
            if waiting is None:
                new: Future[_Part] = Future()
                self._parts[key] = self._clock(), new
                self._parts.move_to_end(key)
                while len(self._parts) > self._size:
                    self._parts.popitem(last=False)
        if waiting is not None:
            part: _Part = waiting.result()
            return part
        try:
            new.set_result(compute())
        except BaseException as exc:
            with self._lock:  # whoever asks next tries again
                if key in self._parts and self._parts[key][1] is new:
                    del self._parts[key]
            new.set_exception(exc)
            raise
        return new.result()

    def known(self, key: tuple[Any, ...]) -> Any | None:
        """The part of a key, None where it is not there or too old."""
        with self._lock:
            future = self._fresh(key)
        return None if future is None else future.result()

    def _fresh(self, key: tuple[Any, ...]) -> Future[Any] | None:
        started, future = self._parts.get(key, (-math.inf, None))
        if self._clock() - started >= self._seconds:
            return None
        self._parts.move_to_end(key)
        return future


# planned reads close by the clock too, so nothing is kept for long even where no event has changed anything
_SECONDS = 60
_recent = RecentParts(size=32, seconds=_SECONDS)


def _present_state(session: Session) -> str:
    """Another word once anything was recorded in the audit, and every minute: a state's document is computed once."""
    state = f"{audit_chain.head_of(session)} {time.monotonic() // _SECONDS}"
    return hashlib.sha256(state.encode()).hexdigest()[:16]


def _part(context: Context, state: str, chosen: ReportFilter, name: str, compute: Callable[[], _Part]) -> _Part:
    """A part of a report on one state."""
    return _recent.get(_key(context, state, chosen, name), compute)


def _key(context: Context, state: str, chosen: ReportFilter, name: str) -> tuple[Any, ...]:
    return str(context.settings.home), state, chosen, name


def _document(session: Session, context: Context, state: str, chosen: ReportFilter) -> MetricsOut:
    def compute() -> MetricsOut:
        return metrics(session, context, None, chosen.question, chosen.group_by)

    return _part(context, state, chosen, "document", compute)


def report(session: Session, context: Context, chosen: ReportFilter) -> Report:
    """The current report; its charts are drawn when the browser asks for them."""
    state = _present_state(session)
    document = _document(session, context, state, chosen)

    def compute_agreement() -> AgreementOut:
        return agreement(session, context.settings.home, chosen.question, None)

    return Report(
        state=state,
        document=document,
        headline=headline(document),
        charts=[name for name in CHARTS if chart_data(document, name) is not None],
        agreement=_part(context, state, chosen.ungrouped, "agreement", compute_agreement),
        frozen=frozen.list_evaluations(session).items,
    )


def triage(session: Session, context: Context, chosen: ReportFilter) -> TriageCurve:
    """Share of disagreements that second reads catch at each capacity."""

    def compute() -> TriageCurve:
        return triage_curve_now(session, context.settings.home, chosen.question)

    return _part(context, _present_state(session), chosen.ungrouped, "triage", compute)


@dataclass(frozen=True)
class _ChartSource:
    """What a chart shows, None where there is nothing to draw, and the key of the chart that is drawn from it."""

    data: ChartData | None
    key: tuple[Any, ...]


def _chart_source(
    session: Session, context: Context, chosen: ReportFilter, name: str, state: str | None
) -> _ChartSource:
    """What a chart shows on the state of a page while that is kept, else of the present state.

    There is nothing for a chart that does not exist; without a page the triage curve needs no other metric.
    """
    if name not in CHARTS:
        return _ChartSource(None, ())
    document = None if state is None else _recent.known(_key(context, state, chosen, "document"))
    if state is None or document is None:
        state = _present_state(session)
        if name == "triage":
            data = triage_data(triage(session, context, chosen).rows)
            return _ChartSource(data, _key(context, state, chosen, "chart of the triage curve alone"))
        document = _document(session, context, state, chosen)
    return _ChartSource(chart_data(document, name), _key(context, state, chosen, f"chart {name}"))


def chart_svg(
    session: Session, context: Context, chosen: ReportFilter, name: str, state: str | None = None
) -> str | None:
    """One chart of a report as SVG, None where there is none."""
    source = _chart_source(session, context, chosen, name, state)
    data = source.data
    return None if data is None else _recent.get(source.key, lambda: draw_chart(data))


def chart_numbers(
    session: Session, context: Context, chosen: ReportFilter, name: str, state: str | None = None
) -> str | None:
    """The numbers of one chart as CSV, None where there is no such chart."""
    data = _chart_source(session, context, chosen, name, state).data
    return None if data is None else chart_csv(data.rows)
