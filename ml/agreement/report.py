"""Agreement report as typed results and as JSON."""

from dataclasses import dataclass
from typing import Any, TypedDict

from ml.agreement.coefficients import DependenceTest, Level
from ml.metrics.jackknife import Estimate, EstimateDocument
from ml.util.arrays import EqualByValue, FloatArray


class PairDocument(TypedDict):
    """A ``PairAgreement`` as JSON values."""

    annotators: list[str]
    cohen_kappa: EstimateDocument


class AnnotatorDocument(TypedDict):
    """An ``AnnotatorAgreement`` as JSON values."""

    annotator: str
    n_labels: int
    agreement_with_others: EstimateDocument
    confusion: list[list[float]] | None


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
    n_annotators: int | None
    level: Level
    krippendorff_alpha: EstimateDocument
    pairs: list[PairDocument]
    annotators: list[AnnotatorDocument]
    classes: list[ClassAgreementDocument]
    sites: list[SiteDocument]
    rater_marginals: MarginalsDocument | None
    warnings: list[str]


@dataclass(frozen=True, eq=False)
class PairAgreement(EqualByValue):
    """Cohen's kappa of two annotators, with quadratic weights where the classes are in order."""

    annotators: tuple[str, str]
    cohen_kappa: Estimate

    def to_dict(self) -> PairDocument:
        """Return it as JSON values."""
        return {"annotators": list(self.annotators), "cohen_kappa": self.cohen_kappa.to_dict()}


@dataclass(frozen=True, eq=False)
class AnnotatorAgreement(EqualByValue):
    """An annotator next to the others.

    Attributes:
        annotator: their name.
        n_labels: labels they gave.
        agreement_with_others: mean share of a case's other labels that equal theirs.
        confusion: (K, K) probability of each of their labels (last axis) for each true class (Dawid and Skene); None
            where there are too many annotators and classes.
    """

    annotator: str
    n_labels: int
    agreement_with_others: Estimate
    confusion: FloatArray | None

    def to_dict(self) -> AnnotatorDocument:
        """Return it as JSON values."""
        return {
            "annotator": self.annotator,
            "n_labels": self.n_labels,
            "agreement_with_others": self.agreement_with_others.to_dict(),
            "confusion": None if self.confusion is None else self.confusion.tolist(),
        }


@dataclass(frozen=True, eq=False)
class ClassAgreement(EqualByValue):
    """Krippendorff's alpha of a class against all the others."""

    name: str
    n_labels: int
    krippendorff_alpha: Estimate

    def to_dict(self) -> ClassAgreementDocument:
        """Return it as JSON values."""
        alpha = self.krippendorff_alpha.to_dict()
        return {"class": self.name, "n_labels": self.n_labels, "krippendorff_alpha": alpha}


@dataclass(frozen=True, eq=False)
class SiteAgreement(EqualByValue):
    """Krippendorff's alpha at one site."""

    site: Any
    n_cases: int
    krippendorff_alpha: Estimate

    def to_dict(self) -> SiteDocument:
        """Return it as JSON values."""
        alpha = self.krippendorff_alpha.to_dict()
        return {"site": self.site, "n_cases": self.n_cases, "krippendorff_alpha": alpha}


@dataclass(frozen=True, eq=False)
class AgreementReport(EqualByValue):
    """Every coefficient of agreement of a LABELS table.

    Attributes:
        n_cases: cases with a label.
        n_labels: labels.
        n_annotators: distinct annotators; None where they are not named.
        level: whether the classes are in order.
        krippendorff_alpha: of all classes together.
        pairs: of annotators who share enough cases, the most cases first where there are very many pairs.
        annotators: by name.
        classes: each against all the others.
        sites: by value of the column ``site``; empty without one.
        rater_marginals: test of whether annotators use the classes alike; None where they are not named.
        warnings: what to know before quoting a number.

    >>> from ml.agreement import measure_agreement
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

    def to_dict(self) -> AgreementDocument:
        """Return it as JSON values, the document of ``secondread agreement --json``."""
        return {
            "n_cases": self.n_cases,
            "n_labels": self.n_labels,
            "n_annotators": self.n_annotators,
            "level": self.level,
            "krippendorff_alpha": self.krippendorff_alpha.to_dict(),
            "pairs": [pair.to_dict() for pair in self.pairs],
            "annotators": [annotator.to_dict() for annotator in self.annotators],
            "classes": [row.to_dict() for row in self.classes],
            "sites": [site.to_dict() for site in self.sites],
            "rater_marginals": self._marginals(),
            "warnings": self.warnings,
        }

    def _marginals(self) -> MarginalsDocument | None:
        test = self.rater_marginals
        return None if test is None else {"chi2": test.statistic, "p_value": test.p_value, "n": test.n}
