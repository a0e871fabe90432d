"""The champion's log score since it was promoted, patient by patient, as a series that an alarm can be put on.

A unit is a patient's first day: all cases that were stored on it. It is complete once the first planned reads of these
cases have been answered, or are due; one of which nobody has answered any in time is complete with the first late
answer. Its place is the time at which it was completed, and what comes later (further days, late answers, a change of
mind after the reveal) changes nothing of it: whoever looks every morning looks at one series that only grows.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import numpy.typing as npt

from app.evaluations.columns import Columns
from app.evaluations.schemas import MonitorStepOut, ScoreMonitorOut
from ml.arrays import FloatArray, IntArray
from ml.metrics.score_monitor import (
    FLOOR,
    LEVEL,
    N_REFERENCE,
    TOLERANCE,
    CapitalPath,
    capital_path,
    clipped_log_loss,
    daily_stakes,
)

_DAY = 86_400
# an answer may be corrected for a while: the day that has ended is looked at an hour later
_SETTLED = 3_600
_RECENT_DAYS = 30
# more days than this are thinned for a chart
_STEPS = 200


@dataclass(frozen=True)
class Units:
    """Patients in the order in which they were completed.

    Attributes:
        loss: (N,) mean clipped log loss of the answers that count, nats.
        day: (N,) on which the unit was completed, days since 1970, UTC.
    """

    loss: FloatArray
    day: IntArray


def score_monitors(columns: Columns, since: datetime, at: datetime) -> list[ScoreMonitorOut]:
    """What the alarm says of all patients, and of those of each site.

    Args:
        columns: of the champion, all partitions, without the cases that it was trained on.
        since: when it was promoted.
        at: the time of looking; the day of it is not looked at.
    """
    series = series_of(columns, since, at)
    stakes = daily_stakes([units.day for units in series.values()])
    return [
        _shown(site, since, units, capital_path(units.loss, units.day, stake))
        for (site, units), stake in zip(series.items(), stakes, strict=True)
    ]


def series_of(columns: Columns, since: datetime, at: datetime) -> dict[str | None, Units]:
    """Units of all cases (None) and of those of each site, where there are any; arguments as in ``score_monitors``."""
    rows = np.flatnonzero((columns.created_at >= since.timestamp()) & ~np.isnan(columns.first_due_at))
    until = (at.timestamp() - _SETTLED) // _DAY * _DAY
    series: dict[str | None, Units] = {None: units_of(columns, rows, until)}
    for number, name in sorted(columns.sites.items(), key=lambda item: item[1]):
        series[name] = units_of(columns, rows[columns.site[rows] == number], until)
    return {site: units for site, units in series.items() if len(units.day)}


def units_of(columns: Columns, rows: npt.NDArray[np.intp], until: float) -> Units:
    """Units of some cases that were completed before a time.

    Args:
        columns: of the champion.
        rows: cases with a planned read.
        until: seconds since 1970.
    """
    if rows.size == 0:
        return Units(np.zeros(0), np.zeros(0, dtype=np.int64))
    rows = rows[np.lexsort((columns.created_at[rows], columns.cluster[rows]))]
    new = np.diff(columns.cluster[rows], prepend=columns.cluster[rows[0]] - 1) != 0
    first_stored = columns.created_at[rows][new][np.cumsum(new) - 1]
    on_first_day = columns.created_at[rows] // _DAY == first_stored // _DAY
    rows, new, first_stored = rows[on_first_day], new[on_first_day], first_stored[on_first_day]
    starts, unit = np.flatnonzero(new), np.cumsum(new) - 1
    answered, due = columns.first_answered_at[rows], columns.first_due_at[rows]
    ended = np.maximum.reduceat(np.where(answered <= due, answered, due), starts)
    in_time = np.logical_or.reduceat(answered <= ended[unit], starts)
    completed = np.where(in_time, ended, np.fmin.reduceat(answered, starts))
    counts = answered <= completed[unit]
    loss = np.zeros(len(rows))
    loss[counts] = clipped_log_loss(columns.class_probs[rows[counts]], columns.first_class[rows[counts]])
    order = np.lexsort((columns.cluster[rows][starts], first_stored[starts], completed))
    order = order[completed[order] < until]
    n_counted = np.add.reduceat(counts, starts, dtype=np.float64)[order]
    return Units(np.add.reduceat(loss, starts)[order] / n_counted, (completed[order] // _DAY).astype(np.int64))


def _shown(site: str | None, since: datetime, units: Units, path: CapitalPath) -> ScoreMonitorOut:
    is_recent = units.day > path.day[-1] - _RECENT_DAYS
    reference = units.loss[:N_REFERENCE][~is_recent[:N_REFERENCE]]
    rung = path.alarm_day()
    alarm = None if rung is None else _date(rung)
    found = ScoreMonitorOut(
        site=site,
        since=since,
        n_units=len(units.day),
        n_reference=len(reference),
        reference_loss=float(reference.mean()) if len(reference) else None,
        recent_loss=float(units.loss[is_recent].mean()),
        floor=FLOOR,
        tolerance=TOLERANCE,
        level=LEVEL,
        log10_threshold=float(-np.log10(LEVEL)),
        alarm_on=alarm,
        steps=_steps(path),
        warnings=[],
    )
    return found if alarm is None else found.model_copy(update={"warnings": [_warning(found)]})


def _warning(found: ScoreMonitorOut) -> str:
    where = "" if found.site is None else f" at site {found.site}"
    before = "" if found.reference_loss is None else f" after {found.reference_loss:.2f} in the reference period"
    return (
        f"the champion's log score{where} has become worse by more than {found.tolerance:g} per label (alarm on "
        f"{found.alarm_on}; mean loss {found.recent_loss:.2f} in the last {_RECENT_DAYS} days{before})"
    )


def _steps(path: CapitalPath) -> list[MonitorStepOut]:
    """The days of a path from the first stake on, thinned; the last one and the largest capital stay."""
    played = np.flatnonzero(np.isfinite(path.log_capital))
    if played.size == 0:
        return []
    thinned = played[np.linspace(0, played.size - 1, min(played.size, _STEPS)).round().astype(np.int64)]
    shown = np.union1d(thinned, [played[np.argmax(path.log_capital[played])]])
    return [
        MonitorStepOut(
            day=_date(int(path.day[row])),
            n_units=int(path.n_units[row]),
            log10_capital=float(path.log_capital[row] / np.log(10)),
        )
        for row in shown
    ]


def _date(day: int) -> date:
    return datetime.fromtimestamp(day * _DAY, UTC).date()
