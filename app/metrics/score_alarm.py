"""Series of the champion's log score per patient since its promotion, for a sequential alarm."""

from dataclasses import dataclass
from datetime import UTC, date, datetime

import numpy as np
import numpy.typing as npt

from app.metrics.dataset import EvaluationDataset
from app.metrics.schemas import MonitorStepOut, ScoreMonitorOut
from ml.messages import Message
from ml.metrics.betting_monitor import (
    FLOOR,
    LEVEL,
    N_REFERENCE,
    CapitalPath,
    clipped_log_loss,
    compute_rank_path,
    daily_stakes,
    label_surprise,
)
from ml.util.arrays import FloatArray, IntArray

_DAY = 86_400
# an answer may be corrected for a while: the day that has ended is looked at an hour later
_SETTLED = 3_600
_RECENT_DAYS = 30
# more days than this are thinned for a chart
_STEPS = 200


@dataclass(frozen=True)
class PatientUnits:
    """Patients in the order in which they were completed."""

    # (N,) mean clipped log loss of the answers that count, nats
    loss: FloatArray
    # (N,) on which the unit was completed, days since 1970, UTC
    day: IntArray
    # (N,) number of the site at which the first of its cases was stored
    site: IntArray
    # (N,) mean surprise of these answers
    surprise: FloatArray
    # (N,) their number: means of fewer spread more, so ranks are among equally many
    n_answers: IntArray

    def at(self, site: int) -> "PatientUnits":
        """Those of one site."""
        here = self.site == site
        return PatientUnits(self.loss[here], self.day[here], self.site[here], self.surprise[here], self.n_answers[here])


def score_monitors(columns: EvaluationDataset, since: datetime, at: datetime) -> list[ScoreMonitorOut]:
    """Compute the alarm for all patients and for each site."""
    series = split_units_by_site(columns, since, at)
    stakes = daily_stakes([units.day for units in series.values()])
    return [
        _monitor_out(site, since, units, compute_rank_path(units.surprise, units.day, stake, units.n_answers))
        for (site, units), stake in zip(series.items(), stakes, strict=True)
    ]


def split_units_by_site(columns: EvaluationDataset, since: datetime, at: datetime) -> dict[str | None, PatientUnits]:
    """Units of all cases (None) and of each site, where there are any; arguments as in ``score_monitors``."""
    until = (at.timestamp() - _SETTLED) // _DAY * _DAY
    units = collect_patient_units(columns, since.timestamp(), until)
    series: dict[str | None, PatientUnits] = {None: units}
    for number, name in sorted(columns.sites.items(), key=lambda item: item[1]):
        series[name] = units.at(number)
    return {site: units for site, units in series.items() if len(units.day)}


