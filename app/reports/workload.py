"""Workload and turnaround times (Kaplan-Meier)."""

from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import case, func, or_, select
from sqlalchemy.orm import Session

from app.database.tables import Annotator, Case, CountedLabel, ReadRequest
from app.reports.schemas import DurationOut, WeekOut, WorkloadOut
from ml.util.arrays import FloatArray

_Z = 1.959963984540054


def estimate_duration(hours: FloatArray, ended: npt.NDArray[np.bool_]) -> DurationOut:
    """Estimate the hours by which half and nine tenths have ended; open cases are censored."""
    # Leaving out what is open would praise whoever leaves the slow ones undone.
    order = np.lexsort((~ended, hours))
    hours, events = np.maximum(hours[order], 0.0), ended[order]
    at_risk = np.arange(hours.size, 0, -1)
    left = np.cumprod(np.where(events, 1 - 1 / at_risk, 1.0), dtype=np.float64)
    return DurationOut(
        n=int(hours.size),
        n_open=int((~events).sum()),
        median=_first_hour_reached(hours, left <= 0.5),
        nine_tenths=_first_hour_reached(hours, left <= 0.1 + 1e-12),
        **_interval_bounds(hours, events, at_risk, left),
    )


def _first_hour_reached(hours: FloatArray, reached: npt.NDArray[np.bool_]) -> float | None:
    return float(hours[int(reached.argmax())]) if reached.any() else None


def _interval_bounds(
    hours: FloatArray, events: npt.NDArray[np.bool_], at_risk: npt.NDArray[np.intp], left: FloatArray
) -> dict[str, float | None]:
    """Bounds of the nine-tenths time from the log-log Greenwood interval."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(events & (at_risk > 1), 1 / (at_risk * (at_risk - 1.0)), 0.0)
        spread = _Z * np.sqrt(np.cumsum(steps)) / np.abs(np.log(left))
        lower, upper = left ** np.exp(spread), left ** np.exp(-spread)
    inside = (left > 0) & (left < 1)
    low = np.where(inside, lower, left) <= 0.1
    high = np.where(inside, upper, left) <= 0.1
    # nothing is known of what would come after the last end
    return {"low": _first_hour_reached(hours, low), "high": _first_hour_reached(hours, high & (left > 0))}


WEEKS = 13
#: Longer on one case is time away from it.
_AWAY_SECONDS = 600.0
_HOUR = 3600.0


class _TimeSpan(NamedTuple):
    """A span of time, open-ended while it has not ended."""

    begun: datetime
    ended: datetime | None


def summarise_workload(session: Session, at: datetime, site: str | None = None) -> WorkloadOut:
    """Summarise received cases, requested reads and given reads, week by week."""
    monday = at.astimezone(UTC).date() - timedelta(days=at.astimezone(UTC).weekday())
    since = datetime.combine(monday - timedelta(weeks=WEEKS - 1), datetime.min.time(), UTC)
    requests, closing = _read_request_spans(session, since, site), _read_case_spans(session, since, site)
    reads = _read_timed_labels(session, since, site)
    seconds = [min(one, _AWAY_SECONDS) for _, one in reads if one is not None]
    typical = fmean(seconds) if seconds else None
    hours: defaultdict[date, float] = defaultdict(float)
    for moment, one in reads:
        hours[_week_start(moment)] += min(one, _AWAY_SECONDS) / _HOUR if one is not None else (typical or 0.0) / _HOUR
    counts = {
        "received": Counter(_week_start(span.begun) for span in closing),
        "asked": Counter(_week_start(span.begun) for span in requests),
        "answered": Counter(_week_start(moment) for moment, _ in reads),
        "closed": Counter(_week_start(span.ended) for span in closing if span.ended is not None),
    }
    mondays = [monday - timedelta(weeks=number) for number in reversed(range(WEEKS))]
    n_waiting, n_overdue = _count_open_reads(session, at, site)
    return WorkloadOut(
        weeks=[
            WeekOut(week=week, hours=float(hours[week]), **{name: counter[week] for name, counter in counts.items()})
            for week in mondays
        ],
        n_waiting=n_waiting,
        n_overdue=n_overdue,
        seconds=typical,
        answering=_estimate_span_duration(requests, at),
        closing=_estimate_span_duration(closing, at),
    )


def _week_start(moment: datetime) -> date:
    day = moment.astimezone(UTC).date()
    return day - timedelta(days=day.weekday())


def _estimate_span_duration(spans: list[_TimeSpan], at: datetime) -> DurationOut:
    hours = np.array([((span.ended or at) - span.begun).total_seconds() / _HOUR for span in spans])
    return estimate_duration(hours, np.array([span.ended is not None for span in spans], dtype=bool))


def _read_request_spans(session: Session, since: datetime, site: str | None) -> list[_TimeSpan]:
    """Planned reads since a time that somebody of this service was to give, until they were answered."""
    # Labels of an outside system come when it sends them, all at once as a rule: they tell nothing of how soon people
    # read.
    own = or_(ReadRequest.label_id.is_(None), Annotator.account_id.is_not(None))
    query = (
        select(ReadRequest.created_at, ReadRequest.closed_at)
        .join(Case, Case.id == ReadRequest.case_id)
        .outerjoin(CountedLabel, CountedLabel.id == ReadRequest.label_id)
        .outerjoin(Annotator, Annotator.id == CountedLabel.annotator_id)
        .where(ReadRequest.created_at >= since, ReadRequest.round == "planned", ReadRequest.state != "closed", own)
    )
    query = query if site is None else query.where(Case.site == site)
    return [_TimeSpan(*row) for row in session.execute(query)]


def _read_case_spans(session: Session, since: datetime, site: str | None) -> list[_TimeSpan]:
    """Cases since a time, until their last read ended."""
    is_open = func.sum(case((ReadRequest.closed_at.is_(None), 1), else_=0))
    query = (
        select(Case.created_at, func.max(ReadRequest.closed_at), is_open)
        .join(ReadRequest, ReadRequest.case_id == Case.id)
        .where(Case.created_at >= since)
        .group_by(Case.id, Case.created_at)
    )
    query = query if site is None else query.where(Case.site == site)
    return [_TimeSpan(begun, None if n_open else ended) for begun, ended, n_open in session.execute(query)]


def _read_timed_labels(session: Session, since: datetime, site: str | None) -> list[tuple[datetime, float | None]]:
    query = select(CountedLabel.created_at, CountedLabel.reading_seconds).where(
        CountedLabel.created_at >= since, CountedLabel.kind == "label"
    )
    if site is not None:
        query = query.join(Case, Case.id == CountedLabel.case_id).where(Case.site == site)
    return [(moment, seconds) for moment, seconds in session.execute(query)]


def _count_open_reads(session: Session, at: datetime, site: str | None) -> tuple[int, int]:
    """Reads that are open, and how many of them are overdue."""
    overdue = func.count().filter(ReadRequest.due_at < at)
    query = select(func.count(), overdue).where(ReadRequest.state.in_(("open", "leased")))
    if site is not None:
        query = query.join(Case, Case.id == ReadRequest.case_id).where(Case.site == site)
    n_open, n_overdue = session.execute(query).one()
    return n_open, n_overdue
