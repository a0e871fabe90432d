"""Drift of annotators from week to week."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.database.tables import Annotator, time_of
from app.http.models import ResponseModel, Sentence
from app.metrics.cohort import exclude_training_cases
from app.metrics.dataset import EvaluationDataset, stable_name_hash
from app.metrics.snapshot import load_current_dataset
from app.releases.service import champion_since, class_codes, existing_release, served_release_id
from ml.annotators.drift import drift_paths, excess_log_loss, weekly_bands
from ml.messages import Message
from ml.metrics.betting_monitor import LEVEL, TOLERANCE, CapitalPath
from ml.util.arrays import FloatArray, IntArray


class ReaderWeekOut(ResponseModel):
    """Mean excess loss of an annotator's answers in a week."""

    week: date
    n_patients: int
    excess_loss: float
    low: float
    high: float


class ReaderDriftOut(ResponseModel):
    """Drift of an annotator's first reads since the promotion of the champion, until the last Monday."""

    annotator: str
    n_patients: int
    tolerance: float
    level: float
    alarm_on: date | None
    weeks: list[ReaderWeekOut]
    sentence: Sentence


class ReadersDriftOut(ResponseModel):
    """Drift of annotators."""

    items: list[ReaderDriftOut]


_DAY = 86_400
# an answer may be corrected for a while
_SETTLED = timedelta(hours=1)
# 1970 began on a Thursday
_MONDAY = 4


@dataclass(frozen=True)
class AnsweredPatients:
    """Patients of one annotator in the order in which the answers were complete."""

    # (N,) mean excess loss, nats per label
    excess: FloatArray
    # (N,) days since 1970, UTC
    day: IntArray


def reader_drift(session: Session, home: Path) -> list[ReaderDriftOut]:
    """Every annotator who answered a first read since the champion was promoted, by name."""
    release_id = served_release_id(session)
    classes = class_codes(existing_release(session, release_id))
    columns, since = (
        exclude_training_cases(load_current_dataset(session, home, release_id, classes)),
        champion_since(session),
    )
    names = session.execute(select(Annotator.name).order_by(Annotator.name)).scalars().all()
    return [] if since is None else compute_reader_drift(columns, names, since, time_of(session))


def compute_reader_drift(
    columns: EvaluationDataset, names: Sequence[str], since: datetime, at: datetime
) -> list[ReaderDriftOut]:
    """Compute the drift of each annotator from a dataset."""
    until = _week_of(int((at - _SETTLED).timestamp()) // _DAY) * 7 + _MONDAY
    answered = {
        name: collect_answered_patients(columns, stable_name_hash(name), since.timestamp(), float(until * _DAY))
        for name in names
    }
    answered = {name: units for name, units in answered.items() if len(units.day)}
    n_classes = len(columns.classes)
    paths = drift_paths([units.excess for units in answered.values()], [u.day for u in answered.values()], n_classes)
    return [
        _reader_drift_out(name, units, path, n_classes)
        for (name, units), path in zip(answered.items(), paths, strict=True)
    ]


def collect_answered_patients(
    columns: EvaluationDataset, annotator: int, since: float, until: float
) -> AnsweredPatients:
    """An annotator's patients, of cases stored from one time on, answered before another; seconds since 1970."""
    mine = (columns.first_annotator == annotator) & (columns.created_at >= since) & (columns.first_answered_at < until)
    rows = np.flatnonzero(mine)
    if not len(rows):
        return AnsweredPatients(np.zeros(0), np.zeros(0, dtype=np.int64))
    rows = rows[np.lexsort((columns.first_answered_at[rows], columns.cluster[rows]))]
    cluster, answered_at = columns.cluster[rows], columns.first_answered_at[rows]
    starts = np.flatnonzero(np.append([True], cluster[1:] != cluster[:-1]))
    unit = np.cumsum(np.append([True], cluster[1:] != cluster[:-1])) - 1
    day = (answered_at // _DAY).astype(np.int64)
    first_day = day[starts]
    counts = day == first_day[unit]
    rows, unit, answered_at = rows[counts], unit[counts], answered_at[counts]
    excess = excess_log_loss(columns.class_probs[rows], columns.first_class[rows])
    mean = np.bincount(unit, excess) / np.bincount(unit)
    completed = np.full(len(starts), -np.inf)
    np.maximum.at(completed, unit, answered_at)
    order = np.lexsort((cluster[starts], completed))
    return AnsweredPatients(mean[order], first_day[order])


def _week_of(day: int) -> int:
    """Number of the week, Monday to Sunday, in which a day since 1970 lies."""
    return (day - _MONDAY) // 7


def _reader_drift_out(name: str, units: AnsweredPatients, path: CapitalPath, n_classes: int) -> ReaderDriftOut:
    rung = path.alarm_day()
    weeks = [
        ReaderWeekOut(
            week=_day_to_date(band.week * 7 + _MONDAY),
            n_patients=band.n,
            excess_loss=band.mean,
            low=band.low,
            high=band.high,
        )
        for band in weekly_bands(units.excess, (units.day - _MONDAY) // 7, n_classes)
    ]
    alarm = None if rung is None else _day_to_date(rung)
    return ReaderDriftOut(
        annotator=name,
        n_patients=len(units.day),
        tolerance=TOLERANCE,
        level=LEVEL,
        alarm_on=alarm,
        weeks=weeks,
        sentence=_drift_sentence(name, alarm, len(weeks)),
    )


def _drift_sentence(name: str, alarm: date | None, n_weeks: int) -> str:
    if alarm is not None:
        return Message(
            "{name}'s answers have become harder to predict, by more than {tolerance:g} nats per "
            "label (alarm on {alarm}).",
            name=name,
            tolerance=TOLERANCE,
            alarm=alarm,
        )
    over = Message("one week") if n_weeks == 1 else f"{n_weeks} weeks"
    return Message("No change in {name}'s answers over {over}.", over=over, name=name)


def _day_to_date(day: int) -> date:
    return datetime.fromtimestamp(day * _DAY, UTC).date()
