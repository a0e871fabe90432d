"""Evaluation of every finding of two tables: metrics, comparison, cases left out, reliability at both ends."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ml.agreement import krippendorff_alpha
from ml.metrics import Evaluation
from ml.metrics.binned import Binned, ReliabilityBin
from ml.metrics.cases import (
    Sample,
    check_inputs,
    check_weights,
    class_frequencies,
    observed_disagreement,
    select_sample,
)
from ml.tables.comparison import Comparison, compare_matched
from ml.tables.evaluate import Cases, EvaluationOptions, evaluate_cases, match_tables
from ml.tables.reading import TableSource
from ml.util.arrays import FloatArray

#: Edges of the fine bins of both tails. Equal-width bins put all below .07 into
#: one, and second reads are decided inside of it.
EDGES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.9, 0.95, 0.98, 0.99, 1.0])
_MIDDLE = 4


@dataclass(frozen=True)
class FindingAudit:
    """Evaluation of one finding of the tables."""

    cases: Cases
    options: EvaluationOptions
    evaluation: Evaluation
    comparison: Comparison | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``secondread evaluate --json``."""
        document: dict[str, Any] = {**self.evaluation.to_dict()}
        if self.options.missing == "drop":
            document["left_out"] = list(self.cases.left_out)
        if self.options.level == "ordinal":
            document["level"] = self.options.level
        if self.comparison is not None:
            document["against"] = self.comparison.to_dict()
        return document


def audit_findings(
    labels: TableSource, predictions: TableSource, options: EvaluationOptions, against: TableSource | None = None
) -> list[FindingAudit]:
    """Evaluate PREDICTIONS against LABELS, by finding if both name one."""
    answers = []
    for cases in match_tables(labels, predictions, options, against):
        evaluation = evaluate_cases(cases, options)
        if options.level == "ordinal":
            alpha = krippendorff_alpha(cases.counts, level="ordinal", cluster=cases.cluster)
            evaluation = replace(evaluation, metrics=evaluation.metrics | {"krippendorff_alpha": alpha})
        comparison = None if cases.rival is None else compare_matched(cases, options)
        answers.append(FindingAudit(cases, options, evaluation, comparison))
    return answers


@dataclass(frozen=True)
class TailBins:
    """Bins of the smallest and largest probabilities, none empty."""

    classes: tuple[ReliabilityBin, ...]
    disagreement: tuple[ReliabilityBin, ...]


def compute_tail_bins(cases: Cases) -> TailBins:
    """Bin the probabilities of matched tables finely at both ends."""
    counts = cases.counts if cases.first_counts is None else cases.first_counts
    data = check_inputs(counts, cases.predictions.class_probs, cases.weights, cases.cluster)
    first, totals = data.sample(1), cases.counts.sum(axis=1)
    weights2 = check_weights(cases.weights if cases.weights2 is None else cases.weights2, len(totals))
    second = select_sample(totals >= 2, weights2, data.cluster)
    observed = observed_disagreement(cases.counts[second.rows])[:, None]
    predicted = cases.predictions.disagreement_probs[second.rows][:, None]
    return TailBins(
        _bins_in_tails(class_frequencies(data.counts[first.rows]), data.probs[first.rows], first),
        _bins_in_tails(observed, predicted, second),
    )


def _bins_in_tails(freqs: FloatArray, probs: FloatArray, sample: Sample) -> tuple[ReliabilityBin, ...]:
    bins = Binned.of(freqs, probs, sample, 1, EDGES, "none").diagram()
    return tuple(row for number, row in enumerate(bins) if number != _MIDDLE and row.n > 0)
