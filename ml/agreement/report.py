"""Agreement report as typed results and as JSON."""

from dataclasses import dataclass, field
from typing import Any

from ml.agreement.coefficients import Level
from ml.documents import named, to_document
from ml.metrics.homogeneity_test import DependenceTest
from ml.metrics.jackknife import Estimate
from ml.util.arrays import EqualByValue, FloatArray


@dataclass(frozen=True, eq=False)
class PairAgreement(EqualByValue):
    """Cohen's kappa of two annotators."""

    annotators: tuple[str, str]
    cohen_kappa: Estimate


@dataclass(frozen=True, eq=False)
class AnnotatorAgreement(EqualByValue):
    """An annotator next to the others.

    Attributes:
        annotator: their name.
        n_labels: labels they gave.
        agreement_with_others: mean share of a case's other labels that equal theirs.
        confusion: (K, K) probability of each of their labels (last axis) for each true class (Dawid and Skene); None
            if there are too many annotators and classes.
    """

    annotator: str
    n_labels: int
    agreement_with_others: Estimate
    confusion: FloatArray | None


@dataclass(frozen=True, eq=False)
class ClassAgreement(EqualByValue):
    """Krippendorff's alpha of a class against all the others."""

    name: str = field(metadata=named("class"))
    n_labels: int
    krippendorff_alpha: Estimate


@dataclass(frozen=True, eq=False)
class SiteAgreement(EqualByValue):
    """Krippendorff's alpha at one site."""

    site: Any
    n_cases: int
    krippendorff_alpha: Estimate


@dataclass(frozen=True, eq=False)
class AgreementReport(EqualByValue):
    """Every coefficient of agreement of a LABELS table.

    Attributes:
        n_cases: cases with a label.
        n_labels: labels.
        n_annotators: distinct annotators; None if they are not named.
        level: whether the classes are in order.
        krippendorff_alpha: of all classes together.
        pairs: of annotators who share enough cases, the most cases first if there are very many pairs.
        annotators: by name.
        classes: each against all the others.
        sites: by value of the column ``site``; empty without one.
        rater_marginals: test of whether annotators use the classes alike; None if they are not named.
        warnings: what to know before quoting a number.

    Examples:
        >>> from secondread import measure_agreement
        >>> labels = {"case_id": ["a", "a", "b", "b"], "annotator": ["r", "s"] * 2, "label": ["x", "x", "y", "y"]}
        >>> measure_agreement(labels).to_dict()["krippendorff_alpha"]["value"]
        1.0
    """

    n_cases: int
    n_labels: int
    n_annotators: int | None
    level: Level
    krippendorff_alpha: Estimate
    pairs: list[PairAgreement]
    annotators: list[AnnotatorAgreement]
    classes: list[ClassAgreement]
    sites: list[SiteAgreement]
    rater_marginals: DependenceTest | None
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the document of ``secondread agreement --json``."""
        return to_document(self)
