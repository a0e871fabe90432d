"""Evaluation of label and prediction tables, matched by case and by class name, with reliability diagrams."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ml.dataframes import column_names, has_cases
from ml.metrics import Evaluation
from ml.metrics import evaluate as evaluate_arrays
from ml.metrics.cases import SampleWeight, weights_by_order
from ml.metrics.homogeneity_test import reader_warnings
from ml.metrics.ordinal import ordinal_metrics
from ml.metrics.sums import Debias
from ml.metrics.triage_curves import uncertainty_scores
from ml.tables.files import case_column, check_predictions
from ml.tables.matching import Cases, EvaluationOptions, Level, Missing, match_one, match_tables
from ml.tables.reading import TableError, TableSource, open_table


def evaluate(
    labels: TableSource | npt.ArrayLike,
    predictions: TableSource | npt.ArrayLike,
    disagreement_probs: npt.ArrayLike | None = None,
    *,
    n_bins: int = 15,
    debias: Debias = "pair",
    sample_weight: SampleWeight = None,
    cluster: str | npt.ArrayLike | None = None,
    classes: list[str] | None = None,
    missing: Missing = "error",
    binary: bool = False,
    level: Level = "nominal",
    renormalise: bool = False,
) -> Evaluation:
    """Compute every metric with its interval, from tables or arrays.

    Args:
        labels: LABELS, long or wide (a file, or a table of pandas, polars, Arrow or a mapping of columns), or label
            histograms (N, K).
        predictions: PREDICTIONS, of the same kinds, or class probabilities (N, K).
        disagreement_probs: (N,) DPEs with arrays; a table has them in a column.
        n_bins: equal-width bins of [0, 1].
        debias: form of CL, ``pair``, ``paper`` or ``none``.
        sample_weight: inverse probabilities of having labels: a column of LABELS, or (N,) with arrays; or a pair of
            these, of having one label and of having two.
        cluster: patient of each case: a column of LABELS, or (N,) with arrays.
        classes: names of the K classes of arrays.
        missing: ``drop`` leaves out labels of tables without a prediction, with a warning that names them.
        binary: tables with one column of probabilities, whose complement is the other class.
        level: ``ordinal`` where the classes are grades, in the order of the columns.
        renormalise: divide rows of tables whose sum rounding keeps from 1 (by at most 0.001) by that sum, and warn.

    Returns:
        Counts, metrics, reliability tables and warnings; its ``to_dict()`` is the document of ``evaluate --json``.

    Raises:
        ValueError: tables or arrays that cannot be used; of a table the message names row and column.

    >>> labels = {"case_id": ["a", "a", "b"], "annotator": ["r", "s", "r"], "label": ["yes", "no", "yes"]}
    >>> predictions = {"case_id": ["b", "a"], "prob:yes": [0.75, 0.5], "prob:no": [0.25, 0.5]}
    >>> evaluate(labels, predictions).metrics["L"].value
    0.3125
    >>> evaluate([[1, 1], [1, 0]], [[0.5, 0.5], [0.75, 0.25]]).metrics["L"].value
    0.3125
    """
    named = [has_cases(source) for source in (labels, predictions)]
    if named[0] != named[1]:
        lacking, table = ("predictions have", predictions) if named[0] else ("labels have", labels)
        present = ", ".join(column_names(table) or ["none: they are arrays"])
        raise ValueError(
            f"{lacking} no column 'case_id' to match cases by (there are {present}): give it to both tables, or to "
            "neither"
        )
    weights = weights_by_order(sample_weight)
    sources: tuple[Any, Any] = labels, predictions
    if named[0]:
        if disagreement_probs is not None or classes is not None:
            raise ValueError("tables name their classes and disagreement_prob in columns: leave both arguments out")
        given: Any = (*weights, cluster, missing, binary, level, renormalise)
        options = EvaluationOptions(n_bins, debias, *given)
        hint = "evaluate_findings evaluates each on its own"
        return evaluate_cases(match_one(*sources, options, hint=hint), options)
    if binary or renormalise or missing != "error":
        raise ValueError(
            "binary, renormalise and missing are about tables with case_id: of arrays give both classes of every case, "
            "in rows that sum to 1"
        )
    EvaluationOptions(n_bins=n_bins, level=level)  # refuses what is no choice
    for name, values in (("sample_weight", weights[0]), ("sample_weight[1]", weights[1]), ("cluster", cluster)):
        if isinstance(values, str):
            raise ValueError(f"{name} names a column of LABELS: with arrays give a value per case (N,), got {values!r}")
    if classes is not None and len(set(classes)) < len(classes):
        raise ValueError(f"classes must be different names, got {', '.join(map(str, classes))}")
    columns: Any = {"sample_weight": sample_weight, "cluster": cluster}
    evaluation = evaluate_arrays(*sources, disagreement_probs, n_bins=n_bins, debias=debias, classes=classes, **columns)
    if level == "nominal":
        return evaluation
    return replace(evaluation, metrics=evaluation.metrics | ordinal_metrics(*sources, **columns))


def evaluate_findings(
    labels: TableSource, predictions: TableSource, options: EvaluationOptions | None = None
) -> dict[str, Evaluation]:
    """Evaluate each finding of a pair of tables, by ``finding``.

    Args:
        labels: LABELS with a column ``finding``; a file or a table in memory.
        predictions: PREDICTIONS with one.
        options: of the evaluation.

    Returns:
        Evaluations by finding, in the order of PREDICTIONS.

    Raises:
        TableError: a table cannot be used; the message names file, row and column.

    >>> labels = {"case_id": ["a", "b", "a"], "finding": ["mass", "mass", "fluid"], "annotator": ["r"] * 3}
    >>> predictions = {"case_id": ["a", "b", "a"], "finding": ["mass", "mass", "fluid"], "prob:present": [0.5, 0.5, 1]}
    >>> labels["label"] = ["present", "absent", "present"]
    >>> found = evaluate_findings(labels, predictions, EvaluationOptions(binary=True))
    >>> {name: evaluation.metrics["L"].value for name, evaluation in found.items()}
    {'mass': 0.5, 'fluid': 0.0}
    """
    options = options or EvaluationOptions()
    matched = match_tables(labels, predictions, options)
    if any(cases.finding is None for cases in matched):
        raise TableError("the tables have no column 'finding'")
    return {str(cases.finding): evaluate_cases(cases, options) for cases in matched}


def evaluate_cases(cases: Cases, options: EvaluationOptions) -> Evaluation:
    """Evaluate matched tables."""
    columns: Any = {"sample_weight": (cases.weights, cases.weights2), "cluster": cases.cluster}
    columns |= {"first_label_counts": cases.first_counts, "readings": cases.readings}
    given = cases.predictions
    evaluation = evaluate_arrays(
        cases.counts,
        given.class_probs,
        given.disagreement_probs,
        n_bins=options.n_bins,
        debias=options.debias,
        classes=given.classes,
        **columns,
    )
    metrics = evaluation.metrics
    if options.level == "ordinal":
        metrics = metrics | ordinal_metrics(cases.counts, given.class_probs, **columns)
    warnings = [*cases.warnings(), *evaluation.warnings]
    labels = cases.annotations
    if labels is not None:
        groups = None
        if options.cluster is not None:
            names = case_column(cases.labels, options.cluster, cases.place).astype(str)
            groups = np.unique(names, return_inverse=True)[1][labels.case]
        warnings += reader_warnings(labels.case, labels.annotator, labels.label, groups)
    return replace(evaluation, metrics=metrics, warnings=tuple(warnings))


def write_diagrams(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Draw reliability diagrams as SVG, and return their paths."""
    from ml.charts.reliability import reliability_diagram, write_chart

    charts = {
        f"reliability_{row.name}": reliability_diagram(row.bins, title=row.name, what="probability")
        for row in evaluation.classes
    }
    charts["reliability_all_classes"] = reliability_diagram(
        evaluation.class_bins, title="All classes", what="probability"
    )
    charts["reliability_disagreement"] = reliability_diagram(
        evaluation.disagreement_bins, title="Disagreement of two annotators", what="disagreement"
    )
    paths = []
    for name, chart in charts.items():
        paths.append(folder / f"{safe_name(name)}.svg")
        write_chart(chart, paths[-1])
    return paths


