"""What the API takes and answers. Made from the OpenAPI document 64aeef463f49d94f.

``python -m tools.openapi_files`` makes it again; nobody edits it.
"""

# ruff: noqa

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field


class AfterRevealOut(BaseModel):
    """
    Changes after unblinding; evaluations and fits do not use them.

    The `n_labels` blinded labels: `n_revised` were changed to another class or to the same one, and `n_retracted` taken back. `towards_prediction`: away from another class, to the most probable one or to nothing; `away_from_prediction`: away from the most probable class.
    """

    n_labels: int
    n_revised: int
    n_retracted: int
    towards_prediction: int
    away_from_prediction: int


class AgreementOut(BaseModel):
    """
    Agreement between annotators; without labels, and of groupings that were not asked for, parts are missing.
    """

    n_cases: int
    n_labels: int
    n_annotators: int
    level: Literal["nominal", "ordinal"] = "nominal"
    krippendorff_alpha: MetricOut | None = None
    pairs: list[PairAgreementOut] | None = None
    annotators: list[AnnotatorAgreementOut] | None = None
    classes: list[ClassAgreementOut] | None = None
    sites: list[SiteAgreementOut] | None = None
    rater_marginals: RaterMarginalsOut | None = None
    corrections: CorrectionsOut | None = None
    after_reveal: AfterRevealOut | None = None
    warnings: list[str]


