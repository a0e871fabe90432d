"""Request and response models of the evaluation routes."""

import uuid
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.database.tables.values import JobState
from app.http.models import (
    BY_SYMBOL,
    Line,
    MetricOut,
    MetricsByName,
    Moment,
    RequestModel,
    ResponseModel,
    Sentence,
    both_names,
)
from app.predictions.service import PublishedSets
from ml.metrics import Evaluation
from ml.metrics.sums import Debias

Partition = Literal["all", "evaluation", "calibration"]
Weighting = Literal["ipw", "none"]


class BinOut(ResponseModel):
    """One bin of a reliability diagram."""

    low: float
    high: float
    n: int
    mean_prob: float | None
    mean_freq: float | None
    freq_low: float | None
    freq_high: float | None


class ClassMetricsOut(ResponseModel):
    """Calibration loss, epistemic loss and reliability of one class."""

    model_config = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    name: Annotated[str, Field(alias="class")]
    CL: float | None
    calibration_loss: float | None
    EL: float | None
    epistemic_loss: float | None
    bins: list[BinOut]


class CellOut(ResponseModel):
    """Planned and answered cells of one weighting group: an arm and a fifth of the cells."""

    arm: Literal["triage", "audit"]
    quintile: int
    planned: int
    answered: int
    waiting: int = 0


class WeightsOut(ResponseModel):
    """Inverse selection probabilities of cells with enough labels."""

    order: int
    non_response: float
    ess: float
    largest_weight: float
    cells: list[CellOut]


class CannotTellOut(ResponseModel):
    """Planned reads of one weighting group that ended with "cannot tell"."""

    arm: Literal["triage", "audit"]
    quintile: int
    planned: int
    cannot_tell: int


class SelectionOut(ResponseModel):
    """How the labelled cells were selected."""

    n_closed: int
    n_open: int
    n_waiting: int = 0
    outside_share: float
    orders: list[WeightsOut]
    cannot_tell: list[CannotTellOut]


class GroupOut(ResponseModel):
    """Metrics of one site or month."""

    group: str
    n_cases: int
    metrics: MetricsByName


class MixChangeOut(ResponseModel):
    """Largest change of a class's share, estimated from the predictions."""

    class_code: str
    change: float
    low: float
    high: float


class DriftOut(ResponseModel):
    """Shift of images and labels from the training data of the model release."""

    site: str | None
    n_cases: int
    stain_shift: list[float] | None
    feature_shift: float | None
    unfamiliar_share: float | None
    label_shift: float | None
    label_p_value: float | None
    mix_change: MixChangeOut | None = None
    warnings: list[Sentence]


class MonitorStepOut(ResponseModel):
    """Alarm statistic of the champion at the end of a day."""

    day: date
    n_units: int
    log10_capital: float


class ScoreMonitorOut(ResponseModel):
    """Alarm on a champion that has become worse since its promotion."""

    site: str | None
    since: datetime
    n_units: int
    n_reference: int
    reference_loss: float | None
    recent_loss: float
    floor: float
    tolerance: float
    level: float
    log10_threshold: float
    alarm_on: date | None
    steps: list[MonitorStepOut]
    warnings: list[Sentence]


class CapacityOut(MetricOut):
    """Share of disagreements caught when this share of the cases is sent for a second read."""

    capacity: float


class MetricsHead(ResponseModel):
    """Release, cells and weights of an evaluation."""

    release: str
    partition: Partition
    weighting: Weighting


class EvaluationDocument(ResponseModel):
    """The document of ``secondread evaluate``."""

    n_cases: int
    n_labels: int
    n_classes: int
    n_bins: int
    debias: Debias
    metrics: MetricsByName
    classes: list[ClassMetricsOut]
    class_bins: list[BinOut]
    disagreement_bins: list[BinOut]
    warnings: list[Sentence]

    @classmethod
    def of(cls, evaluation: Evaluation) -> "EvaluationDocument":
        """An evaluation as the API shows it."""
        return EvaluationDocument.model_validate(evaluation.to_dict())


class TrainedOnOut(ResponseModel):
    """Cells left out because a model release was trained on them, or on other cells of their patient."""

    n_left_out: int
    images: Literal["known", "unknown"]
    patients: Literal["known", "unknown"]


class MetricsBody(EvaluationDocument):
    """The document of ``secondread evaluate``, with selection, gain by labels, and drift."""

    selection: SelectionOut
    posterior_gain: MetricOut | None
    triage_curve: list[CapacityOut]
    drift: list[DriftOut]
    score_monitor: list[ScoreMonitorOut] = Field(default_factory=list)
    groups: list[GroupOut]
    trained_on: TrainedOnOut | None = None
    answer_sets: PublishedSets | None = None


