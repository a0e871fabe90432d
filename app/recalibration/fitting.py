"""The fits of a recalibration: temperature and head anew, or the champion's calibration adapted to few double reads."""

from dataclasses import dataclass

import numpy as np

from app.recalibration.change_plan import ChangePlan
from app.recalibration.outputs import StoredOutputs
from app.recalibration.refusal import RecalibrationRefusedError, too_few_double_reads, too_few_labels
from app.releases.schemas import RecalibrationMethod
from ml.arrays import IntArray
from ml.calibration.calibrators import Calibration, FitDocument, calibrate
from ml.calibration.new_crowd import FEWEST_PAIRS, relearn
from ml.release.artifact import Release


@dataclass(frozen=True)
class Labelled:
    """What a fit reads of the calibration partition.

    Attributes:
        outputs: of the cases with labels.
        counts: (N, K) blind labels of both rounds.
        planned: (N, K) those of them that were planned without knowing another label.
    """

    outputs: StoredOutputs
    counts: IntArray
    planned: IntArray

    @property
    def n_double_reads(self) -> int:
        """Cases with two planned labels or more."""
        return int((self.planned.sum(axis=1) >= 2).sum())


@dataclass(frozen=True)
class Fitted:
    """A calibration and how it came about."""

    calibration: Calibration
    report: FitDocument


def require_labels(labelled: Labelled, parent: Release, method: RecalibrationMethod, plan: ChangePlan) -> None:
    """Refuse a fit that the change plan does not allow, or for which there is too little.

    Raises:
        RecalibrationRefusedError: too few labelled cases, double reads or patients, or nothing that could be adapted.
    """
    n_patients = len(set(labelled.outputs.groups))
    if method == "adapt":
        if parent.calibration.concentration is None:
            raise RecalibrationRefusedError(
                "the champion has no concentration head that could be adapted; recalibrate with the method "
                f"temperature, which fits one, once {plan.min_labelled_cases} cases have labels."
            )
        n_pairs, fewest = labelled.n_double_reads, max(plan.min_double_reads, FEWEST_PAIRS)
        if n_pairs < fewest or n_patients < plan.min_patients:
            refusal = too_few_double_reads(plan, fewest, n_pairs, n_patients)
            raise refusal
        return
    n_cases = len(labelled.counts)
    if n_cases < plan.min_labelled_cases or n_patients < plan.min_patients:
        refusal = too_few_labels(plan, n_cases, n_patients)
        raise refusal


def fitted(labelled: Labelled, parent: Release, method: RecalibrationMethod) -> Fitted:
    """Fit the champion's successor.

    Args:
        labelled: of the calibration partition.
        parent: champion.
        method: ``adapt``, or how class probabilities are calibrated.

    Raises:
        FitError: too few labels, or no convergence.
    """
    logits, features = labelled.outputs.by_members(parent)
    groups = labelled.outputs.groups
    if method == "adapt":
        found = relearn(
            parent.calibration, logits, features, labelled.counts, groups, pair_label_counts=labelled.planned
        )
        return Fitted(found.calibration, {"n_fit": len(labelled.counts), "n_cv": 0, "adaptation": found.to_dict()})
    report = calibrate(logits, features, labelled.counts, groups, method=method, scaling_label_counts=labelled.planned)
    return Fitted(report.calibration, report.report)


def card_report(parent: Release, made: Fitted) -> FitDocument:
    """What the card says of the fit: of an adapted calibration how it was fitted, and what was changed afterwards."""
    adaptation = made.report.get("adaptation")
    if adaptation is None:
        return made.report
    return {**parent.card["calibration"], "adaptation": adaptation}


def labelled_cases(outputs: StoredOutputs, counts: IntArray, planned: IntArray) -> Labelled:
    """The cases that have labels.

    Args:
        outputs: of N cases.
        counts: (N, K) their labels.
        planned: (N, K) those of them that were planned.
    """
    rows = np.flatnonzero(counts.sum(axis=1))
    return Labelled(outputs.take(rows), counts[rows], planned[rows])