class AliasIn(BaseModel):
    """
    Where an alias is to point, and why; people who are signed in repeat their password.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    release: UUID
    reason: str
    password: str | None = None
    despite_gate: Annotated[
        bool,
        Field(
            description="Promote a model release without a passed promotion check; the reason must explain it. The first champion of an empty service needs no check."
        ),
    ] = False


class AliasOut(BaseModel):
    """
    Which release an alias names; `revision` counts its moves and is its ETag.
    """

    name: str
    release: str
    revision: int


class AliasesOut(BaseModel):
    """
    Every alias.
    """

    items: list[AliasOut]


class AnnotatorAgreementOut(BaseModel):
    """
    Agreement of one annotator with the others, and what they call what: a row per true class.
    """

    annotator: str
    n_labels: int
    agreement_with_others: MetricOut
    confusion: list[list[float]] | None


class AnnotatorsOut(BaseModel):
    """
    Names of annotators with accounts.
    """

    items: list[str]


class AnswerSetOut(BaseModel):
    """
    Classes among which the next annotator's answer lies in a share `level` of new patients.

    `classes`: the most probable first; null where there is no set, and `reason` says why. `site`: whose cells calibrated it, null for those of all sites without sets of their own; `n_patients` and `n_cells` of them.
    """

    level: float
    classes: list[str] | None
    reason: str | None
    answers_of: Literal["annotators", "outside"]
    site: str | None
    n_patients: int
    n_cells: int


class AnsweredOut(BaseModel):
    """
    A stored answer; `feedback` in training only.
    """

    item: str
    label: str
    feedback: FeedbackOut | None
    run: RunOut


class Attempt(BaseModel):
    """
    Which attempt on the champion it was, and what was asked of it.

    `level`: probability of passing by luck that this attempt may use, half of it for each loss; `p_L`, `p_L_D`: one-sided p values of «not better»; `stability_limit`: standard errors that a change may be worse without one annotator, null where there were too few; `max_increase`: margin of the change plan, null without one.
    """

    number: int
    level: float
    level_of_each_loss: float
    p_L: float | None
    p_L_D: float | None
    stability_limit: float | None
    max_increase: float | None


class AuditEventOut(BaseModel):
    """
    An action on an object; `digest` chains it to the event before.
    """

    sequence: int
    created_at: AwareDatetime
    actor: str
    action: str
    object: str
    details: dict[str, Any]
    reason: str | None
    request_id: str | None
    digest: str


class AuditEventsOut(BaseModel):
    """
    Audit events, newest first; `next_cursor` leads to older ones.
    """

    items: list[AuditEventOut]
    next_cursor: str | None


class BinOut(BaseModel):
    """
    One bin of a reliability diagram.
    """

    low: float
    high: float
    n: int
    mean_prob: float | None
    mean_freq: float | None
    freq_low: float | None
    freq_high: float | None


class CannotTellOut(BaseModel):
    """
    Planned reads of a cell, and how many ended because the image does not allow a diagnosis.
    """

    arm: str
    quintile: int
    planned: int
    cannot_tell: int


class CapacityOut(BaseModel):
    """
    Share of disagreements caught when this share of the cases is sent for a second read.
    """

    value: float | None
    se: float | None
    low: float | None
    high: float | None
    n: int
    dropped: int
    ess: float | None
    clipped: bool
    singleton_mass: float
    horvitz_thompson: float | None
    largest_weight: float | None
    model_assisted: ModelAssistedOut | None = None
    low_new: float | None = None
    high_new: float | None = None
    capacity: float


class CaseOut(BaseModel):
    """
    A case with its prediction.
    """

    id: str
    external_id: str
    patient: str | None
    site: str | None
    metadata: dict[str, str]
    width: int
    height: int
    partition: str
    same_image_as: str | None
    created_at: AwareDatetime
    n_labels: int
    prediction: PredictionOut | None
    has_field: bool = False


class CasesOut(BaseModel):
    """
    A page of cases; `next_cursor` leads to the next one.
    """

    items: list[CaseOut]
    next_cursor: str | None


class CellOut(BaseModel):
    """
    Planned and answered reads of one weighting cell: an arm and a fifth of the cases by disagreement probability.
    """

    arm: str
    quintile: int
    planned: int
    answered: int
    waiting: int = 0


class ClassAgreementOut(BaseModel):
    """
    Agreement about one class against all others.
    """

    class_: Annotated[str, Field(alias="class")]
    n_labels: int
    krippendorff_alpha: MetricOut


class ClassMetricsOut(BaseModel):
    """
    Calibration loss, epistemic loss and reliability of one class.
    """

    class_: Annotated[str, Field(alias="class")]
    CL: float | None
    calibration_loss: float | None
    EL: float | None
    epistemic_loss: float | None
    bins: list[BinOut]


class ClassOut(BaseModel):
    """
    A class of the reading task; `group` is the heading under which an annotator finds it, empty for none.
    """

    code: str
    name: str
    shortcut: str
    group: str = ""


class ComparedOut(BaseModel):
    """
    One metric of the champion, of another release on the same cases, and of their difference.
    """

    champion: MetricOut
    release: MetricOut
    change: MetricOut


class ComparisonOut(BaseModel):
    """
    A release compared with the champion; `change` is release minus champion, with the interval of the change.
    """

    champion: str
    release: str
    partition: str
    weighting: str
    n_cases: int
    n_labels: int
    n_labelled: int
    n_labelled_not_predicted: int
    trained_on: TrainedOnOut
    metrics: dict[str, ComparedOut]


class ConfidenceOut(BaseModel):
    """
    Agreement of others with an annotator by confidence.
    """

    confidence: float
    agreement: PulledOut


class ConfusionOut(BaseModel):
    """
    How often an annotator chooses a class if the others choose another or the same.
    """

    others_say: str
    says: str
    share: float
    low: float
    high: float
    everybody: float
    notable: bool


class CorrectionsOut(BaseModel):
    """
    Final answers of people with accounts, and how many of them were corrected blind.
    """

    n_labels: int
    n_corrected: int
    rate: float | None
    median_seconds: float | None
    directions: list[DirectionOut]


class DecisionIn(BaseModel):
    """
    A manual decision with its reason; `renewed` allows two further attempts at once.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    kind: Literal["qualified", "withdrawn", "renewed"]
    reason: str


class DecisionOut(BaseModel):
    """
    A decision on an annotator; `reason` is null where an attempt decided.
    """

    kind: str
    at: AwareDatetime
    by: str | None
    reason: str | None


class DeclineIn(BaseModel):
    """
    Why a case is not read; `cannot_tell` means that the image does not allow a diagnosis.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    reason: Literal["cannot_tell", "image_quality", "not_my_field", "know_this_case", "other"]
    note: str | None = None


class DirectionOut(BaseModel):
    """
    How often one class was corrected to another.
    """

    before: str
    after: str
    count: int


class DrawsOut(BaseModel):
    """
    Outcome of planned reads that were assigned at random.

    Attributes: n_answered: answered reads. n_as_drawn: answers by the annotator chosen last. n_drawn_again: new draws after a skip or departure. n_overdue: open reads that anyone may take.
    """

    n_answered: int
    n_as_drawn: int
    n_drawn_again: int
    n_overdue: int


class DriftOut(BaseModel):
    """
    Shift of images and labels from the training data of the model release.

    `site` null: all; `unfamiliar_share` null: the release has no out-of-distribution check.
    """

    site: str | None
    n_cases: int
    stain_shift: list[float] | None
    feature_shift: float | None
    unfamiliar_share: float | None
    label_shift: float | None
    label_p_value: float | None
    warnings: list[str]


class EvaluationIn(BaseModel):
    """
    Options of a frozen evaluation.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    release: UUID | None = None
    partition: Literal["all", "evaluation", "calibration"] = "evaluation"
    weighting: Literal["ipw", "none"] = "ipw"
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    site: str | None = None


