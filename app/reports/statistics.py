"""Headline statistics of a report: shares with intervals, clustered by patient."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from app.http.models import MetricOut
from app.metrics.service import Cohort
from app.reports.schemas import FindingsOut, PairOut, SaidOut, ShareOut, TrendOut, WhatIfOut, WorkloadOut
from ml.metrics.cases import Sample, agreement_terms, class_frequencies, observed_disagreement, select_sample
from ml.metrics.jackknife import SHARE, Replicates, mean_replicates, to_estimate
from ml.metrics.selection import QUINTILES
from ml.metrics.triage_curves import triage_recall
from ml.util.arrays import FloatArray

#: A leading class as probable as this is called sure.
SURE = 0.8
#: Shares of the cases for which the policy's page says what reading them twice would catch.
SHARES = tuple(round(0.05 * number, 2) for number in range(1, 20))
#: Pairs of classes, sites and months that are shown.
_MOST_PAIRS, _MOST_SITES, _MOST_MONTHS = 8, 12, 12
_Mask = npt.NDArray[np.bool_]


def compute_findings(cohort: Cohort) -> FindingsOut:
    """Compute the statistics behind the opening sentences of a report."""
    twice = _read_twice(cohort)
    fifth = twice & (cohort.quintile == QUINTILES)
    return FindingsOut(
        disagreement=_predicted_and_observed(cohort, fifth if fifth.sum() > 1 else twice),
        leading=_sure_class_calibration(cohort),
        caught=_caught_by_second_reads(cohort, twice),
        agreement=_agreement_between(cohort, twice),
    )


def _read_twice(cohort: Cohort) -> _Mask:
    enough = cohort.columns.n_labels >= 2
    return np.asarray(enough if cohort.weight2 is None else enough & (cohort.weight2 > 0))


def _select_sample(cohort: Cohort, rows: _Mask, weight: FloatArray | None) -> Sample:
    return select_sample(rows, weight, cohort.columns.cluster)


def _estimate_mean(values: FloatArray, sample: Sample) -> MetricOut:
    return MetricOut.of(to_estimate(mean_replicates(values, sample), sample, bounds=SHARE))


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


def _leading_class_calibration(cohort: Cohort, rows: _Mask) -> SaidOut | None:
    """Mean probability of the leading class of labelled cases, and the share of their labels that name it."""
    counts, data = cohort.first_counts, cohort.columns
    counts = data.label_counts if counts is None else counts
    sample = _select_sample(cohort, rows & (counts.sum(axis=1) > 0), cohort.weight)
    if sample.rows.size < 2:
        return None
    probs = data.class_probs[sample.rows]
    mean_prob = float(np.average(probs.max(axis=1), weights=sample.weight))
    return SaidOut(
        said=mean_prob, seen=_estimate_mean(agreement_terms(class_frequencies(counts[sample.rows]), probs), sample)
    )


def _share_of(part: FloatArray, whole: FloatArray, sample: Sample) -> MetricOut:
    """Σ w part / Σ w whole, with an interval by leaving out one patient at a time."""
    above, below = sample.per_cluster(sample.weight * part), sample.per_cluster(sample.weight * whole)
    with np.errstate(invalid="ignore", divide="ignore"):
        without = (above.sum() - above) / (below.sum() - below)
    replicates = Replicates(float(above.sum() / below.sum()), without)
    return MetricOut.of(to_estimate(replicates, sample, bounds=SHARE))


def _caught_by_second_reads(cohort: Cohort, twice: _Mask) -> ShareOut | None:
    sample = _select_sample(cohort, twice, cohort.weight2)
    observed = observed_disagreement(cohort.columns.label_counts[sample.rows])
    if not observed.any():
        return None
    pi = cohort.columns.pi
    return ShareOut(share=float(pi.mean()), caught=_share_of(pi[sample.rows] * observed, observed, sample))


def _agreement_between(cohort: Cohort, twice: _Mask) -> MetricOut | None:
    sample = _select_sample(cohort, twice, cohort.weight2)
    if sample.rows.size < 2:
        return None
    return _estimate_mean(1 - observed_disagreement(cohort.columns.label_counts[sample.rows]), sample)


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


def simulate_second_read_shares(cohort: Cohort, quantiles: list[float], workload: WorkloadOut) -> list[WhatIfOut]:
    """Simulate second reads of each share of the cases: catch, threshold, reads and hours."""
    return list(_what_if_rows(cohort, quantiles, _cases_per_week(workload), workload.seconds))


def _what_if_rows(
    cohort: Cohort, quantiles: list[float], per_week: float | None, seconds: float | None
) -> Iterator[WhatIfOut]:
    data, rows = cohort.columns, np.flatnonzero(_read_twice(cohort))
    weight = None if cohort.weight2 is None else cohort.weight2[rows]
    counts = data.label_counts[rows]
    if rows.size < 2 or not observed_disagreement(counts).any():
        return
    recalls = triage_recall(
        counts, data.disagreement_probs[rows], SHARES, sample_weight=weight, cluster=data.cluster[rows]
    )
    for share, recall in zip(SHARES, recalls, strict=True):
        reads = None if per_week is None else share * per_week
        yield WhatIfOut(
            share=share,
            caught=MetricOut.of(recall),
            threshold=quantiles[round(100 * (1 - share))],
            reads_per_week=reads,
            hours_per_week=None if reads is None or seconds is None else reads * seconds / 3600,
        )


def _cases_per_week(workload: WorkloadOut) -> float | None:
    """Cases of a whole week on average, since the first in which any came; in the first week those so far, if any."""
    *whole, this_week = [week.received for week in workload.weeks]
    begun = next((place for place, count in enumerate(whole) if count), None)
    if begun is None:
        return float(this_week) if this_week else None
    return sum(whole[begun:]) / len(whole[begun:])


def disagreement_quantiles(cohort: Cohort) -> list[float]:
    """Disagreement probabilities of all cases at 0, 1, … 100 %; none without a case."""
    dpes = cohort.columns.disagreement_probs
    return np.quantile(dpes, np.linspace(0, 1, 101)).tolist() if dpes.size else []