LeftOutReason = Literal[
    "not-blinded",
    "adjudication",
    "late",
    "correctable",
    "withdrawn",
    "no-prediction",
    "trained-on",
    "partition",
    "other-cells",
    "other-class",
    "open",
    "outside",
    "unanswered",
]


class LeftOutOut(ResponseModel):
    """Labels that no estimate uses, for one reason."""

    reason: LeftOutReason
    n_labels: int


class MetricsOut(MetricsBody, MetricsHead):
    """The document of ``secondread evaluate``, with its cells and weights."""


class DesignOut(ResponseModel):
    """A design of second reads: its cost (share of the cases), its catch (of disagreements) and what it tells.

    ``width`` is the length of the 95% interval of EL and of L_D; null if it cannot be computed.
    """

    design: Sentence
    share: float
    catch: float
    width: dict[str, float | None]


class ComparedOut(ResponseModel):
    """One metric of the champion, of another release on the same cases, and of their difference."""

    champion: MetricOut
    release: MetricOut
    change: MetricOut


class ComparisonOut(ResponseModel):
    """A model release compared with the champion."""

    champion: str
    release: str
    partition: Partition
    weighting: Weighting
    n_cases: int
    n_labels: int
    n_labelled: int
    n_labelled_not_predicted: int
    trained_on: TrainedOnOut
    metrics: Annotated[dict[str, ComparedOut], BY_SYMBOL, both_names(ComparedOut)]


class EvaluationIn(RequestModel):
    """Options of a frozen evaluation."""

    release: uuid.UUID | None = None
    partition: Partition = "evaluation"
    weighting: Weighting = "ipw"
    since: Moment | None = None
    until: Moment | None = None
    site: Line | None = None


class EvaluationQuestionOut(ResponseModel):
    """Options that a frozen evaluation was requested with."""

    release: str | None
    partition: Partition
    weighting: Weighting
    since: datetime | None
    until: datetime | None
    site: str | None


class PairAgreementOut(ResponseModel):
    """Agreement of two annotators."""

    annotators: list[str]
    cohen_kappa: MetricOut


class AnnotatorAgreementOut(ResponseModel):
    """Agreement of one annotator with the others, and confusions."""

    annotator: str
    n_labels: int
    agreement_with_others: MetricOut
    confusion: list[list[float]] | None


class ClassAgreementOut(ResponseModel):
    """Agreement about one class against all others."""

    model_config = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    name: Annotated[str, Field(alias="class")]
    n_labels: int
    krippendorff_alpha: MetricOut


class SiteAgreementOut(ResponseModel):
    """Agreement about the cases of one site."""

    site: str
    n_cases: int
    krippendorff_alpha: MetricOut


class RaterMarginalsOut(ResponseModel):
    """Test of equal use of the classes by the annotators."""

    chi2: float | None
    p_value: float | None
    n: int


class DirectionOut(ResponseModel):
    """How often one class was corrected to another."""

    before: str
    after: str
    count: int


class CorrectionsOut(ResponseModel):
    """Blinded corrections by annotators with accounts."""

    n_labels: int
    n_corrected: int
    rate: float | None
    median_seconds: float | None
    directions: list[DirectionOut]


class AfterRevealOut(ResponseModel):
    """Changes after unblinding; evaluations and fits do not use them."""

    n_labels: int
    n_revised: int
    n_retracted: int
    towards_prediction: int
    away_from_prediction: int


class AgreementOut(ResponseModel):
    """Agreement between annotators; groupings that were not requested are missing."""

    n_cases: int
    n_labels: int
    n_annotators: int
    level: Literal["nominal", "ordinal"] = "nominal"
    krippendorff_alpha: MetricOut | None = None
    pairs: list[PairAgreementOut] = Field(default_factory=list)
    annotators: list[AnnotatorAgreementOut] = Field(default_factory=list)
    classes: list[ClassAgreementOut] = Field(default_factory=list)
    sites: list[SiteAgreementOut] = Field(default_factory=list)
    rater_marginals: RaterMarginalsOut | None = None
    corrections: CorrectionsOut | None = None
    after_reveal: AfterRevealOut | None = None
    warnings: list[Sentence]


class FrozenDocument(MetricsBody):
    """What a frozen evaluation says: metrics, the question that it answers, and agreement."""

    release: str
    question: EvaluationIn
    agreement: AgreementOut


class EvaluationOut(ResponseModel):
    """A frozen evaluation."""

    id: str
    state: JobState
    progress: float
    message: Sentence
    error: Sentence | None
    created_at: datetime
    question: EvaluationQuestionOut
    release: str | None
    snapshot_sha256: str | None
    document: dict[str, Any] | None


class EvaluationsOut(ResponseModel):
    """Frozen evaluations."""

    items: list[EvaluationOut]
