"""Cohort of an evaluation: partition, exclusions, clusters and weights."""

import uuid
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

import numpy as np
import numpy.typing as npt

from app.audit.chain.keys import DerivedKey
from app.http.models import MetricOut
from app.metrics.dataset import EvaluationDataset, stable_name_hash
from app.metrics.schemas import (
    CannotTellOut,
    CapacityOut,
    CellOut,
    Partition,
    SelectionOut,
    TrainedOnOut,
    Weighting,
    WeightsOut,
)
from app.releases.service import check_training_disclosure
from ml.messages import Message
from ml.metrics import Evaluation, Readings, evaluate
from ml.metrics.cases import select_sample
from ml.metrics.homogeneity_test import reader_warnings
from ml.metrics.jackknife import mean_replicates, to_estimate
from ml.metrics.selection import QUINTILES, SelectionWeights, quintiles, selection_weights
from ml.metrics.triage_curves import triage_recall
from ml.release.card import CardContents
from ml.util.arrays import FloatArray, IntArray

# of 256: a fifth
_KEPT = 51


def cluster_name(case_id: uuid.UUID, patient: str | None, first_id: uuid.UUID | None, first_patient: str | None) -> str:
    """Name of a case's cluster: its patient, else that of the first case with the same pixels, else that case."""
    named = first_patient if patient is None else patient
    return f"case:{first_id or case_id}" if named is None else f"patient:{named}"


def is_kept_for_sets(key: DerivedKey, cluster: str) -> bool:
    """Whether a cluster calibrates answer sets and so no fit: a fifth of the calibration partition."""
    return key.digest(cluster.encode())[0] < _KEPT


#: Shares of cases sent, at which the triage curve is reported.
CAPACITIES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# cases read twice by which annotators who differ are told from others beyond doubt
_ENOUGH = 20_000
_DAY = 86_400.0


@dataclass(frozen=True)
class CohortQuery:
    """Query of an evaluation: which cases, and how they are weighted."""

    # evaluation, calibration or all
    partition: Partition = "evaluation"
    # ``ipw``: cases that are due or whose first planned read has ended, weighted by inverse selection probabilities;
    # ``none``: all cases, unweighted
    weighting: Weighting = "ipw"
    # cases stored at this time or later
    since: datetime | None = None
    # cases stored before this time
    until: datetime | None = None
    # of one site only
    site: str | None = None


@dataclass(frozen=True)
class Cohort:
    """Cases to evaluate, with their weights."""

    columns: EvaluationDataset
    # (N,) of the DPE, 1 to 5
    quintile: IntArray
    # weights for estimates that need one label; None unweighted
    first: SelectionWeights | None
    # weights for those that need two
    second: SelectionWeights | None
    # cases left out because their first planned read is still open, and not due
    n_open: int
    # for which moment it was made, seconds since 1970
    at: float
    # share of the cases with labels of an outside system, whose selection is unknown
    outside_share: float
    # nobody but outside systems labelled, so that nothing can be weighted
    all_outside: bool = False

    @property
    def weight(self) -> FloatArray | None:
        """Order-1 weights (N,), None unweighted."""
        return None if self.first is None else self.first.weight

    @property
    def weight2(self) -> FloatArray | None:
        """Order-2 weights (N,), None unweighted."""
        return None if self.second is None else self.second.weight

    @cached_property
    def first_counts(self) -> IntArray | None:
        """Labels (N, K) that estimates of order 1 use: the answers to the first planned reads; None unweighted: all."""
        if self.weight is None:
            return None
        counts = np.zeros_like(self.columns.label_counts)
        used = np.flatnonzero(self.weight > 0)
        counts[used, self.columns.first_class[used]] = 1
        return counts

    def counted(self) -> IntArray:
        """Label counts (N, K): all labels of cases that estimates of order 2 use, of others the first one's, if any."""
        first, weight2 = self.first_counts, self.weight2
        if first is None or weight2 is None:
            return self.columns.label_counts
        return np.where((weight2 > 0)[:, None], self.columns.label_counts, first)

    def readings(self) -> Readings:
        """Annotator and class of each of these labels, for up to four labels of a case."""
        data, weight, weight2 = self.columns, self.weight, self.weight2
        if weight is None or weight2 is None:
            case, place = np.nonzero(data.said >= 0)
            return Readings(case, data.annotators[case, place], data.said[case, place])
        case, place = np.nonzero((data.said >= 0) & (weight2 > 0)[:, None])
        named = data.annotators[case, place]
        first = (named == data.first_annotator[case]) & (weight[case] > 0)
        alone = weight > 0
        alone[case[first]] = False
        others = np.flatnonzero(alone)
        return Readings(
            np.concatenate([case, others]),
            np.concatenate([named, data.first_annotator[others]]),
            np.concatenate([data.said[case, place], data.first_class[others]]),
            np.concatenate([first, np.ones(others.size, dtype=bool)]),
        )

    def take(self, rows: npt.NDArray[np.bool_]) -> "Cohort":
        """Some of the cases, with the weights that they have among all."""
        first, second = (
            None if weights is None else replace(weights, weight=weights.weight[rows])
            for weights in (self.first, self.second)
        )
        columns = self.columns.take(np.flatnonzero(rows))
        return replace(self, columns=columns, quintile=self.quintile[rows], first=first, second=second)


