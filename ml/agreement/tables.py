"""Agreement between annotators of a LABELS table: overall, by pair, annotator, class and site."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.agreement.coefficients import cohen_kappa, krippendorff_alpha, rater_marginal_test
from ml.agreement.dawid_skene import dawid_skene
from ml.arrays import IntArray
from ml.metrics.jackknife import Estimate, mean_replicates, select, to_estimate
from ml.tables.files import Labels, TableError, case_column, read_labels

PERMUTATIONS = 999


def label_matrix(labels: Labels) -> tuple[IntArray, list[str]]:
    """Labels (N, A) with −1 where there is none, and the A annotators' names in order."""
    names = sorted(set(labels.annotators))
    number = {name: column for column, name in enumerate(names)}
    matrix = np.full((len(labels.case_ids), len(names)), -1, dtype=np.int64)
    columns = np.array([number[name] for name in labels.annotators], dtype=np.intp)
    matrix[labels.rows, columns] = labels.numbers
    return matrix, names


def agreement_with_others(matrix: IntArray, column: int, cluster: npt.NDArray[Any] | None = None) -> Estimate:
    """Mean share of a case's other labels that equal this annotator's, over the cases it labelled with others."""
    own, others = matrix[:, column], np.delete(matrix, column, axis=1)
    present = (others >= 0).sum(axis=1)
    sample = select(np.asarray((own >= 0) & (present > 0)), None, cluster)
    equal = (others == own[:, None]).sum(axis=1)
    return to_estimate(mean_replicates(equal[sample.rows] / present[sample.rows], sample), sample)


def agreement_of_table(path: Path, *, cluster: str | None = None, seed: int = 0) -> dict[str, Any]:
    """Every coefficient of agreement of a long LABELS table.

    Args:
        path: LABELS with one row a label; a column ``site`` is reported by value.
        cluster: column that names the patient.
        seed: of the permutation test.

    Returns:
        The JSON document of ``secondread agreement --json``.

    Raises:
        TableError: a wide table, which tells no annotators, or one that cannot be read.
    """
    return agreement_document(read_labels(path), path, cluster=cluster, seed=seed)


def agreement_document(labels: Labels, path: Path, *, cluster: str | None = None, seed: int = 0) -> dict[str, Any]:
    """Every coefficient of agreement of labels that were read.

    Args:
        labels: long; a column ``site`` is reported by value.
        path: where they come from, for messages.
        cluster: column that names the patient.
        seed: of the permutation test.

    Raises:
        TableError: a wide table, which tells no annotators.
    """
    if not labels.annotators:
        raise TableError(f"{path}: agreement needs one row a label with the annotator; this table has counts only")
    matrix, names = label_matrix(labels)
    groups = None if cluster is None else case_column(labels, cluster, path)
    model = dawid_skene(matrix, len(labels.classes))
    test = rater_marginal_test(matrix, len(labels.classes), permutations=PERMUTATIONS, seed=seed)
    return {
        "n_cases": len(labels.case_ids),
        "n_labels": int(labels.counts.sum()),
        "n_annotators": len(names),
        "krippendorff_alpha": krippendorff_alpha(labels.counts, cluster=groups).to_dict(),
        "pairs": _pairs(matrix, names, len(labels.classes), groups),
        "annotators": [
            {
                "annotator": name,
                "n_labels": int((matrix[:, column] >= 0).sum()),
                "agreement_with_others": agreement_with_others(matrix, column, groups).to_dict(),
                "confusion": model.confusion[column].tolist(),
            }
            for column, name in enumerate(names)
        ],
        "classes": _classes(labels, groups),
        "sites": _sites(labels, path, groups),
        "rater_marginals": {"chi2": test.statistic, "p_value": test.p_value, "n": test.n},
        "warnings": _warnings(test.p_value, test.n),
    }


def _pairs(matrix: IntArray, names: list[str], n_classes: int, groups: npt.NDArray[Any] | None) -> list[dict[str, Any]]:
    rows = []
    for a, b in combinations(range(len(names)), 2):
        if ((matrix[:, a] >= 0) & (matrix[:, b] >= 0)).sum() >= 2:
            kappa = cohen_kappa(matrix[:, a], matrix[:, b], n_classes, cluster=groups)
            rows.append({"annotators": [names[a], names[b]], "cohen_kappa": kappa.to_dict()})
    return rows


def _classes(labels: Labels, groups: npt.NDArray[Any] | None) -> list[dict[str, Any]]:
    """Alpha of each class against all the others."""
    totals = labels.counts.sum(axis=1)
    rows = []
    for k, name in enumerate(labels.classes):
        own = labels.counts[:, k]
        alpha = krippendorff_alpha(np.stack([own, totals - own], axis=1), cluster=groups)
        rows.append({"class": name, "n_labels": int(own.sum()), "krippendorff_alpha": alpha.to_dict()})
    return rows


def _sites(labels: Labels, path: Path, groups: npt.NDArray[Any] | None) -> list[dict[str, Any]]:
    if "site" not in labels.columns:
        return []
    sites = case_column(labels, "site", path)
    rows = []
    for site in sorted(set(sites.tolist())):
        inside = sites == site
        alpha = krippendorff_alpha(labels.counts[inside], cluster=None if groups is None else groups[inside])
        rows.append({"site": site, "n_cases": int(inside.sum()), "krippendorff_alpha": alpha.to_dict()})
    return rows


def _warnings(p_value: float, n: int) -> list[str]:
    if n == 0:
        return ["no case has two labels: agreement cannot be measured"]
    if p_value < 0.05:
        return [f"annotators use the classes differently (p = {p_value:.3f}): labels are not exchangeable"]
    return []