class EvaluationOut(BaseModel):
    """
    A frozen evaluation; `document` is null until its job has succeeded.
    """

    id: str
    state: str
    progress: float
    message: str
    error: str | None
    created_at: AwareDatetime
    release: str | None
    snapshot_sha256: str | None
    document: dict[str, Any] | None


class EvaluationsOut(BaseModel):
    """
    Frozen evaluations, newest first.
    """

    items: list[EvaluationOut]


class Fault(BaseModel):
    """
    A value that is not acceptable: its place in the request, and what is wrong with it.
    """

    where: list[str | int]
    what: str


class FeedbackOut(BaseModel):
    """
    How others answered a cell of a training run; the probabilities are of the next annotator's answer.

    Where the cell is being read again, or closed to annotators by the policy, counts and probabilities are null.
    """

    label: str
    label_counts: dict[str, int] | None
    class_probs: dict[str, float] | None
    sentences: list[str]


class Gate(BaseModel):
    """
    Result of the promotion check.

    Attributes: passed: whether the candidate may become champion. reasons: why not, a sentence each; none where it passed. L: change of L from the champion to the candidate; negative is better. L_D: change of L_φ. without_annotator: the same without each annotator in turn. findings: what else was found or could not be checked, a sentence each. champion: release against which it was judged. attempt: number, level and limits. since_first: changes from the first champion.
    """

    passed: bool
    reasons: list[str]
    L: MetricOut
    L_D: MetricOut
    without_annotator: list[WithoutAnnotator]
    findings: list[str] | None = None
    champion: str | None = None
    attempt: Attempt | None = None
    since_first: SinceFirst | None = None


class GroupOut(BaseModel):
    """
    Metrics of one site or month.
    """

    group: str
    n_cases: int
    metrics: dict[str, MetricOut]


class HealthOut(BaseModel):
    """
    Whether the process answers.
    """

    status: str


class ImportOut(BaseModel):
    """
    An import: its job, counts, and a page of rows.
    """

    job: JobOut
    counts: dict[str, int]
    rows: list[ImportRowOut]
    next_cursor: str | None


class ImportRowOut(BaseModel):
    """
    Result of one row: `created`, `known` (the same case was there) or `failed` with the reason.

    A known case that the row gives another patient, site or metadata stays as it is, and `detail` says so. Files that no row is about come last, `ignored` with the reason; `external_id` is then the file's name.
    """

    row: int
    external_id: str
    status: str
    case_id: str | None
    detail: str


class ItemOut(BaseModel):
    """
    A cell of a run: its image and the classes, nothing else.
    """

    id: str
    image: str
    position: int
    classes: list[ClassOut]


class JobOut(BaseModel):
    """
    A job and how far it is.
    """

    id: str
    kind: str
    state: str
    parameters: dict[str, Any]
    progress: float
    message: str
    attempts: int
    cancel_requested: bool
    result: dict[str, Any] | None
    error: str | None
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    ended_at: AwareDatetime | None


class JobsOut(BaseModel):
    """
    Jobs, newest first.
    """

    items: list[JobOut]


