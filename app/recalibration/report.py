"""What a recalibration reports: what was fitted on, how far predictions move, and how the candidate was judged."""

from typing import Any, cast

from app.http.models import MetricOut, Out
from app.recalibration.change_plan import ChangePlan
from app.releases.gate_verdicts import Gate
from ml.calibration.domain_adaptation import AdaptationDocument
from ml.metrics.skill import Verdict


class Moved(Out):
    """How far predictions of the same cases move on average."""

    mean_probability_change: float
    mean_log_concentration_change: float | None


class ChoiceOut(Out):
    """Which candidate of a step was chosen, by the loss on cases that no fit has seen, in nats per label."""

    cv_before: float
    cv_after: float
    chosen: str
    candidates: dict[str, float | None]


class JointFitOut(Out):
    """Whether temperature and head fitted together replaced what had been fitted one after the other."""

    kept: bool
    cv_before: float | None = None
    cv_after: float | None = None
    temperature: float | None = None
    failed: str | None = None


class RefinementOut(Out):
    """What reads summaries of the logits and how φ is mapped, by losses on folds that no fit has seen."""

    variant: str | None = None
    likelihood: dict[str, float | None] | None = None
    map: str | None = None
    pairs: dict[str, float | None] | None = None
    failed: str | None = None


class AdaptationOut(Out):
    """What other annotators changed; the numbers of ``ml.calibration.domain_adaptation.Adaptation``."""

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


class FitOut(Out):
    """How a calibration was chosen: numbers of cases, and each step that was tried.

    After the method ``adapt`` there is one step, ``adaptation``, and nothing was chosen between.
    """

    n_fit: int
    n_cv: int
    temperature: ChoiceOut | None = None
    vector: ChoiceOut | None = None
    matrix: ChoiceOut | None = None
    concentration: ChoiceOut | None = None
    joint: JointFitOut | None = None
    refinement: RefinementOut | None = None
    adaptation: AdaptationOut | None = None


class Findings(Out):
    """What is known before the candidate is written.

    Attributes:
        parent: release that it was recalibrated from.
        method: of recalibration.
        label_snapshot: digest of the labels that were used.
        change_plan: bounds of the change.
        change_plan_sha256: their digest.
        moved: how far predictions move.
        gate: the judgement.
        champion: headline metrics of the parent on the evaluation partition.
        candidate: the same of the candidate.
        fit: report of the fit.
        n_evaluated: cases of the evaluation partition.
        n_left_out_of_fit: cases of the calibration partition that the champion's network was trained on.
        n_kept_for_sets: further cases of it whose patients are kept for answer sets.
        n_left_out_of_judgement: cases of the evaluation partition that the champion was trained on.
    """

    parent: str
    method: str
    label_snapshot: str
    change_plan: ChangePlan
    change_plan_sha256: str
    moved: Moved
    gate: Gate
    champion: dict[str, MetricOut]
    candidate: dict[str, MetricOut]
    fit: FitOut
    n_evaluated: int
    n_left_out_of_fit: int = 0
    n_kept_for_sets: int = 0
    n_left_out_of_judgement: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return self.model_dump(exclude_unset=True) | {"change_plan": self.change_plan.to_dict()}


class JudgementReport(Out):
    """How a release that was trained elsewhere was judged, on which cases."""

    release: str
    champion: str
    gate: Gate
    n_evaluated: int
    n_left_out_of_judgement: int
    n_labelled_not_predicted: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return self.model_dump(exclude_unset=True)


class RecalibrationReport(Findings):
    """A recalibration's report with the candidate release that was written."""

    release: str
