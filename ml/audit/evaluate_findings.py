"""Evaluation of every finding of two tables: metrics, comparison, cases left out."""

from dataclasses import dataclass, replace
from typing import Any

from ml.agreement import krippendorff_alpha
from ml.metrics import Evaluation
from ml.tables.comparison import Comparison, compare_matched
from ml.tables.evaluate import evaluate_cases
from ml.tables.matching import Cases, EvaluationOptions, match_tables
from ml.tables.reading import TableSource


@dataclass(frozen=True)
class FindingAudit:
    """Evaluation of one finding of the tables.

    Attributes:
        cases: the matched tables.
        options: what was asked.
        evaluation: every metric; with ordinal classes those of order and Krippendorff's alpha too.
        comparison: with other predictions, where there are any.
    """

    cases: Cases
    options: EvaluationOptions
    evaluation: Evaluation
    comparison: Comparison | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``secondread evaluate --json``: the evaluation, and what options add to it."""
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
    """Evaluate PREDICTIONS against LABELS; one answer, or one per finding where both tables have such a column.

    Args:
        labels: LABELS, long or wide; a file or a table in memory.
        predictions: PREDICTIONS, the same.
        options: what is asked.
        against: other PREDICTIONS of the same cases, to compare with.

    Raises:
        TableError: a table cannot be used; the message names file, row and column.
    """
    return [_audit_finding(cases, options) for cases in match_tables(labels, predictions, options, against)]


def _audit_finding(cases: Cases, options: EvaluationOptions) -> FindingAudit:
    evaluation = evaluate_cases(cases, options)
    if options.level == "ordinal":
        alpha = krippendorff_alpha(cases.counts, level="ordinal", cluster=cases.cluster)
        evaluation = replace(evaluation, metrics=evaluation.metrics | {"krippendorff_alpha": alpha})
    return FindingAudit(cases, options, evaluation, None if cases.rival is None else compare_matched(cases, options))