class LabelIn(BaseModel):
    """
    A label of an outside annotator system: `annotator` and `blind` must be given.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    label: str
    confidence: float | None = None
    second_choice: str | None = None
    flag: bool = False
    note: str | None = None
    annotator: str | None = None
    blind: bool | None = None
    round: Literal["planned", "adjudication"] | None = None


class LabelOut(BaseModel):
    """
    A label as stored.
    """

    id: str
    case_id: str
    annotator: str
    label: str | None
    confidence: float | None
    second_choice: str | None
    flagged: bool
    note: str | None
    blind: bool
    round: str | None
    late: bool
    kind: str
    supersedes: str | None
    post_reveal: bool
    reason: str | None
    reading_seconds: float | None
    created_at: AwareDatetime


class LabelsOut(BaseModel):
    """
    Labels of a case, oldest first.
    """

    items: list[LabelOut]


class LimitOut(BaseModel):
    """
    A limit, with the use of the caller or address that uses most, and the number of all requests that wait.
    """

    name: str
    per: str
    unit: str
    size: int | None
    queue: int | None
    wait_seconds: float | None
    in_use: int | None = None
    waiting: int | None = None


class MetricOut(BaseModel):
    """
    One estimate.
    """

    value: float | None
    se: float | None
    low: float | None
    high: float | None
    n: int
    dropped: int
    ess: float | None
    clipped: bool
    singleton_mass: float
    horvitz_thompson: float | None
    largest_weight: float | None
    model_assisted: ModelAssistedOut | None = None
    low_new: float | None = None
    high_new: float | None = None


class MetricsOut(BaseModel):
    """
    The document of `secondread evaluate`, and what it was computed over.
    """

    release: str
    partition: str
    weighting: str
    n_cases: int
    n_labels: int
    n_classes: int
    n_bins: int
    debias: str
    metrics: dict[str, MetricOut]
    classes: list[ClassMetricsOut]
    class_bins: list[BinOut]
    disagreement_bins: list[BinOut]
    warnings: list[str]
    selection: SelectionOut
    posterior_gain: MetricOut | None
    triage_curve: list[CapacityOut]
    drift: list[DriftOut]
    score_monitor: list[ScoreMonitorOut] | None = None
    groups: list[GroupOut]
    trained_on: TrainedOnOut | None = None
    answer_sets: PublishedSets | None = None


class ModelAssistedOut(BaseModel):
    """
    A mean with the help of what is known of all cases: predictions and first labels.
    """

    value: float | None
    se: float | None
    low: float | None
    high: float | None


class MonitorStepOut(BaseModel):
    """
    Alarm statistic of the champion at the end of a day, when so many patients had been counted.
    """

    day: date
    n_units: int
    log10_capital: float


class NamedReaderOut(BaseModel):
    """
    Parameters of one annotator: `confusions[opinion][answer]`, rows that sum to one.
    """

    annotator: str
    n_labels: int
    confusions: dict[str, dict[str, float]]
    remark: Annotated[
        str | None,
        Field(description="Their main difference from the population, in a sentence; null: none."),
    ]


class OwnLabelIn(BaseModel):
    """
    A label that ends a read; `flag` asks admins to look at the case.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    label: str
    confidence: float | None = None
    second_choice: str | None = None
    flag: bool = False
    note: str | None = None


class OwnPracticeOut(BaseModel):
    """
    An annotator's practice: whether reads go to them, and why, the sets, and their runs, newest first.
    """

    required: bool
    may_read: bool
    because: str
    sets: list[OwnSetOut]
    runs: list[RunOut]


class OwnReadingOut(BaseModel):
    """
    How an annotator reads, next to the others; until the last Monday, and in steps of ten.
    """

    annotator: str
    until: AwareDatetime
    n_reads: int
    n_compared: int
    seconds: PulledOut | None
    cannot_tell: PulledOut | None
    self_agreement: PulledOut | None
    agreement: PulledOut | None
    agreement_surplus: PulledOut | None
    confusions: list[ConfusionOut]
    confidence: list[ConfidenceOut]
    steps: list[StepOut]
    drift: PulledOut | None
    sentences: list[str]


class OwnSetOut(BaseModel):
    """
    A set for an annotator; `not_now`: the reason why they cannot begin yet.
    """

    id: str
    name: str
    purpose: str
    n_per_run: int
    run: str | None
    not_now: str | None


class PairAgreementOut(BaseModel):
    """
    Agreement of two annotators.
    """

    annotators: list[str]
    cohen_kappa: MetricOut


class PassRatesOut(BaseModel):
    """
    Simulated pass rates of a run of a set; `confusing`: who takes a class for another one half of the time.
    """

    like_the_others: float
    guessing: float
    confusing: dict[str, float]


class PoliciesOut(BaseModel):
    """
    Every version, newest first; `draws` is null before the first draw.
    """

    items: list[PolicyOut]
    draws: DrawsOut | None