def safe_name(name: str) -> str:
    """A name for a file, of letters, digits, - and _.

    >>> safe_name("lung/left")
    'lung_left'
    """
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name)


#: Disagreement of two annotators (DPE), or a common rule.
Score = Literal["disagreement", "max_probability", "entropy"]


def rank_second_reads(
    predictions: TableSource, *, score: Score = "disagreement", binary: bool = False, renormalise: bool = False
) -> pa.Table:
    """Rank the cases of a PREDICTIONS table by how much they need a second read.

    Args:
        predictions: PREDICTIONS; a file or a table in memory.
        score: what a case is ranked by, the largest first: the probability that two annotators disagree
            (``disagreement``), 1 minus the largest class probability, or the entropy of the class probabilities.
        binary: one column of probabilities, whose complement is the other class.
        renormalise: divide rows whose sum rounding keeps from 1 (by at most 0.001) by that sum.

    Returns:
        A row per case with ``case_id``, ``score`` and ``rank`` (from 1); cases of one score keep their order.

    Raises:
        TableError: the table cannot be used; the message names file, row and column.
        ValueError: an unknown score.

    >>> predictions = {"case_id": ["a", "b", "c"], "prob:x": [0.9, 0.5, 1.0], "prob:y": [0.1, 0.5, 0.0]}
    >>> rank_second_reads(predictions)["case_id"].to_pylist()
    ['b', 'a', 'c']
    """
    table, place = open_table(predictions, "PREDICTIONS")
    if "finding" in table.column_names:
        raise TableError(f"{place}: the table has a column 'finding': rank one finding at a time")
    complement = "the other class" if binary else None
    read = check_predictions(table, place, complement=complement, renormalise=renormalise)
    common = {name.replace(" ", "_"): values for name, values in uncertainty_scores(read.class_probs).items()}
    scores = {"disagreement": read.disagreement_probs} | common
    if score not in scores:
        raise ValueError(f"unknown score {score!r}; there are {', '.join(scores)}")
    order = np.argsort(-scores[score], kind="stable")
    ranked = {"case_id": [read.case_ids[row] for row in order], "score": scores[score][order]}
    return pa.table(ranked | {"rank": np.arange(1, len(order) + 1)})
