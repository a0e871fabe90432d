"""Comparison of two predictions of the same cases by the same labels."""

from dataclasses import dataclass, replace
from typing import Any, cast

from ml.metrics import Evaluation, paired_changes
from ml.metrics.cases import weights_by_order
from ml.metrics.definitions import Estimates
from ml.metrics.evaluation import estimates_frame
from ml.metrics.ordinal import ranked_probability_change
from ml.metrics.sums import Debias
from ml.tables.evaluate import Cases, EvaluationOptions, Level, Missing, evaluate_cases, match_one
from ml.tables.reading import TableError, TableSource
from ml.util.number_format import change, finite, probability


@dataclass(frozen=True, repr=False)
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
    changes: Estimates
    left_out: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values: estimates by symbol and by long name."""
        sides = {"first": self.first.metrics, "second": self.second.metrics, "changes": self.changes}
        estimates = {side: rows.to_dict() for side, rows in sides.items()}
        return {"n_cases": self.first.n_cases, "left_out": list(self.left_out)} | estimates

    def summary(self) -> str:
        """Return both values and their change as a text table."""
        lines = [f"compared on {self.first.n_cases:,} cases that both predict; change: second less first"]
        others = any(row.low_new is not None for row in self.changes.values())
        head = f"{'for new annotators':>24}" if others else ""
        lines.append(f"{'metric':<12}{'first':>10}{'second':>10}{'change':>10}{'95 % interval':>24}{head}{'cases':>9}")
        for name, row in self.changes.items():
            values = [side.metrics.get(name, row).value for side in (self.first, self.second)]
            cells = "".join(f"{probability(finite(value), 4):>10}" for value in values)
            also = f"{_between(row.low_new, row.high_new):>24}" if others else ""
            cells += f"{change(finite(row.value), 4):>10}{_between(row.low, row.high):>24}{also}"
            lines.append(f"{name:<12}{cells}{row.n:>9,}")
        if self.left_out:
            lines.append(f"warning: {len(self.left_out):,} labelled cases are not predicted by the second")
        return "\n".join(lines)

    def to_frame(self) -> Any:
        """Return a pandas table of the changes, a row per metric.

        Raises:
            ImportError: pandas is not installed.
        """
        frame = estimates_frame(self.changes).rename(columns={"value": "change"})
        frame["p_of_fall"] = [estimate.p_of_fall for estimate in self.changes.values()]
        for name, side in (("second", self.second), ("first", self.first)):
            frame.insert(0, name, [side.metrics[metric].value for metric in self.changes])
        return frame

    def __repr__(self) -> str:
        """The summary."""
        return self.summary()


def compare(
    first: TableSource,
    second: TableSource,
    labels: TableSource,
    *,
    n_bins: int = 15,
    debias: Debias = "pair",
    sample_weight: str | tuple[str | None, str | None] | None = None,
    cluster: str | None = None,
    missing: Missing = "error",
    binary: bool = False,
    level: Level = "nominal",
    renormalise: bool = False,
) -> Comparison:
    """Compare two PREDICTIONS tables of the same cases against the same LABELS.

    Args:
        first: PREDICTIONS; a file or a table in memory.
        second: other PREDICTIONS of the same cases.
        labels: LABELS, long or wide.
        n_bins: equal-width bins of [0, 1].
        debias: form of CL.
        sample_weight: column of LABELS with inverse probabilities of having a label; or a pair of columns, of having
            one label and of having two.
        cluster: column of LABELS that names the patient.
        missing: ``drop`` leaves out labels without a prediction.
        binary: one column of probabilities, whose complement is the other class.
        level: ``ordinal`` where the classes are grades, in the order of the columns.
        renormalise: divide rows whose sum rounding keeps from 1 (by at most 0.001) by that sum, with a warning.

    Returns:
        Both evaluations and the changes from first to second, with intervals of the paired difference.

    Raises:
        TableError: a table cannot be used; the message names file, row and column.

    Examples:
        >>> from secondread import compare
        >>> labels = {"case_id": ["a", "a", "b", "b"], "annotator": ["r", "s"] * 2, "label": ["x", "y", "x", "x"]}
        >>> old = {"case_id": ["a", "b"], "prob:x": [0.5, 0.5], "prob:y": [0.5, 0.5]}
        >>> new = {"case_id": ["a", "b"], "prob:x": [0.5, 0.9], "prob:y": [0.5, 0.1]}
        >>> round(compare(old, new, labels).changes["L"].value, 2)
        -0.24
    """
    options = EvaluationOptions(
        n_bins, debias, *weights_by_order(sample_weight), cluster, missing, binary, level, renormalise
    )
    cases = match_one(labels, first, options, second, hint="compare one finding at a time")
    return compare_matched(cases, options)


def compare_matched(cases: Cases, options: EvaluationOptions) -> Comparison:
    """Compare matched predictions with their baseline."""
    rival = cases.rival
    if rival is None:
        raise TableError("there are no other predictions to compare with")
    rows = rival.rows
    arrays = {name: getattr(cases, name) for name in ("counts", "first_counts", "weights", "weights2", "cluster")}
    picked = {name: None if array is None else array[rows] for name, array in arrays.items()}
    first = replace(cases, predictions=cases.predictions.take(rows), left_out=(), rival=None, **cast(Any, picked))
    second = replace(first, predictions=rival.predictions, notes=rival.notes)
    pair = [(side.predictions.class_probs, side.predictions.disagreement_probs) for side in (first, second)]
    changes = paired_changes(
        first.counts,
        pair[0],
        pair[1],
        first_label_counts=first.first_counts,
        readings=first.readings,
        n_bins=options.n_bins,
        debias=options.debias,
        sample_weight=(first.weights, first.weights2),
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
    return Comparison(evaluate_cases(first, options), evaluate_cases(second, options), changes, rival.left_out)


def _between(low: float | None, high: float | None) -> str:
    return "–" if finite(low) is None else f"{change(low, 4)} to {change(high, 4)}"