class PolicyIn(BaseModel):
    """
    A new version of the policy, whole; what is left out takes its default.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    rule: Literal["disagreement", "expected_gain", "capacity", "graded"] = "disagreement"
    threshold: float | None = None
    capacity_per_day: int | None = None
    audit_rate: float = 0.1
    target_error: float = 0.02
    adjudicate_below: float | None = 0.9
    max_labels: int = 5
    reveal: Literal["after_commit", "after_case_closed", "never"] = "after_case_closed"
    lease_seconds: int = 600
    due_days: int = 7
    repeat_rate: float = 0.02
    draw_readers: bool = False
    require_qualification: bool = False
    reason: str


class PolicyOut(BaseModel):
    """
    A version of the policy.
    """

    version: int
    current: bool
    rule: str
    threshold: float | None
    capacity_per_day: int | None
    audit_rate: float
    target_error: float
    adjudicate_below: float | None
    max_labels: int
    reveal: str
    lease_seconds: int
    due_days: int
    repeat_rate: float
    draw_readers: bool
    require_qualification: bool
    reason: str
    created_at: AwareDatetime


class PosteriorOut(BaseModel):
    """
    The distribution after all active blind labels.

    `reader_model`: version of the model by which labels are weighed by who gave them; null where annotators are taken as alike.
    """

    class_probs: dict[str, float]
    log_concentration: float | None
    disagreement_prob: float | None
    disagreement_calibrated: bool
    disagreement_constant: bool
    class_intervals: dict[str, list[Any]] | None
    answer_set: AnswerSetOut | None = None
    release: str
    n_labels: int
    label_counts: dict[str, int]
    majority_prob: float | None
    further_labels_expected: int | None
    reader_model: int | None


class PracticeAnswerIn(BaseModel):
    """
    An answer to a cell of a run.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    label: str


class PracticeItemOut(BaseModel):
    """
    A cell of a run with the answer to it, if there is one, and in training how others answered.
    """

    item: ItemOut
    label: str | None
    feedback: FeedbackOut | None
    run: str


class PracticeSetIn(BaseModel):
    """
    Cells to be chosen for a set: closed, with `min_labels` final blind labels or more.

    `n_per_run`: cells of one run; where left out all of a training set, and half of a qualification set.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    name: str
    purpose: Literal["training", "qualification"]
    n_cells: int = 80
    n_per_run: int | None = None
    min_labels: int = 3
    borderline_share: float = 0.2


class PracticeSetOut(BaseModel):
    """
    A set as admins see it.
    """

    id: str
    name: str
    purpose: str
    n_cells: int
    n_per_run: int
    min_labels: int
    borderline_share: float
    created_at: AwareDatetime
    retired_at: AwareDatetime | None
    n_runs: int
    n_finished: int
    n_passed: int
    report: SetReportOut
    sentences: list[str]


class PracticeSetsOut(BaseModel):
    """
    Every set, newest first.
    """

    items: list[PracticeSetOut]


class PredictionOut(BaseModel):
    """
    A prediction by a release.

    `out_of_distribution`: whether the image is unlike those that the release was made from; null where the release has no check, and the case is then read twice. `reasons`: checks that the image fails, the strangest first: place, size, focus, stain, features. `distance`: of the strangest check, 1 where images are flagged; `distance_percentile`: of the held-out images that are nearer.
    """

    class_probs: dict[str, float]
    log_concentration: float | None
    disagreement_prob: float | None
    disagreement_calibrated: bool
    disagreement_constant: bool
    class_intervals: dict[str, list[Any]] | None
    answer_set: AnswerSetOut | None = None
    release: str
    classes: list[str]
    triage: TriageOut
    out_of_distribution: bool | None
    reasons: list[str]
    distance: float | None
    distance_percentile: float | None
    image_sha256: str


class PredictionsOut(BaseModel):
    """
    Predictions of a case, newest first.
    """

    items: list[PredictionOut]


class ProblemDocument(BaseModel):
    """
    RFC 9457 problem document.
    """

    type: str
    title: str
    status: int
    detail: str
    errors: list[Fault] | None = None


class PublishedSets(BaseModel):
    """
    Thresholds of a release, and how its sets did.

    Attributes: misses: α, share of the answers that may lie outside. answers_of: whose answers calibrated them. reason: why there are none; null where there may be. notes: what else must be known of them, a sentence each. prior: thresholds for predictions, by site. after_label: thresholds for posteriors of one label, by site. quality: on the evaluation partition.
    """

    misses: float = 0.1
    answers_of: Literal["annotators", "outside"] = "annotators"
    reason: str | None = None
    notes: list[str] | None = None
    prior: list[SiteThresholds] | None = None
    after_label: list[SiteThresholds] | None = None
    quality: list[SetQualityOut] | None = None


class PulledOut(BaseModel):
    """
    An estimate of one annotator, pulled towards all annotators, with its 95 % interval.
    """

    value: float
    low: float
    high: float
    n: int
    everybody: float


class QualifiedListOut(BaseModel):
    """
    Annotators with accounts, by name.
    """

    required: bool
    items: list[QualifiedOut]


class QualifiedOut(BaseModel):
    """
    Qualification of an annotator: decisions and finished attempts, newest first.
    """

    annotator: str
    may_read: bool
    because: str
    decisions: list[DecisionOut]
    attempts: list[ResultOut]


class RaterMarginalsOut(BaseModel):
    """
    Test of whether the annotators use the classes equally often.
    """

    chi2: float | None
    p_value: float | None
    n: int


class ReadOut(BaseModel):
    """
    A read as its annotator sees it.
    """

    id: str
    case_id: str
    image: str
    field: str | None = None
    classes: list[ClassOut]
    state: str
    leased_at: AwareDatetime
    expires_at: AwareDatetime


class ReaderDriftOut(BaseModel):
    """
    An annotator's first reads since the champion was promoted, until last Monday, in nats per label.

    The excess is the log loss of an answer less what it would be on average for somebody who answers as predicted. The alarm is on from the day on which bets that it has risen by more than the tolerance reached their threshold; all annotators share its level.
    """

    annotator: str
    n_patients: int
    tolerance: float
    level: float
    alarm_on: date | None
    weeks: list[ReaderWeekOut]
    sentence: str


class ReaderFitIn(BaseModel):
    """
    Whose answers are the population's: named annotators, or everybody by the number of their labels.

    `release`: beside whose predictions; null: the champion's. Another one must have the champion's network, as a recalibrated candidate has, so that its model is there when it is promoted.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    experts: list[str] = []
    release: UUID | None = None


