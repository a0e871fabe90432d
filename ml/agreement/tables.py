"""Agreement between the annotators of a LABELS table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.sparse import triu

from ml.agreement.coefficients import Level, kappa_of, krippendorff_alpha, number_labels
from ml.agreement.latent_class import DawidSkene, fit_long
from ml.agreement.report import AgreementReport, AnnotatorAgreement, ClassAgreement, PairAgreement, SiteAgreement
from ml.annotations import Annotations
from ml.messages import Message, messages
from ml.metrics.cases import Sample, select_sample
from ml.metrics.homogeneity_test import differ, marginal_homogeneity_test
from ml.metrics.jackknife import SHARE, Estimate, mean_replicates, to_estimate
from ml.tables.evaluate import by_finding
from ml.tables.files import case_column, check_labels, classes_in, classes_of_labels, read_annotations
from ml.tables.reading import Place, TableError, TableSource, Where, open_table, place_of
from ml.util.arrays import IntArray, require_whole

#: Pairs of annotators with fewer shared cases are left out, and counted.
MIN_SHARED = 5
#: Pairs at most, those with the most shared cases.
MAX_PAIRS = 1_000
#: Confusion matrices are left out beyond this many numbers, or this many labels times classes.
MAX_CONFUSION = 10_000_000
_DIFFER, _TOO_LARGE = messages(
    (
        "annotators use the classes differently (p = {p_value:.3f}): labels are not exchangeable",
        "confusion matrices of {names:,} annotators and {n_classes:,} classes are omitted",
    )
)
#: Of pairs that are left out, by whether it is one.
_FEW = messages(
    {
        True: "{few:,} pair of annotators shares fewer than {min_shared} cells, too few for kappa",
        False: "{few:,} pairs of annotators share fewer than {min_shared} cells, too few for kappa",
    }
)


#: Columns by which a data frame is a LABELS table, and not one with a column per annotator.
_LABEL_COLUMNS = frozenset({"case_id", "annotator", "label"})


@dataclass(frozen=True)
class AgreementOptions:
    """Options of an agreement measurement.

    Attributes:
        cluster: column that names the patient.
        level: ``ordinal`` where the classes are grades.
        classes: the classes in their order, for ordinal labels in a long table.
        min_shared: cases that two annotators must share for a kappa of theirs.
        seed: of the test whether annotators use the classes alike.
    """

    cluster: str | None = None
    level: Level = "nominal"
    classes: Sequence[str] | None = None
    min_shared: int = MIN_SHARED
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no choice.

        Raises:
            ValueError: an unknown level, or no whole number of shared cases.
        """
        if self.level not in {"nominal", "ordinal"}:
            raise ValueError(f"level must be nominal or ordinal, got {self.level!r}")
        require_whole(self.min_shared, "min_shared", 1)


def measure_agreement(
    labels: TableSource,
    *,
    cluster: str | None = None,
    seed: int = 0,
    level: Level = "nominal",
    classes: Sequence[str] | None = None,
    min_shared: int = MIN_SHARED,
) -> AgreementReport:
    """Every coefficient of agreement of a LABELS table.

    Args:
        labels: LABELS, a file or a table in memory; a column ``site`` is reported by value. Of a wide table, which
            names no annotators, there are the coefficients that need no names.
        cluster: column that names the patient.
        seed: of the test whether annotators use the classes alike.
        level: ``ordinal`` where the classes are grades.
        classes: the classes in their order; of a wide table that of its columns, of numbers their own.
        min_shared: cases that two annotators must share for a kappa of theirs.

    Returns:
        The report; ``to_dict()`` is the document of ``secondread agreement --json``.

    Raises:
        TableError: a table that cannot be read, or ordinal classes whose order nothing says.

    Examples:
        >>> from secondread import measure_agreement
        >>> cases, annotators = ["a", "a", "b", "b", "c", "c"], ["r", "s"] * 3
        >>> labels = {"case_id": cases, "annotator": annotators, "label": ["x", "x", "y", "y", "x", "y"]}
        >>> report = measure_agreement(labels)
        >>> round(report.krippendorff_alpha.value, 3), round(report.annotators[0].agreement_with_others.value, 3)
        (0.444, 0.667)
    """
    options = AgreementOptions(cluster, level, classes, min_shared, seed)
    reports = agreement_by_finding(labels, options)
    if None not in reports:
        raise TableError(f"{place_of(labels, 'LABELS')}: the table has several findings: use agreement_by_finding")
    return reports[None]


