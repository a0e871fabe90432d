"""Agreement between annotators of a LABELS table: overall, by pair, annotator, class and site."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from ml.agreement.coefficients import DependenceTest, cohen_kappa, krippendorff_alpha, rater_marginal_test
from ml.agreement.dawid_skene import dawid_skene
from ml.arrays import FloatArray, IntArray
from ml.metrics.jackknife import Estimate, EstimateDocument, mean_replicates, select, to_estimate
from ml.metrics.reader_test import reader_test
from ml.tables.files import Labels, TableError, TableSource, case_column, place_of, read_labels

PERMUTATIONS = 999


class PairDocument(TypedDict):
    """A ``PairAgreement`` as JSON values."""

    annotators: list[str]
    cohen_kappa: EstimateDocument


class AnnotatorDocument(TypedDict):
    """An ``AnnotatorAgreement`` as JSON values."""

    annotator: str
    n_labels: int
    agreement_with_others: EstimateDocument
    confusion: list[list[float]]


#: A ``ClassAgreement`` as JSON values.
ClassAgreementDocument = TypedDict(
    "ClassAgreementDocument", {"class": str, "n_labels": int, "krippendorff_alpha": EstimateDocument}
)


class SiteDocument(TypedDict):
    """A ``SiteAgreement`` as JSON values."""

    site: Any
    n_cases: int
    krippendorff_alpha: EstimateDocument


class MarginalsDocument(TypedDict):
    """The test of whether annotators use the classes alike, as JSON values."""

    chi2: float
    p_value: float
    n: int


class AgreementDocument(TypedDict):
    """An ``AgreementReport`` as JSON values, the document of ``secondread agreement --json``."""

    n_cases: int
    n_labels: int
    n_annotators: int
    krippendorff_alpha: EstimateDocument
    pairs: list[PairDocument]
    annotators: list[AnnotatorDocument]
    classes: list[ClassAgreementDocument]
    sites: list[SiteDocument]
    rater_marginals: MarginalsDocument
    warnings: list[str]


@dataclass(frozen=True)
class PairAgreement:
    """Cohen's kappa of two annotators."""

    annotators: tuple[str, str]
    cohen_kappa: Estimate

    def to_dict(self) -> PairDocument:
        """Return it as JSON values."""
        return {"annotators": list(self.annotators), "cohen_kappa": self.cohen_kappa.to_dict()}


@dataclass(frozen=True)
class AnnotatorAgreement:
    """An annotator next to the others.

    Attributes:
        annotator: their name.
        n_labels: labels they gave.
        agreement_with_others: mean share of a case's other labels that equal theirs.
        confusion: (K, K) probability of each of their labels (last axis) for each true class (Dawid and Skene).
    """

    annotator: str
    n_labels: int
    agreement_with_others: Estimate
    confusion: FloatArray

    def to_dict(self) -> AnnotatorDocument:
        """Return it as JSON values."""
        return {
            "annotator": self.annotator,
            "n_labels": self.n_labels,
            "agreement_with_others": self.agreement_with_others.to_dict(),
            "confusion": self.confusion.tolist(),
        }


@dataclass(frozen=True)
class ClassAgreement:
    """Krippendorff's alpha of a class against all the others."""

    name: str
    n_labels: int
    krippendorff_alpha: Estimate

    def to_dict(self) -> ClassAgreementDocument:
        """Return it as JSON values."""
        alpha = self.krippendorff_alpha.to_dict()
        return {"class": self.name, "n_labels": self.n_labels, "krippendorff_alpha": alpha}


@dataclass(frozen=True)
class SiteAgreement:
    """Krippendorff's alpha at one site."""

    site: Any
    n_cases: int
    krippendorff_alpha: Estimate

    def to_dict(self) -> SiteDocument:
        """Return it as JSON values."""
        alpha = self.krippendorff_alpha.to_dict()
        return {"site": self.site, "n_cases": self.n_cases, "krippendorff_alpha": alpha}


@dataclass(frozen=True)
class AgreementReport:
    """Every coefficient of agreement of a LABELS table.

    Attributes:
        n_cases: cases with a label.
        n_labels: labels.
        n_annotators: distinct annotators.
        krippendorff_alpha: of all classes together.
        pairs: of annotators who share two cases or more.
        annotators: by name.
        classes: each against all the others.
        sites: by value of the column ``site``; empty without one.
        rater_marginals: test of whether annotators use the classes alike.
        warnings: what to know before quoting a number.

    >>> labels = {"case_id": ["a", "a", "b", "b"], "annotator": ["r", "s"] * 2, "label": ["x", "x", "y", "y"]}
    >>> measure_agreement(labels).to_dict()["krippendorff_alpha"]["value"]
    1.0
    """

    n_cases: int
    n_labels: int
    n_annotators: int
    krippendorff_alpha: Estimate
    pairs: list[PairAgreement]
    annotators: list[AnnotatorAgreement]
    classes: list[ClassAgreement]
    sites: list[SiteAgreement]
    rater_marginals: DependenceTest
    warnings: list[str]

    def to_dict(self) -> AgreementDocument:
        """Return it as JSON values, the document of ``secondread agreement --json``."""
        test = self.rater_marginals
        return {
            "n_cases": self.n_cases,
            "n_labels": self.n_labels,
            "n_annotators": self.n_annotators,
            "krippendorff_alpha": self.krippendorff_alpha.to_dict(),
            "pairs": [pair.to_dict() for pair in self.pairs],
            "annotators": [annotator.to_dict() for annotator in self.annotators],
            "classes": [row.to_dict() for row in self.classes],
            "sites": [site.to_dict() for site in self.sites],
            "rater_marginals": {"chi2": test.statistic, "p_value": test.p_value, "n": test.n},
            "warnings": self.warnings,
        }


