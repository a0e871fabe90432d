"""Statistics of a report: shares with intervals, clustered by patient; workload and turnaround times (Kaplan-Meier)."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from statistics import fmean
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import comb
from sqlalchemy import case, func, or_, select
from sqlalchemy.orm import Session

from app.database.tables import Annotator, Case, CountedLabel, ReadRequest
from app.http.models import MetricOut
from app.metrics.service import Cohort, LeftOutOut
from app.reports.schemas import (
    ConsensusRowOut,
    DurationOut,
    FindingsOut,
    PairOut,
    SaidOut,
    SecondReadsOut,
    SensitivityOut,
    TrendOut,
    WeekOut,
    WhatIfOut,
    WorkloadOut,
)
from app.reports.second_reads import RequestedReads
from ml.metrics.cases import Sample, agreement_terms, class_frequencies, observed_disagreement, select_sample
from ml.metrics.jackknife import SHARE, Replicates, mean_replicates, to_estimate
from ml.metrics.selection import QUINTILES
from ml.metrics.triage_curves import share_interval, triage_recall
from ml.util.arrays import FloatArray, IntArray

#: A leading class as probable as this is called sure.
SURE = 0.8
#: Shares of the cases for which the policy's page says what reading them twice would catch.
SHARES = tuple(round(0.05 * number, 2) for number in range(1, 20))
_EVENTS: tuple[Literal["leading", "other", "split"], ...] = ("leading", "other", "split")
#: Pairs of classes, sites and months that are shown.
_MOST_PAIRS, _MOST_SITES, _MOST_MONTHS = 8, 12, 12
_Mask = npt.NDArray[np.bool_]


def compute_findings(
    cohort: Cohort, requested: RequestedReads, answering: DurationOut, left_out: list[LeftOutOut]
) -> FindingsOut:
    """Compute the statistics behind the sentences of a report."""
    twice = _read_twice(cohort)
    fifth = twice & (cohort.quintile == QUINTILES)
    return FindingsOut(
        n_cases=len(cohort.columns),
        n_labels=int(cohort.counted().sum()),
        left_out=left_out,
        disagreement=_predicted_and_observed(cohort, fifth if fifth.sum() > 1 else twice),
        leading=_sure_class_calibration(cohort),
        second_reads=_caught_by_second_reads(cohort, twice, requested),
        agreement=_agreement_between(cohort, twice),
        answering=answering,
        sensitivity=estimate_sensitivity(cohort),
    )


def _read_twice(cohort: Cohort) -> _Mask:
    enough = cohort.columns.n_labels >= 2
    return np.asarray(enough if cohort.weight2 is None else enough & (cohort.weight2 > 0))


def _select_sample(cohort: Cohort, rows: _Mask, weight: FloatArray | None) -> Sample:
    return select_sample(rows, weight, cohort.columns.cluster)


def _estimate_mean(values: FloatArray, sample: Sample) -> MetricOut:
    return MetricOut.of(to_estimate(mean_replicates(values, sample), sample, term=SHARE))


def _predicted_and_observed(cohort: Cohort, rows: _Mask) -> SaidOut | None:
    """Mean disagreement probability of cases read twice, and the share of pairs of their labels that differ."""
    sample = _select_sample(cohort, rows, cohort.weight2)
    if sample.rows.size < 2:
        return None
    data = cohort.columns
    mean_prediction = float(np.average(data.disagreement_probs[sample.rows], weights=sample.weight))
    return SaidOut(
        said=mean_prediction, seen=_estimate_mean(observed_disagreement(data.label_counts[sample.rows]), sample)
    )


def _sure_class_calibration(cohort: Cohort) -> SaidOut | None:
    """Calibration of the leading class where it is sure, or else in the fifth where it is surest."""
    leading = cohort.columns.class_probs.max(axis=1, initial=0.0)
    sure = _leading_class_calibration(cohort, leading >= SURE)
    if sure is not None or leading.size == 0:
        return sure
    return _leading_class_calibration(cohort, leading >= np.quantile(leading, 1 - 1 / QUINTILES))


def _first_labels(cohort: Cohort) -> IntArray:
    """Labels (N, K) of estimates that need one label."""
    return cohort.columns.label_counts if cohort.first_counts is None else cohort.first_counts


def _leading_class_calibration(cohort: Cohort, rows: _Mask) -> SaidOut | None:
    """Mean probability of the leading class of labelled cases, and the share of their labels that name it."""
    counts, data = _first_labels(cohort), cohort.columns
    sample = _select_sample(cohort, rows & (counts.sum(axis=1) > 0), cohort.weight)
    if sample.rows.size < 2:
        return None
    probs = data.class_probs[sample.rows]
    mean_prob = float(np.average(probs.max(axis=1), weights=sample.weight))
    return SaidOut(
        said=mean_prob, seen=_estimate_mean(agreement_terms(class_frequencies(counts[sample.rows]), probs), sample)
    )


def estimate_sensitivity(cohort: Cohort) -> list[SensitivityOut]:
    """Estimate how often the leading class is the annotator's, by that class; the most frequent one first."""
    counts, data = _first_labels(cohort), cohort.columns
    sample = _select_sample(cohort, counts.sum(axis=1) > 0, cohort.weight)
    named = class_frequencies(counts[sample.rows])
    leading = data.class_probs[sample.rows].argmax(axis=1)
    order = np.argsort(-(sample.weight @ named), kind="stable").tolist()
    return [
        SensitivityOut(
            class_code=data.classes[k],
            sensitivity=_share_of(named[:, k] * (leading == k), named[:, k], sample).model_copy(
                update={"n": int((named[:, k] > 0).sum())}
            ),
        )
        for k in order
        if named[:, k].any()
    ]


