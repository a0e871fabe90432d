"""Comparison of two predictions of the same cases by the same labels."""

from dataclasses import dataclass, replace
from typing import TypedDict

from ml.metrics import Evaluation, paired_changes
from ml.metrics.jackknife import Estimate, EstimateDocument
from ml.metrics.ordinal import ranked_probability_change
from ml.tables.evaluate import evaluate_cases
from ml.tables.files import Predictions, TableError
from ml.tables.matching import BaselinePredictions, Cases, Options


class ComparisonDocument(TypedDict):
    """A ``Comparison`` as JSON values: estimates by metric."""

    n_cases: int
    left_out: list[str]
    first: dict[str, EstimateDocument]
    second: dict[str, EstimateDocument]
    changes: dict[str, EstimateDocument]


@dataclass(frozen=True)
class Comparison:
    """Two predictions of the same cases.

    Attributes:
        first: evaluation of PREDICTIONS on the cases that both predict.
        second: the same of the others.
        changes: second less first, with intervals of the paired difference; of a loss, negative is better.
        left_out: cases with a label that the second does not predict.
    """

    first: Evaluation
    second: Evaluation
    changes: dict[str, Estimate]
    left_out: tuple[str, ...]

    def to_dict(self) -> ComparisonDocument:
        """Return it as JSON values."""
        return {
            "n_cases": self.first.n_cases,
            "left_out": list(self.left_out),
            "first": {name: estimate.to_dict() for name, estimate in self.first.metrics.items()},
            "second": {name: estimate.to_dict() for name, estimate in self.second.metrics.items()},
            "changes": {name: estimate.to_dict() for name, estimate in self.changes.items()},
        }


def compare(cases: Cases, options: Options) -> Comparison:
    """Compare matched predictions with their baseline.

    Errors of the changes are those of the paired differences, whole patients left out where they are named: both
    predictions are judged by the same labels, so a change is known better than either value.

    Raises:
        TableError: there is no rival.
    """
    if cases.rival is None:
        raise TableError("there are no other predictions to compare with")
    first, second = _cases_in_both(cases, cases.rival)
    pair = [(side.predictions.class_probs, side.predictions.disagreement_probs) for side in (first, second)]
    changes = paired_changes(
        first.counts,
        pair[0],
        pair[1],
        first_label_counts=first.first_counts,
        readings=first.readings(),
        n_bins=options.n_bins,
        weights=first.weights,
        weights2=first.weights2,
        cluster=first.cluster,
    )
    if options.level == "ordinal":
        changes["RPS"] = ranked_probability_change(
            first.counts if first.first_counts is None else first.first_counts,
            pair[0][0],
            pair[1][0],
            sample_weight=first.weights,
            cluster=first.cluster,
        )
    return Comparison(evaluate_cases(first, options), evaluate_cases(second, options), changes, cases.rival.left_out)


def _cases_in_both(cases: Cases, rival: BaselinePredictions) -> tuple[Cases, Cases]:
    """The cases that both predict, with either prediction."""
    rows, given = rival.rows, cases.predictions
    names = [given.case_ids[i] for i in rows.tolist()]
    first = replace(
        cases,
        predictions=Predictions(names, given.classes, given.class_probs[rows], given.disagreement_probs[rows]),
        counts=cases.counts[rows],
        first_counts=None if cases.first_counts is None else cases.first_counts[rows],
        weights=None if cases.weights is None else cases.weights[rows],
        weights2=None if cases.weights2 is None else cases.weights2[rows],
        cluster=None if cases.cluster is None else cases.cluster[rows],
        left_out=(),
    )
    theirs = Predictions(names, given.classes, rival.class_probs, rival.disagreement_probs)
    return first, replace(first, predictions=theirs)