def dawid_skene(
    labels: TableSource | npt.ArrayLike,
    n_classes: int | None = None,
    *,
    prior_labels: float = 1.0,
    tolerance: float = 1e-10,
) -> DawidSkene:
    """Confusion matrices and class probabilities by Dawid and Skene (1979).

    Args:
        labels: a LABELS table with annotators, as a file or in memory; or (N, A) class numbers or names of classes, an
            array or a data frame with a column per annotator, −1, None, NaN or an empty text if there is none.
        n_classes: K of class numbers; one more than the largest number if omitted.
        prior_labels: pseudo-labels per annotator and true class, spread as all annotators together spread theirs.
        tolerance: relative change of the log-likelihood at which it has settled.

    Returns:
        The fitted model, with the names of classes, annotators and cases that the labels have.

    Raises:
        TableError: a table that cannot be read, or that names no annotators.
        ValueError: no label, a value out of range, or it did not settle.

    Examples:
        >>> from secondread import dawid_skene
        >>> cases, annotators = ["a", "a", "b", "b", "c", "c"], ["r", "s"] * 3
        >>> fitted = dawid_skene({"case_id": cases, "annotator": annotators, "label": ["x", "x", "y", "y", "x", "x"]})
        >>> [fitted.classes[k] for k in fitted.class_probs.argmax(axis=1)]
        ['x', 'y', 'x']
        >>> matrix = [[0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, -1]]
        >>> dawid_skene(matrix).confusion[2].round(2)  # the third annotator calls class 1 by the other name
        array([[0.88, 0.12],
               [0.43, 0.57]])
    """
    if not _is_label_table(labels):
        matrix = np.asarray(labels)
        matrix = matrix if matrix.dtype.kind in "iu" else np.asarray(labels, dtype=object)
        if matrix.ndim != 2:
            raise ValueError(f"labels must be a LABELS table or have shape (N, A), got shape {matrix.shape}")
        numbers, n_classes, names = number_labels(matrix, n_classes, None)
        columns, index = getattr(labels, "columns", None), getattr(labels, "index", None)
        annotations = replace(
            Annotations.of_matrix(numbers, n_classes),
            classes=tuple(names or ()),
            annotators=() if columns is None else tuple(map(str, columns)),
            case_ids=() if columns is None or index is None else tuple(map(str, index)),
        )
        return fit_long(annotations, prior_labels, tolerance)
    if n_classes is not None:
        raise ValueError("n_classes belongs to class numbers, and a LABELS table names its classes")
    return fit_long(read_annotations(labels), prior_labels, tolerance)


def _is_label_table(labels: object) -> TypeGuard[TableSource]:
    if isinstance(labels, str | Path | Mapping | pa.Table):
        return True
    names = [str(name) for name in getattr(labels, "columns", ())]
    return any(name in _LABEL_COLUMNS or name.startswith("count:") for name in names)


def agreement_by_finding(
    labels: TableSource, options: AgreementOptions | None = None
) -> dict[str | None, AgreementReport]:
    """Measure agreement by finding; None without such a column."""
    options = options or AgreementOptions()
    table, place = open_table(labels, "LABELS", in_order=options.level == "ordinal")
    parts: dict[str | None, tuple[pa.Table, Place]] = {None: (table, place)}
    if "finding" in table.column_names:
        parts = {name: part for name, part in by_finding(table, place).items()}
    return {
        name: agreement_of(check_labels(part, where, _classes(part, where, options)), where, options)
        for name, (part, where) in parts.items()
    }


def _classes(table: pa.Table, where: Where, options: AgreementOptions) -> list[str] | None:
    if options.classes is not None:
        return list(options.classes)
    if options.level == "nominal" or classes_in(table, "count:"):
        return None
    class_names = classes_of_labels(table, where)
    try:
        return sorted(class_names, key=float)
    except ValueError as exc:
        raise TableError(
            f"{where}: the order of {', '.join(class_names)} is unknown: give --classes, lowest first, "
            "or labels that are numbers"
        ) from exc


def agreement_of(labelled: Annotations, where: Where, options: AgreementOptions) -> AgreementReport:
    """Measure the agreement of labels in memory."""
    level = options.level
    # a second class makes alpha undefined instead of an error
    counts = np.pad(labelled.counts(), ((0, 0), (0, max(0, 2 - len(labelled.classes)))))
    groups = None
    if options.cluster is not None:
        groups = np.unique(case_column(labelled, options.cluster, where).astype(str), return_inverse=True)[1]
    sites, warnings = [], list[str]()
    if "site" in labelled.columns:
        sites = _sites(counts, case_column(labelled, "site", where, blank=True), groups, level)
    if not (counts.sum(axis=1) >= 2).any():
        warnings.append(Message("no cell has two labels: inter-rater agreement cannot be measured"))
    report = AgreementReport(
        n_cases=len(labelled.case_ids),
        n_labels=int(counts.sum()),
        n_annotators=None,
        level=level,
        krippendorff_alpha=krippendorff_alpha(counts, level=level, cluster=groups),
        pairs=[],
        annotators=[],
        classes=_by_class(labelled, groups),
        sites=sites,
        rater_marginals=None,
        warnings=warnings,
    )
    if not report.n_labels:
        return report
    if labelled.annotators:
        return _with_annotators(report, labelled, groups, options)
    text = Message("annotator names are missing: no results by pair or annotator, and no test of class usage")
    return replace(report, warnings=[*report.warnings, text])