def _share_of(part: FloatArray, whole: FloatArray, sample: Sample) -> MetricOut:
    """Σ w part / Σ w whole, with an exact interval and the standard error by leaving out one patient at a time."""
    above, below = sample.per_cluster(sample.weight * part), sample.per_cluster(sample.weight * whole)
    with np.errstate(invalid="ignore", divide="ignore"):
        without = (above.sum() - above) / (below.sum() - below)
    metric = MetricOut.of(to_estimate(Replicates(float(above.sum() / below.sum()), without), sample, bounds=SHARE))
    low, high = share_interval(part, whole, sample)
    return metric.model_copy(update={"low": low, "high": high})


def _caught_by_second_reads(cohort: Cohort, twice: _Mask, requested: RequestedReads) -> SecondReadsOut:
    sample, selected = _select_sample(cohort, twice, cohort.weight2), requested.selected
    observed = observed_disagreement(cohort.columns.label_counts[sample.rows])
    share = caught = None
    if selected is not None and selected.size:
        caught = _share_of(selected[sample.rows] * observed, observed, sample) if observed.any() else None
        share = float(selected.mean())
    return SecondReadsOut(policy_version=requested.policy_version, by=requested.by, share=share, caught=caught)


def _agreement_between(cohort: Cohort, twice: _Mask) -> MetricOut | None:
    sample = _select_sample(cohort, twice, cohort.weight2)
    if sample.rows.size < 2:
        return None
    return _estimate_mean(1 - observed_disagreement(cohort.columns.label_counts[sample.rows]), sample)


def compare_consensus(cohort: Cohort) -> list[ConsensusRowOut]:
    """Predicted and observed consensus among five labels of a cell, where it has them, else between two."""
    # Of n labels every choice of five, or of two, is as good as any other: the mean over all of them is unbiased.
    data, twice = cohort.columns, _read_twice(cohort) & ~np.isnan(cohort.columns.consensus[:, 0])
    five, rows = data.n_labels >= 5, []
    for place, of, chosen in ((0, 5, five), (2, 2, ~five)):
        sample = _select_sample(cohort, twice & chosen, cohort.weight2)
        if sample.rows.size < 2:
            continue
        counts, n_labels = data.label_counts[sample.rows], data.n_labels[sample.rows, None]
        agreeing = comb(counts, of) + (comb(counts, 4) * (n_labels - counts) if of == 5 else 0)
        agreeing = agreeing / comb(n_labels, of)
        leading = agreeing[np.arange(len(agreeing)), data.class_probs[sample.rows].argmax(axis=1)]
        seen = np.column_stack([leading, agreeing.sum(axis=1) - leading])
        stated = data.consensus[sample.rows, place : place + 2]
        for k, event in enumerate(_EVENTS):
            values = [1 - part.sum(axis=1) if event == "split" else part[:, k] for part in (stated, seen)]
            mean_prediction = float(np.average(values[0], weights=sample.weight))
            rows.append(
                ConsensusRowOut(of=of, event=event, said=mean_prediction, seen=_estimate_mean(values[1], sample))
            )
    return rows


def rank_confused_pairs(cohort: Cohort) -> list[PairOut]:
    """The pairs of classes that annotators of the same case confuse most, the most frequent first."""
    sample = _select_sample(cohort, _read_twice(cohort), cohort.weight2)
    counts = cohort.columns.label_counts[sample.rows].astype(np.float64)
    observed = observed_disagreement(cohort.columns.label_counts[sample.rows])
    if not observed.any():
        return []
    n_labels = counts.sum(axis=1)
    possible = n_labels * (n_labels - 1) / 2
    scaled = counts * (sample.weight / possible)[:, None]
    joint = np.triu(scaled.T @ counts, 1)
    pair_rows = []
    for place in np.argsort(-joint, axis=None, kind="stable")[:_MOST_PAIRS].tolist():
        one, other = divmod(place, joint.shape[1])
        if joint[one, other] > 0:
            part = counts[:, one] * counts[:, other] / possible
            share = _share_of(part, observed, sample)
            classes = cohort.columns.classes
            pair_rows.append(
                PairOut(first=classes[one], second=classes[other], share=share, n_cases=int((part > 0).sum()))
            )
    return pair_rows