def query_case_mask(columns: EvaluationDataset, question: CohortQuery) -> npt.NDArray[np.bool_]:
    """Mask (N,) of the cases that match a query."""
    chosen = np.ones(len(columns), dtype=bool)
    if question.partition != "all":
        chosen &= columns.evaluation == (question.partition == "evaluation")
    if question.since is not None:
        chosen &= columns.created_at >= question.since.timestamp()
    if question.until is not None:
        chosen &= columns.created_at < question.until.timestamp()
    if question.site is not None:
        chosen &= columns.site == stable_name_hash(question.site)
    return np.asarray(chosen)


def build_cohort(columns: EvaluationDataset, question: CohortQuery, at: float) -> Cohort:
    """Select and weight the cases of a query so that open reads do not bias any estimate."""
    # A case belongs to the cohort when its first planned read has ended or is due, second one or not. Order 1
    # uses the answer to that first read. Order 2 uses the cases planned twice of which both reads are answered;
    # those of them that wait are stood in for by the answered ones of their cell, and what is due and not answered is
    # non-response. Labels of an outside system answer to an unknown selection: weighted estimates leave them out.
    chosen = query_case_mask(columns, question)
    all_outside = bool(columns.outside[chosen].any()) and bool((columns.first_class[chosen] < 0).all())
    if question.weighting == "none" or all_outside:
        everybody = columns.take(np.flatnonzero(chosen))
        quintile, outside = quintiles(everybody.disagreement_probs), _share_of_true(everybody.outside)
        return Cohort(everybody, quintile, None, None, 0, at, outside, all_outside and question.weighting != "none")
    begun = (columns.first_open_until <= at) & ~_pending_day_mask(columns, columns.first_open_until, at)
    judged = chosen & begun
    held = _pending_day_mask(columns, columns.open_until, at)[judged]
    cases = columns if judged.all() else columns.take(np.flatnonzero(judged))
    quintile = quintiles(cases.disagreement_probs)
    selected = np.asarray(cases.pi >= 1)
    first_answer = (cases.first_class >= 0).astype(np.int64)
    waiting, ended = (cases.open_until > at) | held, (cases.open_until == -np.inf) & ~held
    both = np.where(ended & ~cases.outside, np.minimum(cases.n_labels, cases.n_planned), 0)
    first = selection_weights(1, cases.n_planned, first_answer, cases.pi, selected, quintile)
    second = selection_weights(2, cases.n_planned, both, cases.pi, selected, quintile, waiting)
    return Cohort(cases, quintile, first, second, int((chosen & ~begun).sum()), at, _share_of_true(cases.outside))