class ReaderFitOut(BaseModel):
    """
    How a model was fitted and judged.

    `left_out_losses`: negative log-likelihood of a left-out label in nats, by how strongly annotators are pulled together; `kind` is the chosen one, `alike` where names predict no better. `gain_over_served` and `gain_over_alike`: fall of the log loss of the next label on the evaluation partition.
    """

    kind: str
    left_out_losses: dict[str, float]
    n_cases: int
    n_labels: int
    n_annotators: int
    gain_over_served: MetricOut | None
    gain_over_alike: MetricOut | None
    passed: bool
    verdict: str
    temperature: float
    log_concentration_shift: float


class ReaderModelDetailOut(BaseModel):
    """
    A version with what it holds of each annotator and of the population that an unknown one is drawn from.
    """

    version: int
    release: str
    created_at: AwareDatetime
    in_use: bool
    fit: ReaderFitOut
    class_names: dict[str, str]
    readers: list[NamedReaderOut]
    population: dict[str, dict[str, float]]


class ReaderModelInUseOut(BaseModel):
    """
    Where the switch is: `version` null, annotators are taken as alike; `revision` is for If-Match.

    `serves` is false where the version was fitted beside another release than the champion: until there is a new one, annotators are then taken as alike.
    """

    version: int | None
    serves: bool
    revision: int


class ReaderModelOut(BaseModel):
    """
    A version of the model of annotators, of one release.
    """

    version: int
    release: str
    created_at: AwareDatetime
    in_use: bool
    fit: ReaderFitOut


class ReaderModelsOut(BaseModel):
    """
    Every version, newest first; `in_use` null: annotators are taken as alike; `revision` is for If-Match.
    """

    in_use: int | None
    revision: int
    items: list[ReaderModelOut]


class ReaderSwitchIn(BaseModel):
    """
    Which version is to weigh labels; null: annotators are taken as alike.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    version: int | None
    reason: Annotated[str, Field(description="Why; not only spaces.")]


class ReaderWeekOut(BaseModel):
    """
    Mean excess loss of an annotator's answers in a week, from a Monday on; the bands of all weeks hold together.
    """

    week: date
    n_patients: int
    excess_loss: float
    low: float
    high: float


class ReadersDriftOut(BaseModel):
    """
    Every annotator who answered a first read since the champion was promoted.
    """

    items: list[ReaderDriftOut]


class ReadsOut(BaseModel):
    """
    The caller's leases.
    """

    items: list[ReadOut]


class ReadyOut(BaseModel):
    """
    Whether requests can be served, part by part; without a worker they can, but jobs wait.

    `device` is where the network runs: `cpu`, `cuda` or `remote`, with why it is not the GPU. `limits` is there if `?verbose` asks for it.
    """

    status: str
    database: str
    release: str
    worker: str
    storage: str = "ok"
    device: str = "cpu"
    limits: list[LimitOut] | None = None


class RecalibrationIn(BaseModel):
    """
    How the champion is to be recalibrated, and on which cases.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    method: Annotated[
        Literal["none", "temperature", "vector", "matrix", "adapt"],
        Field(
            description="none, temperature, vector, matrix: how class probabilities are calibrated, with the concentration fitted anew. adapt: for annotators who are not those of the release and few cases read twice (20 at least); the champion's calibration is kept, and temperature, level and slope of the disagreement are relearned."
        ),
    ] = "temperature"
    since: Annotated[
        AwareDatetime | None,
        Field(description="Only cases stored at this time or later."),
    ] = None