def measure_agreement(labels: TableSource, *, cluster: str | None = None, seed: int = 0) -> AgreementReport:
    """Every coefficient of agreement of a long LABELS table.

    Args:
        labels: LABELS with one row per label, a file or a table in memory; a column ``site`` is reported by value.
        cluster: column that names the patient.
        seed: of the permutation test.

    Returns:
        The report; ``to_dict()`` is the document of ``secondread agreement --json``.

    Raises:
        TableError: a wide table, which names no annotators, or one that cannot be read.

    >>> cases, readers = ["a", "a", "b", "b", "c", "c"], ["r", "s"] * 3
    >>> report = measure_agreement({"case_id": cases, "annotator": readers, "label": ["x", "x", "y", "y", "x", "y"]})
    >>> round(report.krippendorff_alpha.value, 3), round(report.annotators[0].agreement_with_others.value, 3)
    (0.444, 0.667)
    """
    place, labelled = place_of(labels, "LABELS"), read_labels(labels)
    if not labelled.annotators:
        raise TableError(f"{place}: agreement needs one row per label with the annotator; this table has counts only")
    matrix, names = label_matrix(labelled)
    # where one class only occurs another one is thought of, so that alpha is undefined and not an error
    counts = np.pad(labelled.counts, ((0, 0), (0, max(0, 2 - len(labelled.classes)))))
    groups = None if cluster is None else case_column(labelled, cluster, place)
    confusion = dawid_skene(matrix, len(labelled.classes)).confusion
    test = _rater_test(matrix, len(labelled.classes), groups, seed)
    return AgreementReport(
        n_cases=len(labelled.case_ids),
        n_labels=int(labelled.counts.sum()),
        n_annotators=len(names),
        krippendorff_alpha=krippendorff_alpha(counts, cluster=groups),
        pairs=_pairs(matrix, names, len(labelled.classes), groups),
        annotators=[
            AnnotatorAgreement(
                name,
                int((matrix[:, column] >= 0).sum()),
                agreement_with_others(matrix, column, groups),
                confusion[column],
            )
            for column, name in enumerate(names)
        ],
        classes=_classes(labelled, groups),
        sites=[] if "site" not in labelled.columns else _sites(counts, case_column(labelled, "site", place), groups),
        rater_marginals=test,
        warnings=_warnings(test.p_value, test.n),
    )


def _rater_test(matrix: IntArray, n_classes: int, groups: npt.NDArray[Any] | None, seed: int) -> DependenceTest:
    """Whether annotators use the classes alike; readings of one patient may hang together."""
    if groups is None:
        return rater_marginal_test(matrix, n_classes, permutations=PERMUTATIONS, seed=seed)
    case, annotator = np.nonzero(matrix >= 0)
    patient = np.unique(groups, return_inverse=True)[1][case]
    labels = matrix[case, annotator]
    return DependenceTest(*reader_test(case, annotator, labels, patient, permutations=PERMUTATIONS, seed=seed))


def label_matrix(labels: Labels) -> tuple[IntArray, list[str]]:
    """Labels (N, A) with −1 where there is none, and the A annotators' names in order."""
    names = sorted(set(labels.annotators))
    number = {name: column for column, name in enumerate(names)}
    matrix = np.full((len(labels.case_ids), len(names)), -1, dtype=np.int64)
    columns = np.array([number[name] for name in labels.annotators], dtype=np.intp)
    matrix[labels.rows, columns] = labels.numbers
    return matrix, names


def agreement_with_others(matrix: IntArray, column: int, cluster: npt.NDArray[Any] | None = None) -> Estimate:
    """Mean share of a case's other labels that equal this annotator's, over the cases they labelled with others."""
    own, others = matrix[:, column], np.delete(matrix, column, axis=1)
    present = (others >= 0).sum(axis=1)
    sample = select(np.asarray((own >= 0) & (present > 0)), None, cluster)
    equal = (others == own[:, None]).sum(axis=1)
    return to_estimate(mean_replicates(equal[sample.rows] / present[sample.rows], sample), sample)


def _pairs(matrix: IntArray, names: list[str], n_classes: int, groups: npt.NDArray[Any] | None) -> list[PairAgreement]:
    pairs = []
    for a, b in combinations(range(len(names)), 2):
        if ((matrix[:, a] >= 0) & (matrix[:, b] >= 0)).sum() >= 2:
            kappa = cohen_kappa(matrix[:, a], matrix[:, b], n_classes, cluster=groups)
            pairs.append(PairAgreement((names[a], names[b]), kappa))
    return pairs


def _classes(labels: Labels, groups: npt.NDArray[Any] | None) -> list[ClassAgreement]:
    """Alpha of each class against all the others."""
    totals = labels.counts.sum(axis=1)
    rows = []
    for k, name in enumerate(labels.classes):
        own = labels.counts[:, k]
        alpha = krippendorff_alpha(np.stack([own, totals - own], axis=1), cluster=groups)
        rows.append(ClassAgreement(name, int(own.sum()), alpha))
    return rows


def _sites(counts: IntArray, sites: npt.NDArray[Any], groups: npt.NDArray[Any] | None) -> list[SiteAgreement]:
    rows = []
    for site in sorted(set(sites.tolist())):
        inside = sites == site
        alpha = krippendorff_alpha(counts[inside], cluster=None if groups is None else groups[inside])
        rows.append(SiteAgreement(site, int(inside.sum()), alpha))
    return rows


def _warnings(p_value: float, n: int) -> list[str]:
    if n == 0:
        return ["no case has two labels: agreement cannot be measured"]
    if p_value < 0.05:
        return [f"annotators use the classes differently (p = {p_value:.3f}): labels are not exchangeable"]
    return []