def _pending_day_mask(columns: EvaluationDataset, open_until: FloatArray, at: float) -> npt.NDArray[np.bool_]:
    """Cases (N,) for which annotators were drawn, and of whose day a read is still open and not due."""
    # Whoever is quick answers first: the answered cases of a day that is under way are those of quick annotators. Once
    # all are in, or their time is over, a day's answers are those of whoever was drawn.
    rows = np.flatnonzero(columns.drawn)
    waits = np.zeros(len(columns), dtype=bool)
    if rows.size == 0:
        return waits
    day, place = np.unique(columns.first_due_at[rows] // _DAY, return_inverse=True)
    latest = np.full(day.size, -np.inf)
    np.maximum.at(latest, place, open_until[rows])
    over = (day + 1) * _DAY <= at  # answers to overdue reads that may still be corrected hold nothing up
    waits[rows] = ((latest > at) & ~over)[place]
    return waits


def _share_of_true(flags: npt.NDArray[np.bool_]) -> float:
    return float(flags.mean()) if flags.size else 0.0


def evaluate_cohort(cohort: Cohort, *, n_bins: int = 15, new_readers: bool = True) -> Evaluation:
    """Evaluate a cohort as ``secondread evaluate`` does, clustered by patient."""
    data = cohort.columns
    return evaluate(
        cohort.counted(),
        data.class_probs,
        data.disagreement_probs,
        first_label_counts=cohort.first_counts,
        readings=cohort.readings() if new_readers else None,
        n_bins=n_bins,
        sample_weight=(cohort.weight, cohort.weight2),
        cluster=data.cluster,
        classes=data.classes,
    )


def selection_report(cohort: Cohort) -> SelectionOut:
    """Report selection, response and undiagnosable reads of a cohort."""
    weights = [order for order in (cohort.first, cohort.second) if order is not None]
    return SelectionOut(
        n_closed=len(cohort.columns),
        n_open=cohort.n_open,
        n_waiting=0 if cohort.second is None else sum(cell.waiting for cell in cohort.second.cells),
        outside_share=cohort.outside_share,
        orders=[_weights_out(order) for order in weights],
        cannot_tell=_cannot_tell(cohort),
    )


def _weights_out(weights: SelectionWeights) -> WeightsOut:
    used = weights.weight[weights.weight > 0]
    return WeightsOut(
        order=weights.order,
        non_response=weights.non_response,
        ess=float(used.sum() ** 2 / np.square(used).sum()) if used.size else 0.0,
        largest_weight=float(used.max(initial=0.0)),
        cells=[CellOut(**cell.to_dict()) for cell in weights.cells],
    )


def _cannot_tell(cohort: Cohort) -> list[CannotTellOut]:
    """Planned reads that ended without a diagnosis, by arm and quintile of the DPE."""
    data = cohort.columns
    cell = np.where(data.pi >= 1, 0, QUINTILES) + cohort.quintile - 1
    sums = [np.bincount(cell, counts, 2 * QUINTILES).astype(int) for counts in (data.n_planned, data.cannot_tell)]
    return [
        CannotTellOut(
            arm="triage" if number < QUINTILES else "audit",
            quintile=number % QUINTILES + 1,
            planned=int(planned),
            cannot_tell=int(undecided),
        )
        for number, (planned, undecided) in enumerate(zip(*sums, strict=True))
        if planned
    ]


def cohort_warnings(cohort: Cohort) -> list[str]:
    """Warnings about the selection of the labelled cases."""
    texts = [text for weights in (cohort.first, cohort.second) if weights is not None for text in weights.warnings()]
    outside = Message(
        "{outside_share:.0%} of the cells have labels from an external system", outside_share=cohort.outside_share
    )
    unknown = Message("{outside}; how it selected them is unknown", outside=outside)
    if cohort.all_outside:
        texts.append(Message("{unknown}, and there are no other labels: estimates are not weighted", unknown=unknown))
    elif cohort.outside_share > 0:
        effect = Message("each counts once") if cohort.weight is None else Message("weighted estimates exclude them")
        texts.append(Message("{unknown}, and {effect}", unknown=unknown, effect=effect))
    return texts


def annotator_difference_warnings(cohort: Cohort) -> list[str]:
    """A warning where annotators use the classes differently, from the first two labels of each case read twice."""
    # In the order of the cases, so that it says what ``secondread evaluate`` says of the tables. Of very many cases
    # some are enough.
    data = cohort.columns
    several = np.flatnonzero(_read_twice_mask(data, cohort.weight2))
    several = several[np.lexsort(data.case_id[several].T[::-1])]
    several = several[:: 1 + several.size // _ENOUGH]
    case = np.repeat(np.arange(several.size), 2)
    annotator = np.unique(data.annotators[several, :2].ravel(), return_inverse=True)[1]
    return reader_warnings(case, annotator, data.said[several, :2].ravel(), data.cluster[several][case])


def estimate_posterior_gain(cohort: Cohort) -> MetricOut | None:
    """Posterior gain of one label by all splits; None without a concentration or two labels."""
    data, weight = cohort.columns, cohort.weight2
    sample = select_sample(_read_twice_mask(data, weight) & ~np.isnan(data.posterior_gain), weight, data.cluster)
    if sample.rows.size == 0:
        return None
    return MetricOut.of(to_estimate(mean_replicates(data.posterior_gain[sample.rows], sample), sample))


def _read_twice_mask(data: EvaluationDataset, weight: FloatArray | None) -> npt.NDArray[np.bool_]:
    enough = data.n_labels >= 2
    return np.asarray(enough if weight is None else enough & (weight > 0))


def triage_curve(cohort: Cohort) -> list[CapacityOut]:
    """Share of disagreements caught against share of cases sent for a second read; empty without disagreement."""
    data = cohort.columns
    weight = cohort.weight2
    rows = np.flatnonzero(_read_twice_mask(data, weight))
    if rows.size < 2:
        return []
    try:
        recalls = triage_recall(
            data.label_counts[rows],
            data.disagreement_probs[rows],
            CAPACITIES,
            sample_weight=None if weight is None else weight[rows],
            cluster=data.cluster[rows],
        )
    except ValueError:  # no two labels of a case differ
        return []
    return [
        CapacityOut.model_validate({"capacity": capacity, **estimate.to_dict()})
        for capacity, estimate in zip(CAPACITIES, recalls, strict=True)
    ]


def exclude_training_cases(
    columns: EvaluationDataset, trained_on: npt.NDArray[np.bool_] | None = None
) -> EvaluationDataset:
    """Exclude the cases that the release was trained on."""
    mask = columns.trained_on if trained_on is None else trained_on
    return columns.take(np.flatnonzero(~mask)) if mask.any() else columns


def count_excluded_cases(
    columns: EvaluationDataset, question: CohortQuery, trained_on: npt.NDArray[np.bool_] | None = None
) -> int:
    """Count the cases of a query that ``exclude_training_cases`` removes."""
    mask = columns.trained_on if trained_on is None else trained_on
    return int((query_case_mask(columns, question) & mask).sum()) if mask.any() else 0


def training_exclusion_out(n_left_out: int, key: DerivedKey, *cards: CardContents) -> TrainedOnOut:
    """Report the number of excluded cases and whether the releases disclose their training data."""
    images, patients = zip(*(check_training_disclosure(card, key) for card in cards), strict=True)
    return TrainedOnOut(
        n_left_out=n_left_out,
        images="unknown" if "unknown" in images else "known",
        patients="unknown" if "unknown" in patients else "known",
    )


def excluded_case_warnings(found: TrainedOnOut) -> list[str]:
    """A sentence where cases were left out."""
    if not found.n_left_out:
        return []
    return [
        Message(
            "{n_left_out:,} cells are excluded because the model was trained on them or on their patient",
            n_left_out=found.n_left_out,
        )
    ]