def trends_by_site(cohort: Cohort) -> list[TrendOut]:
    """The sites with the most cases, in alphabetical order."""
    numbers, counts = np.unique(cohort.columns.site, return_counts=True)
    most = numbers[np.argsort(-counts, kind="stable")[:_MOST_SITES]].tolist()
    named = sorted((cohort.columns.sites.get(number, ""), number) for number in most)
    return [_group_trend(name, cohort.take(cohort.columns.site == number)) for name, number in named]


def trends_by_month(cohort: Cohort) -> list[TrendOut]:
    """The last months in which cases arrived, the oldest first."""
    months = cohort.columns.created_at.astype("datetime64[s]").astype("datetime64[M]")
    return [_group_trend(str(month), cohort.take(months == month)) for month in np.unique(months)[-_MOST_MONTHS:]]


def _group_trend(name: str, cohort: Cohort) -> TrendOut:
    pair = _predicted_and_observed(cohort, _read_twice(cohort))
    leading = _leading_class_calibration(cohort, np.ones(len(cohort.columns), dtype=bool))
    return TrendOut(
        group=name,
        n_cases=len(cohort.columns),
        said=None if pair is None else pair.said,
        differed=None if pair is None else pair.seen,
        agreement=None if leading is None else leading.seen,
    )


def simulate_second_read_shares(
    cohort: Cohort, requested: RequestedReads, workload: WorkloadOut
) -> Iterator[WhatIfOut]:
    """Simulate second reads of each share of the cases, in the order of the rule in force."""
    per_week, seconds = workload.received_per_week, workload.seconds
    data, rows = cohort.columns, np.flatnonzero(_read_twice(cohort))
    weight = None if cohort.weight2 is None else cohort.weight2[rows]
    counts = data.label_counts[rows]
    if rows.size < 2 or not observed_disagreement(counts).any():
        return
    recalls = triage_recall(counts, requested.score[rows], SHARES, sample_weight=weight, cluster=data.cluster[rows])
    thresholds = thresholds_for_shares(requested.score)
    for share, recall, threshold in zip(SHARES, recalls, thresholds, strict=True):
        reads = None if per_week is None else share * per_week
        yield WhatIfOut(
            share=share,
            caught=MetricOut.of(recall),
            threshold=threshold,
            reads_per_week=reads,
            hours_per_week=None if reads is None or seconds is None else reads * seconds / 3600,
        )


def thresholds_for_shares(score: FloatArray) -> list[float]:
    """For each share the shortest number below 1 that so many of the scores are above; equal scores stay together."""
    values, counts = np.unique(np.concatenate(([0.0], score, [1.0])), return_counts=True)
    above = counts[::-1].cumsum()[::-1] - counts - 1
    places = [min(int((above > round(share * score.size)).sum()), values.size - 2) for share in SHARES]
    return [_shortest_between(*values[place : place + 2].tolist()) for place in places]


def _shortest_between(low: float, high: float) -> float:
    rounded = (math.ceil(low * 10**digits) / 10**digits for digits in range(1, 16))
    return next((value for value in rounded if low <= value < high), low)


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


def summarise_workload(session: Session, at: datetime, site: str | None = None) -> tuple[WorkloadOut, DurationOut]:
    """Summarise received cases, requested reads and given reads, week by week; and the time to answer."""
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
    workload = WorkloadOut(
        weeks=[
            WeekOut(week=week, hours=float(hours[week]), **{name: counter[week] for name, counter in counts.items()})
            for week in mondays
        ],
        n_waiting=n_waiting,
        n_overdue=n_overdue,
        seconds=typical,
        received_per_week=_received_per_week(closing, at),
        closing=_estimate_span_duration(closing, at),
    )
    return workload, _estimate_span_duration(requests, at)


def _received_per_week(spans: list[_TimeSpan], at: datetime) -> float | None:
    """Cases per week since the first one; in the first week those so far, if any."""
    days = max(7.0, (at - min((span.begun for span in spans), default=at)) / timedelta(days=1))
    return 7 * len(spans) / days if spans else None


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
    # a gallery's labels answer no read, nor do those of an outside system
    read = or_(CountedLabel.blind.is_(True), CountedLabel.reading_seconds.is_not(None))
    query = (
        select(CountedLabel.created_at, CountedLabel.reading_seconds)
        .join(Annotator, Annotator.id == CountedLabel.annotator_id)
        .where(CountedLabel.created_at >= since, CountedLabel.kind == "label")
        .where(Annotator.account_id.is_not(None), read)
    )
    if site is not None:
        query = query.join(Case, Case.id == CountedLabel.case_id).where(Case.site == site)
    return [(moment, seconds) for moment, seconds in session.execute(query)]


def _count_open_reads(session: Session, at: datetime, site: str | None) -> tuple[int, int]:
    overdue = func.count().filter(ReadRequest.due_at < at)
    query = select(func.count(), overdue).where(ReadRequest.state.in_(("open", "leased")))
    if site is not None:
        query = query.join(Case, Case.id == ReadRequest.case_id).where(Case.site == site)
    n_open, n_overdue = session.execute(query).one()
    return n_open, n_overdue
