"""Models of a recalibration report: fit, prediction shift and gate judgement."""

from typing import Any, cast

from app.http.models import MetricsByName, ResponseModel
from app.recalibration.change_plan import ChangePlan
from app.releases.service import Gate
from ml.calibration.calibrators import Level
from ml.calibration.domain_adaptation import AdaptationDocument
from ml.metrics.losses import Verdict


class PredictionShift(ResponseModel):
    """Mean shift of predictions of the same cases."""

    mean_probability_change: float
    mean_log_concentration_change: float | None


class ChoiceOut(ResponseModel):
    """Candidate chosen in a step by cross-validated loss, in nats per label."""

    cv_before: float
    cv_after: float
    chosen: str
    candidates: dict[str, float | None]


class JointFitOut(ResponseModel):
    """Result of fitting temperature and head jointly, instead of one after the other."""

    kept: bool
    cv_before: float | None = None
    cv_after: float | None = None
    temperature: float | None = None
    failed: str | None = None


class RefinementOut(ResponseModel):
    """Choice of logit summaries, logistic normal, map of φ and pair head, by cross-validated losses."""

    variant: str | None = None
    likelihood: dict[str, float | None] | None = None
    neighbours: bool | None = None
    dirichlet: float | None = None
    logistic_normal: float | None = None
    map: str | None = None
    pairs: dict[str, float | None] | None = None
    pair_share: float | None = None
    failed: str | None = None


class AdaptationOut(ResponseModel):
    """Adaptation to other annotators; the numbers of ``ml.calibration.domain_adaptation.Adaptation``."""

    n_cases: int
    n_double_reads: int
    temperature_before: float
    temperature_after: float
    rise: float
    slope: float
    level: float
    seen: float
    mean_before: float
    mean_after: float
    verdict: Verdict
    constant: float | None

    def document(self) -> AdaptationDocument:
        """The same as it stands on a card."""
        return cast(AdaptationDocument, self.model_dump())


class FitOut(ResponseModel):
    """Report of a calibration fit: numbers of cases, and each step that was tried.

    After the method ``adapt`` there is one step, ``adaptation``, and nothing was chosen between.
    """

    n_fit: int
    n_cv: int
    level: Level | None = None
    temperature: ChoiceOut | None = None
    vector: ChoiceOut | None = None
    matrix: ChoiceOut | None = None
    concentration: ChoiceOut | None = None
    joint: JointFitOut | None = None
    refinement: RefinementOut | None = None
    adaptation: AdaptationOut | None = None
    class_mix: list[float] | None = None


class RecalibrationFindings(ResponseModel):
    """Findings of a recalibration before the candidate is written, with the headline metrics of both releases."""

    parent: str
    method: str
    label_snapshot: str
    change_plan: ChangePlan
    change_plan_sha256: str
    moved: PredictionShift
    gate: Gate
    champion: MetricsByName
    candidate: MetricsByName
    fit: FitOut
    n_evaluated: int
    n_left_out_of_fit: int = 0
    n_kept_for_sets: int = 0
    n_left_out_of_judgement: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return self.model_dump(exclude_unset=True) | {"change_plan": self.change_plan.to_dict()}


class JudgementReport(ResponseModel):
    """Judgement of a release trained elsewhere, with its numbers of cases."""

    release: str
    champion: str
    gate: Gate
    n_evaluated: int
    n_left_out_of_judgement: int
    n_labelled_not_predicted: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return self.model_dump(exclude_unset=True)


class RecalibrationReport(RecalibrationFindings):
    """A recalibration's report with the candidate release that was written."""

    release: str