class ReleaseDetailOut(BaseModel):
    """
    A release with its whole card, and what the gate of this service found last.
    """

    id: str
    name: str
    aliases: list[str]
    classes: list[ClassOut]
    disagreement_calibrated: bool
    out_of_distribution_check: Annotated[
        bool,
        Field(description="Whether it notices images unlike its own; without, each of its cases is read twice."),
    ]
    metrics_stated_by_maker: Annotated[
        bool,
        Field(
            description="The card does not name this network as the one that its metrics were measured on; neither the gate nor a report uses them."
        ),
    ]
    card_sha256: str
    parent: str | None
    gate_passed: bool | None
    gate_fault: Annotated[
        str | None,
        Field(description="Why what the gate found cannot be read; such a release cannot be promoted."),
    ] = None
    created_at: AwareDatetime
    card: dict[str, Any]
    gate: Gate | None = None


class ReleaseOut(BaseModel):
    """
    A release.
    """

    id: str
    name: str
    aliases: list[str]
    classes: list[ClassOut]
    disagreement_calibrated: bool
    out_of_distribution_check: Annotated[
        bool,
        Field(description="Whether it notices images unlike its own; without, each of its cases is read twice."),
    ]
    metrics_stated_by_maker: Annotated[
        bool,
        Field(
            description="The card does not name this network as the one that its metrics were measured on; neither the gate nor a report uses them."
        ),
    ]
    card_sha256: str
    parent: str | None
    gate_passed: bool | None
    gate_fault: Annotated[
        str | None,
        Field(description="Why what the gate found cannot be read; such a release cannot be promoted."),
    ] = None
    created_at: AwareDatetime


class ReleasesOut(BaseModel):
    """
    Releases, newest first.
    """

    items: list[ReleaseOut]


class RequestOut(BaseModel):
    """
    A planned read, its reason, and its state; `asked_of` was drawn with `probability`, or preferred.
    """

    ordinal: int
    round: str
    arm: str
    u: float
    pi: float
    policy_version: int
    state: str
    due_at: AwareDatetime
    closed_at: AwareDatetime | None
    held_by: str | None
    asked_of: str | None
    probability: float | None


class ResultOut(BaseModel):
    """
    Result of a qualification; `p`: probability of such a result for a typical annotator.
    """

    n: int
    mean: float
    of_pool: float
    difference: float
    low: float
    high: float
    p: float
    passed: bool
    sentences: list[str]


class RetractionIn(BaseModel):
    """
    Why a label is taken back.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    reason: str


class RevisionIn(BaseModel):
    """
    A correction, and why; `blind` only from an outside annotator system.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    label: str
    confidence: float | None = None
    second_choice: str | None = None
    flag: bool = False
    note: str | None = None
    reason: str
    blind: bool | None = None