def collect_patient_units(columns: EvaluationDataset, since: float, until: float) -> PatientUnits:
    """Units whose cases were stored from one time on and that were completed before another, seconds since 1970."""
    rows = np.flatnonzero((columns.created_at >= since) & ~np.isnan(columns.first_due_at))
    # snapshots have patients together, which a stable sort is fast on
    rows = rows[np.argsort(columns.cluster[rows], kind="stable")]
    cluster, stored = columns.cluster[rows], columns.created_at[rows]
    new = np.append(np.ones(min(len(rows), 1), dtype=bool), cluster[1:] != cluster[:-1])
    if not new.any():
        none = np.zeros(0, dtype=np.int64)
        return PatientUnits(np.zeros(0), none, none, np.zeros(0), none)
    first_stored, unit = np.minimum.reduceat(stored, np.flatnonzero(new)), np.cumsum(new) - 1
    on_first_day = stored < ((first_stored // _DAY + 1) * _DAY)[unit]
    rows, unit, stored = rows[on_first_day], unit[on_first_day], stored[on_first_day]
    starts = np.flatnonzero(np.append([True], unit[1:] != unit[:-1]))
    answered, due = columns.first_answered_at[rows], columns.first_due_at[rows]
    ended = np.maximum.reduceat(np.where(answered <= due, answered, due), starts)
    in_time = np.logical_or.reduceat(answered <= ended[unit], starts)
    completed = np.where(in_time, ended, np.fmin.reduceat(answered, starts))
    counts = answered <= completed[unit]
    answers = rows[counts]
    probs, label = columns.class_probs[answers], columns.first_class[answers]
    of_answer = np.zeros((len(rows), 2))
    of_answer[counts, 0] = clipped_log_loss(probs, label)
    of_answer[counts, 1] = label_surprise(probs, label, draw_lots(columns, answers))
    order = np.lexsort((columns.cluster[rows[starts]], first_stored, completed))
    order = order[completed[order] < until]
    site = np.maximum.reduceat(np.where(stored == first_stored[unit], columns.site[rows], -1), starts)
    n_counted = np.add.reduceat(counts, starts, dtype=np.float64)[order]
    loss, surprise = np.add.reduceat(of_answer, starts)[order].T / n_counted
    return PatientUnits(
        loss, (completed[order] // _DAY).astype(np.int64), site[order], surprise, n_counted.astype(np.int64)
    )


def draw_lots(columns: EvaluationDataset, rows: npt.NDArray[np.intp]) -> FloatArray:
    """A number in [0, 1) for each case, which its identifier settles for good."""
    # the last four bytes of an identifier are random; those before them count up within a millisecond
    return np.asarray(columns.case_id[rows, -4:] @ 256.0 ** np.arange(-4, 0)[::-1])


def _monitor_out(site: str | None, since: datetime, units: PatientUnits, path: CapitalPath) -> ScoreMonitorOut:
    is_recent = units.day > path.day[-1] - _RECENT_DAYS
    reference = units.loss[:N_REFERENCE][~is_recent[:N_REFERENCE]]
    rung = path.alarm_day()
    alarm = None if rung is None else _date_of_day(rung)
    monitor = ScoreMonitorOut(
        site=site,
        since=since,
        n_units=len(units.day),
        n_reference=len(reference),
        reference_loss=float(reference.mean()) if len(reference) else None,
        recent_loss=float(units.loss[is_recent].mean()),
        floor=FLOOR,
        tolerance=0.0,
        level=LEVEL,
        log10_threshold=float(-np.log10(LEVEL)),
        alarm_on=alarm,
        steps=_thin_steps(path),
        warnings=[],
    )
    return monitor if alarm is None else monitor.model_copy(update={"warnings": [_alarm_warning(monitor)]})


def _alarm_warning(found: ScoreMonitorOut) -> str:
    where = "" if found.site is None else Message(" at site {site}", site=found.site)
    before = (
        ""
        if found.reference_loss is None
        else Message(" after {reference_loss:.2f} in the reference period", reference_loss=found.reference_loss)
    )
    return Message(
        "the champion{where} has become worse: annotators choose improbable classes more often than before "
        "(alarm on {alarm_on}; mean loss {recent_loss:.2f} in the last {recent_days} days{before})",
        where=where,
        alarm_on=found.alarm_on,
        recent_loss=found.recent_loss,
        recent_days=_RECENT_DAYS,
        before=before,
    )


def _thin_steps(path: CapitalPath) -> list[MonitorStepOut]:
    """The days of a path from the first stake on, thinned; the last one and the largest capital stay."""
    played = np.flatnonzero(np.isfinite(path.log_capital))
    if played.size == 0:
        return []
    thinned = played[np.linspace(0, played.size - 1, min(played.size, _STEPS)).round().astype(np.int64)]
    kept_rows = np.union1d(thinned, [played[np.argmax(path.log_capital[played])]])
    return [
        MonitorStepOut(
            day=_date_of_day(int(path.day[row])),
            n_units=int(path.n_units[row]),
            log10_capital=float(path.log_capital[row] / np.log(10)),
        )
        for row in kept_rows
    ]


def _date_of_day(day: int) -> date:
    return datetime.fromtimestamp(day * _DAY, UTC).date()
