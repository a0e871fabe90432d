"""Report of how a calibration was chosen: each step tried, and its loss on held-out cases."""

from dataclasses import dataclass
from typing import NotRequired, TypedDict

from ml.calibration.calibration import Calibration
from ml.calibration.domain_adaptation import AdaptationDocument
from ml.calibration.refining import RefinementChoice, RefinementDocument
from ml.calibration.scaling import Choice, ChoiceDocument, Method


class JointFitDocument(TypedDict):
    """``JointFit`` as JSON values."""

    kept: bool
    cv_before: NotRequired[float]
    cv_after: NotRequired[float]
    temperature: NotRequired[float]
    failed: NotRequired[str]


class FitDocument(TypedDict):
    """Choice of a calibration as JSON values: numbers of cases, and a key for each step tried.

    ``adaptation``: what other annotators changed afterwards.
    """

    n_fit: int
    n_cv: int
    temperature: NotRequired[ChoiceDocument]
    vector: NotRequired[ChoiceDocument]
    matrix: NotRequired[ChoiceDocument]
    concentration: NotRequired[ChoiceDocument]
    joint: NotRequired[JointFitDocument]
    refinement: NotRequired[RefinementDocument]
    adaptation: NotRequired[AdaptationDocument]


@dataclass(frozen=True)
class JointFit:
    """Temperature and head fitted together.

    Attributes:
        kept: whether the result replaced what had been fitted one after the other.
        cv_before: loss on the cv part of the latter; None where a fit failed.
        cv_after: of the former.
        temperature: T, where it was kept.
        failed: why a fit failed.
    """

    kept: bool
    cv_before: float | None = None
    cv_after: float | None = None
    temperature: float | None = None
    failed: str | None = None

    def to_dict(self) -> JointFitDocument:
        """Return what is known as JSON values."""
        document: JointFitDocument = {"kept": self.kept}
        if self.cv_before is not None:
            document["cv_before"] = self.cv_before
        if self.cv_after is not None:
            document["cv_after"] = self.cv_after
        if self.temperature is not None:
            document["temperature"] = self.temperature
        if self.failed is not None:
            document["failed"] = self.failed
        return document


@dataclass(frozen=True)
class FitReport:
    """A calibration, and how it was chosen on the cv part.

    Attributes:
        calibration: the result, refitted on all cases.
        n_fit: cases fitted on.
        n_cv: cases chosen on.
        method: how class probabilities were to be calibrated.
        scaling: choice among scalings; None for the method ``none``.
        concentration: choice among heads; None where there was none to fit.
        joint: temperature and head together; None where not tried.
        refinement: summaries and map of φ; None where not tried.
    """

    calibration: Calibration
    n_fit: int
    n_cv: int
    method: Method
    scaling: Choice | None
    concentration: Choice | None
    joint: JointFit | None
    refinement: RefinementChoice | None = None

    @property
    def report(self) -> FitDocument:
        """Return the report as JSON values."""
        document: FitDocument = {"n_fit": self.n_fit, "n_cv": self.n_cv}
        if self.method != "none" and self.scaling is not None:
            document[self.method] = self.scaling.to_dict()
        if self.concentration is not None:
            document["concentration"] = self.concentration.to_dict()
        if self.joint is not None:
            document["joint"] = self.joint.to_dict()
        if self.refinement is not None:
            document["refinement"] = self.refinement.to_dict()
        return document