class RunIn(BaseModel):
    """
    Which set to work through.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    set: UUID


class RunOut(BaseModel):
    """
    A run as its annotator sees it; `item` is the cell that is next, null at the end.
    """

    id: str
    set: str
    purpose: str
    state: str
    n_cells: int
    n_answered: int
    begun_at: AwareDatetime
    finished_at: AwareDatetime | None
    item: ItemOut | None
    result: ResultOut | None


class ScoreMonitorOut(BaseModel):
    """
    Alarm on the champion's clipped log score since it was promoted; `site` null: all.

    Patients are the units, each with the cases of their first day. `recent_loss` is the mean loss (nats per label) of the last 30 days, `reference_loss` that of `n_reference` units before: those of the reference period, null without any. The alarm is on from the day on which the capital reached its threshold until a champion is promoted, the same one too.
    """

    site: str | None
    since: AwareDatetime
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
    warnings: list[str]


class SelectionOut(BaseModel):
    """
    How the labelled cases were selected; `orders` is empty without weights.

    `n_closed` cases are in the cohort; the first planned read of `n_open` further ones is open; of those in the cohort `n_waiting` wait for another planned read.
    """

    n_closed: int
    n_open: int
    n_waiting: int = 0
    outside_share: float
    orders: list[WeightsOut]
    cannot_tell: list[CannotTellOut]


class SetQualityOut(BaseModel):
    """
    Coverage of the prediction sets on the evaluation partition; each patient counts once.

    `labels`: 0 for sets of predictions, 1 for sets after a label. `by`: all cells, those of one site, or those with one class as answer. `n_without`: cells among them that had no set. `single`: share of the sets of one class.
    """

    labels: int
    by: Literal["all", "site", "class"]
    group: str
    n_patients: int
    n_cells: int
    n_without: int
    coverage: MetricOut
    mean_size: MetricOut
    single: MetricOut


class SetReportOut(BaseModel):
    """
    Cells of a set at its creation; `by_class`: cells by the leading class of their posterior.
    """

    n_candidates: int
    by_class: dict[str, int]
    n_borderline: int
    pass_rates: PassRatesOut | None


class SinceFirst(BaseModel):
    """
    Changes since the first champion, or the reason why they are unknown.
    """

    release: str | None
    is_champion: bool = False
    unknown: str | None = None
    n_cases: int | None = None
    L: MetricOut | None = None
    L_D: MetricOut | None = None


class SiteAgreementOut(BaseModel):
    """
    Agreement about the cases of one site.
    """

    site: str
    n_cases: int
    krippendorff_alpha: MetricOut


class SiteThresholds(BaseModel):
    """
    Thresholds of the cells of one site; of all others where `site` is null. `steps`: see `Thresholds`.
    """

    site: str | None
    n_patients: int
    n_cells: int
    steps: list[list[Any]]


class StepOut(BaseModel):
    """
    Some cases in a row, ten or a multiple: whether the annotator's answers were foreseen as well as expected.
    """

    first: AwareDatetime
    last: AwareDatetime
    surplus: PulledOut


class SubmittedOut(BaseModel):
    """
    The stored label, and what it made of the case; `posterior` is null while the case stays hidden.
    """

    label: LabelOut
    posterior: PosteriorOut | None
    hidden_because: str | None


class TargetsIn(BaseModel):
    """
    New targets; a missing one takes its default.

    `disagreement_gap` and `leading_gap`: how far a predicted share may lie from the observed one; `caught` and `agreement`: at least; `hours`: nine of ten planned reads are answered within them.
    """

    model_config = ConfigDict(
        extra="forbid",
    )
    disagreement_gap: float = 0.1
    leading_gap: float = 0.05
    caught: float = 0.6
    agreement: float = 0.8
    hours: float = 48.0
    reason: str


class TargetsOut(BaseModel):
    """
    Targets in force; version 0 contains the defaults. If-Match needs the version.
    """

    version: int
    disagreement_gap: float
    leading_gap: float
    caught: float
    agreement: float
    hours: float


class TrainedOnOut(BaseModel):
    """
    Cases of the question that were left out because a release was trained on them, or on others of their patient.

    `unknown` where a release carries no digests of its images, or of patients of this service.
    """

    n_left_out: int
    images: Literal["known", "unknown"]
    patients: Literal["known", "unknown"]


class TriageOut(BaseModel):
    """
    Decision on a second read, its reason, and its probability `pi`.
    """

    decision: str
    priority: float
    expected_gain: float | None
    reason: str
    pi: float


class WeightsOut(BaseModel):
    """
    Inverse selection probabilities of the cases with one label (order 1) or two (order 2).
    """

    order: int
    non_response: float
    ess: float
    largest_weight: float
    cells: list[CellOut]


class WithoutAnnotator(BaseModel):
    """
    The judgement with one annotator's labels left out of fit and judgement, or why there is none.
    """

    annotator: str
    failed: str | None = None
    L: MetricOut | None = None
    L_D: MetricOut | None = None
    worse: dict[str, Worse] | None = None


class WorkOut(BaseModel):
    """
    A case of which a read is wanted; `need` is its disagreement probability, 1 without a prediction.
    """

    case: CaseOut
    need: float
    near_duplicate: bool
    requests: list[RequestOut]


class WorklistOut(BaseModel):
    """
    Cases in most need first; `next_cursor` leads to the next page.
    """

    items: list[WorkOut]
    next_cursor: str | None


class Worse(BaseModel):
    """
    By how much a change is worse than by all labels, with the standard error of that difference.
    """

    value: float | None
    se: float | None