def _with_annotators(
    report: AgreementReport, labelled: Annotations, groups: IntArray | None, options: AgreementOptions
) -> AgreementReport:
    long = labelled.by_case()
    of_label = None if groups is None else groups[long.case]
    test = marginal_homogeneity_test(long.case, long.annotator, long.label, of_label, seed=options.seed)
    pairs, skipped = _pairs(long, groups, options)
    texts = [Message(_DIFFER, p_value=test.p_value)] if differ(test.p_value) else []
    size = max(long.n_annotators * long.n_classes**2, long.case.size * long.n_classes)
    confusion = None if size > MAX_CONFUSION else fit_long(long).confusion
    if confusion is None:
        texts.append(Message(_TOO_LARGE, names=long.n_annotators, n_classes=long.n_classes))
    agreeing = _agreement_with_others(long, long.counts(), groups)
    n_labels = np.bincount(long.annotator, minlength=long.n_annotators).tolist()
    return replace(
        report,
        n_annotators=long.n_annotators,
        pairs=pairs,
        annotators=[
            AnnotatorAgreement(name, n_labels[a], agreeing[a], None if confusion is None else confusion[a])
            for a, name in enumerate(long.annotators)
        ],
        rater_marginals=test,
        warnings=[*report.warnings, *texts, *skipped],
    )


def _sample_of(cases: IntArray, groups: IntArray | None, n_cases: int) -> Sample:
    """Some cases as a sample; the others count as dropped."""
    sample = select_sample(np.ones(cases.size, dtype=bool), None, None if groups is None else groups[cases])
    return replace(sample, dropped=n_cases - cases.size)


def _agreement_with_others(long: Annotations, counts: IntArray, groups: IntArray | None) -> list[Estimate]:
    """Mean share of other labels that equal each annotator's."""
    usable = long.per_case[long.case] >= 2
    case, annotator = long.case[usable], long.annotator[usable]
    shares = (counts[case, long.label[usable]] - 1) / (long.per_case[case] - 1)
    order = np.argsort(annotator, kind="stable")
    ends = np.searchsorted(annotator[order], np.arange(long.n_annotators + 1))
    estimates = []
    for first, last in pairwise(ends.tolist()):
        own = order[first:last]
        sample = _sample_of(case[own], groups, long.n_cases)
        estimates.append(to_estimate(mean_replicates(shares[own][sample.rows], sample), sample, term=SHARE))
    return estimates


def _pairs(
    long: Annotations, groups: IntArray | None, options: AgreementOptions
) -> tuple[list[PairAgreement], list[str]]:
    """Kappa of pairs that share enough cases, and warnings."""
    shared = triu(long.shares, k=1).tocoo()
    enough = shared.data >= options.min_shared
    texts: list[str] = []
    few = int((~enough).sum())
    if few:
        texts.append(Message(_FEW[few == 1], few=few, min_shared=options.min_shared))
    first, second, size = shared.row[enough], shared.col[enough], shared.data[enough]
    if size.size > MAX_PAIRS:
        texts.append(
            Message(
                "showing {max_pairs:,} of {size:,} pairs of annotators, those with the most shared cells",
                size=size.size,
                max_pairs=MAX_PAIRS,
            )
        )
        most = np.argsort(-size, kind="stable")[:MAX_PAIRS]
        first, second = first[most], second[most]
    order, by_annotator = np.lexsort((second, first)), np.argsort(long.annotator, kind="stable")
    cuts = np.searchsorted(long.annotator[by_annotator], np.arange(1, long.n_annotators))
    parts = (np.split(numbers[by_annotator], cuts) for numbers in (long.case, long.label))
    own, pairs = list(zip(*parts, strict=True)), []
    for a, b in zip(first[order].tolist(), second[order].tolist(), strict=True):
        cases, x, y = np.intersect1d(own[a][0], own[b][0], assume_unique=True, return_indices=True)
        sample = _sample_of(cases, groups, long.n_cases)
        labels = own[a][1][x][sample.rows], own[b][1][y][sample.rows]
        pairs.append(
            PairAgreement(
                (long.annotators[a], long.annotators[b]), kappa_of(*labels, long.n_classes, sample, options.level)
            )
        )
    return pairs, texts


def _by_class(labels: Annotations, groups: IntArray | None) -> list[ClassAgreement]:
    counts = labels.counts()
    totals = counts.sum(axis=1)
    rows = []
    for k, name in enumerate(labels.classes):
        own = counts[:, k]
        alpha = krippendorff_alpha(np.stack([own, totals - own], axis=1), cluster=groups)
        rows.append(ClassAgreement(name, int(own.sum()), alpha))
    return rows


def _sites(counts: IntArray, sites: npt.NDArray[Any], groups: IntArray | None, level: Level) -> list[SiteAgreement]:
    rows = []
    for site in sorted(set(sites.tolist())):
        inside = sites == site
        alpha = krippendorff_alpha(counts[inside], level=level, cluster=None if groups is None else groups[inside])
        rows.append(SiteAgreement(site, int(inside.sum()), alpha))
    return rows
