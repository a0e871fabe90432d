"""What the API takes and answers. Made from the OpenAPI document 2ed12392347ba5cb.

``python -m tools.openapi_files`` makes it again; nobody edits it.
"""

# ruff: noqa

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field


class AfterRevealOut(BaseModel):
    """Changes after unblinding; evaluations and fits do not use them."""

    n_labels: int
    """Number of blinded labels."""

    n_revised: int
    """Number of them that their annotator changed after unblinding, to another or the same class."""

    n_retracted: int
    """Number of them that their annotator retracted after unblinding."""

    towards_prediction: int
    """Number of changes from another class to the most probable class, or to none."""

    away_from_prediction: int
    """Number of changes away from the most probable class."""


class AgreementOut(BaseModel):
    """Agreement between annotators; groupings that were not requested are missing."""

    n_cases: int
    """Number of cells."""

    n_labels: int
    """Number of labels."""

    n_annotators: int
    """Number of annotators with labels."""

    level: Literal["nominal", "ordinal"] = "nominal"
    """`nominal`: classes have no order; `ordinal`: they are ordered as in the release."""

    krippendorff_alpha: MetricOut | None = None
    """Krippendorff's alpha over all classes, −1 to 1; 1 is full agreement, 0 is chance. Null without labels."""

    pairs: list[PairAgreementOut] | None = None
    """Agreement of each pair of annotators."""

    annotators: list[AnnotatorAgreementOut] | None = None
    """Agreement of each annotator with the others."""

    classes: list[ClassAgreementOut] | None = None
    """Agreement about each class."""

    sites: list[SiteAgreementOut] | None = None
    """Agreement at each site."""

    rater_marginals: RaterMarginalsOut | None = None
    """Test of whether the annotators use the classes equally often; null without annotator names."""

    corrections: CorrectionsOut | None = None
    """Blinded corrections by annotators with accounts; null if not requested."""

    after_reveal: AfterRevealOut | None = None
    """Changes after unblinding; null if not requested."""

    warnings: list[str]
    """Limits of these numbers, a sentence each."""


class AliasIn(BaseModel):
    """Move of an alias, with the reason."""

    model_config = ConfigDict(
        extra="forbid",
    )
    release: UUID
    """Id of the model release that the alias will name, a UUID."""

    reason: str
    """Reason for the audit log, at most 2,000 characters."""

    password: str | None = None
    """Your password, for signed-in admins. Null or left out: for API keys."""

    despite_gate: bool = False
    """True promotes a model release without a passed promotion check; the reason must explain it. The first champion of an empty service needs no check."""


class AliasOut(BaseModel):
    """An alias and its model release."""

    name: Literal["champion", "challenger"]
    """`champion` predicts and is shown; `challenger` predicts next to it for comparison."""

    release: str
    """Id of the model release that the alias names."""

    revision: int
    """Number of moves so far, 1 or more; the ETag for `If-Match`."""


class AliasesOut(BaseModel):
    """Every alias."""

    items: list[AliasOut]
    """Every alias that is set."""


class AnnotatorAgreementOut(BaseModel):
    """Agreement of one annotator with the others, and confusions."""

    annotator: str
    """Name of the annotator, unique in the service."""

    n_labels: int
    """Number of labels by this annotator."""

    agreement_with_others: MetricOut
    """Probability that another annotator of the same cell gives the same class, 0 to 1."""

    confusion: list[list[float]] | None
    """Probability of each answer for each true class, 0 to 1, by the model of Dawid and Skene: a row per true class, a column per answer, in the order of the release. Null if annotators and classes are too many."""


class AnnotatorsOut(BaseModel):
    """Names of annotators with accounts."""

    items: list[str]
    """Names of annotators with accounts, in alphabetical order."""


class AnswerSetOut(BaseModel):
    """Classes that contain the next annotator's answer for a stated share of new patients."""

    level: float
    """Share of the next annotators' answers that the set contains, 0 to 1, over new patients."""

    classes: list[str] | None
    """Codes of the classes in the set, the most probable first; null without a set, see `reason`."""

    reason: str | None
    """Why there is no set; null if there is one."""

    answers_of: Literal["annotators", "outside"]
    """Annotators whose answers calibrated the set: `annotators` of this service, or those of `outside` systems."""

    site: str | None
    """Site whose cells calibrated the set; null: all sites without a separate calibration."""

    n_patients: int
    """Number of patients whose answers calibrated the set."""

    n_cells: int
    """Number of their cells."""


class AnsweredOut(BaseModel):
    """A stored answer."""

    item: str
    """Id of the cell in the run."""

    label: str
    """Code of the class that you answered."""

    feedback: FeedbackOut | None
    """Answers of others, in training; null in a qualification."""

    run: RunOut
    """The run after this answer."""


class AssignmentIn(BaseModel):
    """An annotator who is to read a cell."""

    model_config = ConfigDict(
        extra="forbid",
    )
    annotator: str
    """Name of the annotator, who must not have met the cell or one with the same image."""


class Attempt(BaseModel):
    """Number, level and limits of an attempt on the champion."""

    number: int
    """Number of the attempt on this champion, 1 or more."""

    level: float
    """Probability of passing by chance that this attempt may use, 0 to 1; it falls with each attempt."""

    level_of_each_loss: float
    """Half of `level`, for each of the two losses, 0 to 1."""

    p_L: float | None
    """One-sided p value of "L does not fall", 0 to 1; null without a standard error."""

    p_L_D: float | None
    """One-sided p value of "L_φ does not fall", 0 to 1; null without a standard error."""

    stability_limit: float | None
    """Largest change for the worse without one annotator, in standard errors; null with too few annotators."""

    max_increase: float | None
    """Increase of a loss in nats that a change plan allows, 0 or more; null without a plan."""


class AuditEventOut(BaseModel):
    """An action on an object."""

    sequence: int
    """Number of the event, 1 or more, without gaps."""

    created_at: AwareDatetime
    """Time of the event, in UTC."""

    actor: str
    """Account that acted; else `command line`, or the kind of job."""

    action: str
    """Kind of event, such as `label.add`, `alias.move` or `job.submit`; new versions add actions."""

    object: str
    """Id of the object: a cell, label, job, release, account or policy version."""

    details: dict[str, Any]
    """Values of the event; keys depend on `action`."""

    reason: str | None
    """Reason that the actor gave; null without one, or after the patient was erased."""

    request_id: str | None
    """`X-Request-ID` of the request; null for events of the worker and of commands."""

    digest: str
    """SHA-256 that chains this event to the previous one, 64 hexadecimal digits."""


class AuditEventsOut(BaseModel):
    """A page of audit events."""

    items: list[AuditEventOut]
    """Events, newest first."""

    next_cursor: str | None
    """Value of `cursor` for the next page; null on the last page."""


class BinOut(BaseModel):
    """One bin of a reliability diagram."""

    low: float
    """Lower end of the bin, a probability from 0 to 1."""

    high: float
    """Upper end of the bin, a probability from 0 to 1."""

    n: int
    """Number of predictions in the bin."""

    mean_prob: float | None
    """Mean predicted probability, 0 to 1; null for an empty bin."""

    mean_freq: float | None
    """Observed frequency, 0 to 1; null for an empty bin."""

    freq_low: float | None
    """Lower end of the 95% interval of the frequency; null for an empty bin."""

    freq_high: float | None
    """Upper end of the 95% interval of the frequency; null for an empty bin."""


class CannotTellOut(BaseModel):
    """Planned reads of one weighting group that ended with "cannot tell"."""

    arm: Literal["triage", "audit"]
    """Why the read was planned: `first`: each cell has one; `triage`: the rule selected the cell; `audit`: random sample; `adjudication`: the labels so far disagree."""

    quintile: int
    """Fifth of the cells by disagreement probability, from 1 to 5, the highest."""

    planned: int
    """Number of planned reads."""

    cannot_tell: int
    """Number of them that ended with "cannot tell"."""


class CapacityOut(BaseModel):
    """Share of disagreements caught when this share of the cases is sent for a second read."""

    value: float | None
    """The estimate, in the unit of the metric; null if no cell could be used."""

    se: float | None
    """Standard error, clustered by patient; null with fewer than two patients."""

    low: float | None
    """Lower end of the 95% interval for these annotators; null without a standard error."""

    high: float | None
    """Upper end of the 95% interval for these annotators; null without a standard error."""

    n: int
    """Number of cells used."""

    dropped: int
    """Number of cells without enough labels."""

    ess: float | None
    """Effective number of cells after weighting, (Σw)²/Σw²; null if not known."""

    clipped: bool
    """True if a negative squared quantity was set to 0 before its root was taken."""

    singleton_mass: float
    """Share of the weight in bins with a single cell, 0 to 1."""

    horvitz_thompson: float | None
    """The weighted sum divided by the number of all cells; null without weights."""

    largest_weight: float | None
    """Largest weight of a cell; null without weights."""

    model_assisted: ModelAssistedOut | None = None
    """The estimate with the help of the predictions of all cells; null without weights."""

    low_new: float | None = None
    """Lower end of the 95% interval for new annotators; null with fewer than three annotators."""

    high_new: float | None = None
    """Upper end of the 95% interval for new annotators; null with fewer than three annotators."""

    capacity: float
    """Share of the cells that get a second read, 0 to 1."""


class CaseOut(BaseModel):
    """A cell with its prediction."""

    id: str
    """Id of the cell, a UUID. Each annotator sees a different id."""

    external_id: str
    """Id of the cell in the laboratory."""

    patient: str | None
    """Code of the patient; null if not given or erased."""

    site: str | None
    """Name of the site; null if not given."""

    specimen: str | None
    """Id of the specimen that the cell belongs to, a UUID; null without one."""

    metadata: dict[str, str]
    """Texts uploaded with the cell, at most 20."""

    width: int
    """Width of the image in pixels."""

    height: int
    """Height of the image in pixels."""

    partition: Literal["calibration", "evaluation"]
    """Part of the cells, split by patient: `calibration` cells fit calibrations, `evaluation` cells measure quality."""

    same_image_as: str | None
    """Id of an older cell with the same pixels; null without one."""

    created_at: AwareDatetime
    """Time of the upload, in UTC."""

    n_labels: int
    """Number of active labels."""

    prediction: PredictionOut | None
    """Prediction of the champion, else of the last model release that predicted the cell; null until there is one."""

    has_field: bool = False
    """True if `GET /v1/cases/{case_id}/field` returns a wider image around the cell."""

    outcome: OutcomeOut | None = None
    """What the cell was settled as; null if it was not, or is open again."""

    class_probs_in_specimen: dict[str, float] | None = None
    """Class probabilities of the cell under its specimen's own mix; null without a specimen. Evaluation uses `class_probs`."""


class CasesOut(BaseModel):
    """A page of cells."""

    items: list[CaseOut]
    """Cells, newest first."""

    next_cursor: str | None
    """Value of `cursor` for the next page; null on the last page."""


class CellOut(BaseModel):
    """Planned and answered cells of one weighting group: an arm and a fifth of the cells."""

    arm: Literal["triage", "audit"]
    """Why the read was planned: `first`: each cell has one; `triage`: the rule selected the cell; `audit`: random sample; `adjudication`: the labels so far disagree."""

    quintile: int
    """Fifth of the cells by disagreement probability, from 1 to 5, the highest."""

    planned: int
    """Number of cells planned for this many labels."""

    answered: int
    """Number of them that have these labels."""

    waiting: int = 0
    """Number of them that may still get these labels in time."""


class ChangeOut(BaseModel):
    """A change, without what it says."""

    at: AwareDatetime
    """Time of the change, in UTC."""

    kind: Literal["case", "label", "posterior", "outcome", "specimen", "release"]
    """What has changed. `case`: a cell; `label`: a label, and perhaps the posterior of its cell; `posterior`: a posterior without a new label, and what follows from it; `outcome`: what a cell was settled as; `specimen`: a specimen; `release`: the champion is another one, or, with the scope `metrics:read`, a release was added."""

    action: Literal["stored", "changed", "withdrawn", "erased"]
    """`stored`, `changed`, `withdrawn` or `erased`."""

    id: str | None
    """Id of what has changed; of a posterior and an outcome that of the cell; null for all of the kind, and for labels that came at once: list those of the cell."""

    case: str | None
    """Id of the cell that this is about; null without one."""

    specimen: str | None
    """Id of the specimen of the cell, whose shares change with it; null without one."""


class ChangesOut(BaseModel):
    """Changes in their order."""

    items: list[ChangeOut]
    """Changes, oldest first; empty if there are no new ones."""

    next_cursor: str
    """Value of `after` for the next request, now or later; never null."""


class ClassAgreementOut(BaseModel):
    """Agreement about one class against all others."""

    class_: Annotated[str, Field(alias="class")]
    """Code of the class."""

    n_labels: int
    """Number of labels with this class."""

    krippendorff_alpha: MetricOut
    """Krippendorff's alpha of this class against all others, −1 to 1; 1 is full agreement, 0 is chance."""


class ClassMetricsOut(BaseModel):
    """Calibration loss, epistemic loss and reliability of one class."""

    class_: Annotated[str, Field(alias="class")]
    """Code of the class."""

    CL: float | None
    """Calibration loss of this class, in units of squared probability; null without enough labels. Its estimate may be slightly negative."""

    calibration_loss: float | None
    """`CL` under its full name, in units of squared probability; null without enough labels."""

    EL: float | None
    """Epistemic loss of this class, in units of squared probability; null without enough labels. Its estimate may be slightly negative."""

    epistemic_loss: float | None
    """`EL` under its full name, in units of squared probability; null without enough labels."""

    bins: list[BinOut]
    """Reliability diagram of this class, from low to high probability."""


class ClassOut(BaseModel):
    """A class of the reading task."""

    code: str
    """Code of the class, unique in the release; labels use it."""

    name: str
    """Name of the class for people."""

    shortcut: str
    """Key that selects the class on the reading page; empty without one."""

    group: str = ""
    """Heading above the class on the reading page; empty without one."""


class CommentIn(BaseModel):
    """A comment on a cell, with a place on its image or without."""

    model_config = ConfigDict(
        extra="forbid",
    )
    text: str
    """The comment, 1 to 2,000 characters."""

    x: float | None = None
    """Place on the image: share of its width from the left, 0 to 1; null or left out: the comment is about the whole cell."""

    y: float | None = None
    """Place on the image: share of its height from the top, 0 to 1; null or left out: the comment is about the whole cell."""


class CommentOut(BaseModel):
    """A comment on a cell."""

    id: str
    """Id of the comment, a UUID."""

    case_id: str
    """Id of the cell, a UUID."""

    author: str
    """Name of the account that wrote the comment."""

    text: str
    """The comment, 1 to 2,000 characters."""

    x: float | None
    """Place on the image: share of its width from the left, 0 to 1; null or left out: the comment is about the whole cell."""

    y: float | None
    """Place on the image: share of its height from the top, 0 to 1; null or left out: the comment is about the whole cell."""

    created_at: AwareDatetime
    """Time of creation, in UTC."""


class CommentsOut(BaseModel):
    """Comments on a cell."""

    items: list[CommentOut]
    """Comments, oldest first."""


class ComparedOut(BaseModel):
    """One metric of the champion, of another release on the same cases, and of their difference."""

    champion: MetricOut
    """The metric of the champion."""

    release: MetricOut
    """The metric of the other model release, on the same cells."""

    change: MetricOut
    """Value of the model release minus value of the champion; negative is better for losses."""


class ComparisonOut(BaseModel):
    """A model release compared with the champion."""

    champion: str
    """Id of the champion."""

    release: str
    """Id of the model release compared with it."""

    partition: Literal["all", "evaluation", "calibration"]
    """`evaluation`: patients that no calibration uses; `calibration`: the others; `all`: both."""

    weighting: Literal["ipw", "none"]
    """`ipw`: labelled cells are weighted by the inverse probability of their selection; `none`: all count the same."""

    n_cases: int
    """Number of cells that both predicted."""

    n_labels: int
    """Number of their labels."""

    n_labelled: int
    """Number of labelled cells that both predicted."""

    n_labelled_not_predicted: int
    """Number of labelled cells without a prediction of the model release."""

    trained_on: TrainedOnOut
    """Cells left out because one of the two was trained on them."""

    metrics: dict[str, ComparedOut]
    """Each metric, by its name in `GET /v1/metrics`."""


class ComponentsOut(BaseModel):
    """Variances of the patient's share by source; the total variance is their sum."""

    cells: float
    """Variance that more reads of the cells can remove, 0 or more."""

    annotators: float
    """Variance that remains because annotators differ, 0 or more."""

    sampling: float
    """Variance because these cells are a sample of the patient's cells, 0 or more; more cells reduce it."""


class ConfidenceOut(BaseModel):
    """Agreement of others with an annotator by confidence."""

    confidence: float
    """Confidence that the annotator gave, 0 to 1."""

    agreement: PulledOut
    """Probability that another annotator agrees, 0 to 1."""


class ConfusionOut(BaseModel):
    """How often an annotator chooses a class if the others choose another or the same."""

    others_say: str
    """Code of the class that the other annotators chose."""

    says: str
    """Code of the class that this annotator chose."""

    share: float
    """Share of such cells in which this annotator chose `says`, 0 to 1, shrunk towards all annotators."""

    low: float
    """Lower end of the 95% interval of `share`."""

    high: float
    """Upper end of the 95% interval of `share`."""

    everybody: float
    """The same share over all annotators, 0 to 1."""

    notable: bool
    """True if the interval excludes the share of all annotators."""


class ConsensusOut(BaseModel):
    """Probabilities of consensus among further annotators, by class; else they are split."""

    at_least: int
    """Number of further annotators that counts as consensus: 4."""

    of: int
    """Number of further annotators: 5."""

    class_probs: dict[str, float]
    """Probability that at least `at_least` of `of` further annotators give the class, by its code, 0 to 1."""

    split: float
    """Probability that no class reaches consensus, 0 to 1; with `class_probs` it sums to 1."""

    pair_probs: dict[str, float]
    """Probability that two further annotators both give the class, by its code, 0 to 1. Labels in pairs can check it, which they cannot do for `class_probs`."""


class CorrectionsOut(BaseModel):
    """Blinded corrections by annotators with accounts."""

    n_labels: int
    """Number of final answers."""

    n_corrected: int
    """Number of them with a correction while blinded."""

    rate: float | None
    """Share of corrected answers, 0 to 1; null without answers."""

    median_seconds: float | None
    """Median time from the first answer to the correction, in seconds; null without corrections."""

    directions: list[DirectionOut]
    """Corrections from one class to another, the most frequent first."""


class DecidingCellOut(BaseModel):
    """A cell of which a further read is worth most."""

    case: str
    """Id of the cell."""

    value: float
    """What one more read of it is worth, 0 or more: the expected fall of the loss at the thresholds in costs of a false alarm, or of the squared error of the shares if the policy's `specimen_goal` is `share`."""


class DecisionIn(BaseModel):
    """An admin's decision with its reason."""

    model_config = ConfigDict(
        extra="forbid",
    )
    kind: Literal["qualified", "withdrawn", "renewed"]
    """`qualified`: the annotator may read; `withdrawn`: no longer; `renewed`: two further attempts at once."""

    reason: str
    """Reason for the audit log, 1 to 2,000 characters."""


class DecisionOut(BaseModel):
    """A decision on an annotator."""

    kind: Literal["passed", "qualified", "withdrawn", "renewed"]
    """`passed`: by a qualification run; `qualified`, `withdrawn` or `renewed`: by an admin."""

    at: AwareDatetime
    """Time of the decision, in UTC."""

    by: str | None
    """Account of the admin; null if a run decided."""

    reason: str | None
    """Reason that the admin gave; null if a run decided."""


class DeclineIn(BaseModel):
    """Reason why a read is declined."""

    model_config = ConfigDict(
        extra="forbid",
    )
    reason: Literal["cannot_tell", "image_quality", "not_my_field", "know_this_case", "other"]
    """`cannot_tell`: the image allows no diagnosis, which closes the read for everyone; `image_quality`, `not_my_field`, `know_this_case`, `other`: another annotator gets it."""

    note: str | None = None
    """Comment for admins, at most 2,000 characters; null or left out: none."""


class DifferenceOut(BaseModel):
    """A decision at a threshold that is another one than was signed."""

    group: str
    """Name of the reporting group."""

    at: float
    """The threshold, a share from 0 to 1."""

    signed: Literal["above", "below", "open"]
    """Decision that was signed: `above`, `below` or `open`."""

    now: Literal["above", "below", "open"]
    """Decision now: `above`, `below` or `open`."""


class DirectionOut(BaseModel):
    """How often one class was corrected to another."""

    before: str
    """Code of the class of the first answer."""

    after: str
    """Code of the class of the correction."""

    count: int
    """Number of such corrections."""


class DrawsOut(BaseModel):
    """Outcome of planned reads assigned at random."""

    n_answered: int
    """Number of answered reads whose annotator was drawn at random."""

    n_as_drawn: int
    """Number of them answered by the annotator drawn last."""

    n_drawn_again: int
    """Number of new draws after a skip or a departure."""

    n_overdue: int
    """Number of overdue open reads, which any annotator may take."""


class DriftOut(BaseModel):
    """Shift of images and labels from the training data of the model release."""

    site: str | None
    """Name of the site; null: all sites."""

    n_cases: int
    """Number of cells."""

    stain_shift: list[float] | None
    """Shift of the three stain components from the training cells, in their standard deviations; null if not measured."""

    feature_shift: float | None
    """Shift of the network's features from the training cells, in standard deviations of one feature, 0 or more; null if not measured."""

    unfamiliar_share: float | None
    """Share of out-of-distribution cells, 0 to 1; null if the release has no such check."""

    label_shift: float | None
    """Distance of the label frequencies from the training labels, 0 to 1; null without labels."""

    label_p_value: float | None
    """The p value of no shift of the labels, 0 to 1; null without labels or with too few patients."""

    mix_change: MixChangeOut | None = None
    """Largest change of a class's share, estimated from the predictions; null without reference labels or with one patient."""

    warnings: list[str]
    """Limits of these numbers, a sentence each."""


class DurationOut(BaseModel):
    """
    Hours by which half and nine tenths of what was begun had ended, null where fewer have.

    `low` and `high`: 95% interval of the hours by which nine tenths had; null where it has no end.
    """

    n: int
    """Number of planned reads of the last 13 weeks."""

    n_open: int
    """Number of them without an answer yet."""

    median: float | None
    """Hours by which half of them were answered; null if fewer are."""

    nine_tenths: float | None
    """Hours by which 90% of them were answered; null if fewer are."""

    low: float | None
    """Lower end of the 95% interval of `nine_tenths`; null if unknown."""

    high: float | None
    """Upper end of the 95% interval of `nine_tenths`; null if unknown."""


class EvaluationIn(BaseModel):
    """Options of a frozen evaluation."""

    model_config = ConfigDict(
        extra="forbid",
    )
    release: UUID | None = None
    """Id of the model release, a UUID; null or left out: the champion."""

    partition: Literal["all", "evaluation", "calibration"] = "evaluation"
    """`evaluation`: patients that no calibration uses; `calibration`: the others; `all`: both."""

    weighting: Literal["ipw", "none"] = "ipw"
    """`ipw`: labelled cells are weighted by the inverse probability of their selection; `none`: all count the same."""

    since: AwareDatetime | None = None
    """Only cells stored at this time or later, with a time zone; null or left out: from the first."""

    until: AwareDatetime | None = None
    """Only cells stored before this time, with a time zone; null or left out: to the last."""

    site: str | None = None
    """Only cells of this site, 1 to 200 characters; null or left out: all sites."""


class EvaluationOut(BaseModel):
    """A frozen evaluation."""

    id: str
    """Id of the evaluation and of its job, a UUID."""

    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    """State of its job: `queued`, `running`, `succeeded`, `failed` or `cancelled`."""

    progress: float
    """Share of the work done, 0 to 1."""

    message: str
    """Current step, in words; may be empty."""

    error: str | None
    """Why it failed; null unless `state` is `failed`."""

    created_at: AwareDatetime
    """Time of creation, in UTC."""

    question: EvaluationQuestionOut
    """The options that it was requested with."""

    release: str | None
    """Id of the evaluated model release; null until it succeeded."""

    snapshot_sha256: str | None
    """SHA-256 of the frozen labels and predictions, 64 hexadecimal digits; null until it succeeded."""

    document: dict[str, Any] | None
    """The metrics as in `GET /v1/metrics`, with `question` and `agreement`; null in lists and until it succeeded."""


class EvaluationQuestionOut(BaseModel):
    """Options that a frozen evaluation was requested with."""

    release: str | None
    """Id of the model release, a UUID; null: the champion."""

    partition: Literal["all", "evaluation", "calibration"]
    """`evaluation`: patients that no calibration uses; `calibration`: the others; `all`: both."""

    weighting: Literal["ipw", "none"]
    """`ipw`: labelled cells are weighted by the inverse probability of their selection; `none`: all count the same."""

    since: AwareDatetime | None
    """Only cells stored at this time or later; null: from the first."""

    until: AwareDatetime | None
    """Only cells stored before this time; null: to the last."""

    site: str | None
    """Only cells of this site; null: all sites."""


class EvaluationsOut(BaseModel):
    """Frozen evaluations."""

    items: list[EvaluationOut]
    """Frozen evaluations, newest first."""


class Fault(BaseModel):
    """A value that is not acceptable: its place in the request, and what is wrong with it."""

    where: list[str | int]
    """Path to the fault: `body`, `query`, `path` or `header`, then the name of the field."""

    what: str
    """Reason why the value is not acceptable."""


class FeedbackOut(BaseModel):
    """How others answered a cell of a training run."""

    label: str
    """Code of the class that you answered."""

    label_counts: dict[str, int] | None
    """Number of labels of others, by class code; null while the cell is hidden from you."""

    class_probs: dict[str, float] | None
    """Probability of each class for the next annotator's answer, 0 to 1, by class code; null while the cell is hidden from you."""

    sentences: list[str]
    """The numbers above as English sentences, in reading order."""


class FindingsOut(BaseModel):
    """
    Numbers of the sentences; null if there are too few labels.

    `disagreement`: of the fifth of the cases with the highest disagreement probability. `leading`: of the cases whose leading class has a probability of .8 or more, or of the fifth where that is highest.
    """

    n_cases: int
    """Number of cells."""

    n_labels: int
    """Number of labels."""

    left_out: list[LeftOutOut]
    """Labels that no estimate uses, by reason; with `n_labels` they are all labels."""

    disagreement: SaidOut | None
    """Disagreement between two annotators in the fifth of the cells with the highest disagreement probability; null with too few labels."""

    leading: SaidOut | None
    """Confident predictions: cells whose leading class has a probability of at least 0.8, or the fifth with the highest one; null with too few labels."""

    second_reads: SecondReadsOut
    """Second reads that the policy in force requests, and what they catch."""

    agreement: MetricOut | None
    """Probability that two annotators of a cell agree, 0 to 1; null with too few labels."""

    answering: DurationOut
    """Time from the request of a planned read to its answer."""

    sensitivity: list[SensitivityOut]
    """Sensitivity for each class with labels, the most frequent class first."""


class Gate(BaseModel):
    """Result of the promotion check."""

    passed: bool
    """True if the candidate may become champion."""

    reasons: list[str]
    """Why it did not pass, a sentence each; empty if it passed."""

    L: MetricOut
    """Change of the expected squared loss L from the champion to the candidate; negative is better."""

    L_D: MetricOut
    """Change of the disagreement loss L_φ from the champion to the candidate; negative is better."""

    without_annotator: list[WithoutAnnotator]
    """The check repeated without each annotator in turn."""

    findings: list[str] | None = None
    """Other findings and skipped checks, a sentence each."""

    champion: str | None = None
    """Id of the champion it was compared with; null on cards of older versions."""

    attempt: Attempt | None = None
    """Number, level and limits of this attempt; null on cards of older versions."""

    since_first: SinceFirst | None = None
    """Changes since the first champion; null on cards of older versions."""


class GroupOut(BaseModel):
    """Metrics of one site or month."""

    group: str
    """Name of the site, or month as `YYYY-MM`."""

    n_cases: int
    """Number of cells."""

    metrics: dict[str, MetricOut]
    """Headline metrics by name, as in `metrics` of the whole document."""


class GroupShareOut(BaseModel):
    """Share of a reporting group."""

    group: str
    """Name of the reporting group, or the code of a class if the policy has no groups."""

    count: int
    """Number of cells of the group: by outcome, else by the leading class in the specimen. A split cell counts nowhere."""

    slide: ShareOut
    """Share that the panel of experts would find on these cells."""

    patient: ShareOut
    """Share in the patient, of which these cells are a sample; thresholds use this share."""

    counted: list[Any] | None
    """95 % limits, 0 to 1, of the share of labels of the group (Clopper and Pearson), if every cell has a label; else null."""

    components: ComponentsOut
    """Variance of the patient's share by source; the three add up."""

    thresholds: list[ThresholdOut]
    """Decisions at the thresholds of the policy."""


class HealthOut(BaseModel):
    """The process responds."""

    status: Literal["ok"]
    """Always `ok`."""


class ImportOut(BaseModel):
    """An import: its job, counts, and a page of rows."""

    job: JobOut
    """The job that runs the import."""

    counts: dict[str, int]
    """Number of rows by result: `created`, `known`, `failed`, `ignored`, `differs`."""

    labels: dict[str, int]
    """Number of labels by result: `stored`, `known`, `failed`."""

    rows: list[ImportRowOut]
    """Rows in the order of the manifest, then files without a row, then failed labels."""

    next_cursor: str | None
    """Value of `cursor` for the next page; null on the last page."""


class ImportRowOut(BaseModel):
    """Result of one row; a known cell is never changed by an import."""

    row: int
    """Number of the row in the manifest, 1 or more."""

    external_id: str
    """Id of the cell in the laboratory; for an ignored file its name."""

    status: Literal["created", "known", "failed", "ignored"]
    """`created`: a new cell; `known`: the same cell was stored earlier; `failed`: see `detail`; `ignored`: a file without a row."""

    case_id: str | None
    """Id of the cell; null if the row created or found none."""

    detail: str
    """Reason for a failed or ignored row, or how a known cell differs from it; else empty."""

    place: str | None = None
    """File and row of a label that failed; null for cells and files."""


class InvitationIn(BaseModel):
    """An annotator to invite, and the cells that they are asked to read."""

    model_config = ConfigDict(
        extra="forbid",
    )
    annotator: str
    """Name of the annotator, 1 to 100 characters. Without an account of this name one is created, for a guest: they are given the reads that are assigned to them and no others."""

    cases: list[UUID]
    """Ids of the cells to read, 1 to 100. Each open read is assigned to the annotator; a cell without one gets an adjudication."""


class InvitationOut(BaseModel):
    """An invitation, with its link."""

    url: str
    """Link that signs the annotator in once. The service stores no copy."""

    expires_at: AwareDatetime
    """Time from which on the link no longer works, in UTC: 72 hours after its creation."""

    annotator: str
    """Name of the annotator, 1 to 100 characters. Without an account of this name one is created, for a guest: they are given the reads that are assigned to them and no others."""


class ItemOut(BaseModel):
    """A cell of a run: its image and the classes, nothing else."""

    id: str
    """Id of the cell in the run, a UUID."""

    image: str
    """Path of the image, relative to the address of the service."""

    position: int
    """Number of cells before this one in the run."""

    classes: list[ClassOut]
    """Classes to choose from, in the order of the release."""


class JobOut(BaseModel):
    """A background job."""

    id: str
    """Id of the job, a UUID."""

    kind: Literal["check", "evaluation", "import", "judgement", "prediction", "readers", "recalibration", "report"]
    """Work of the job: `import`, `evaluation`, `recalibration`, `prediction` (a release predicts stored cells), `judgement` (promotion check), `readers` (annotator model), `report`, `check` (dry run of an import)."""

    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    """`queued` and `running` jobs are open; `succeeded`, `failed` and `cancelled` jobs have ended."""

    parameters: dict[str, Any]
    """Requested values; keys depend on `kind`."""

    progress: float
    """Share of the work done, 0 to 1."""

    message: str
    """Current step, in words; may be empty."""

    attempts: int
    """Number of times a worker has started the job."""

    cancel_requested: bool
    """True if someone cancelled the job after it had started."""

    result: dict[str, Any] | None
    """Result; keys depend on `kind`. Null unless `state` is `succeeded`."""

    error: str | None
    """Why the job failed; null unless `state` is `failed`."""

    created_at: AwareDatetime
    """Time of the request, in UTC."""

    started_at: AwareDatetime | None
    """Start of the first attempt, in UTC; null while queued."""

    ended_at: AwareDatetime | None
    """End of the job, in UTC; null while open."""


class JobsOut(BaseModel):
    """Jobs, newest first."""

    items: list[JobOut]
    """Jobs, newest first; at most 200."""


class LabelBatchIn(BaseModel):
    """Labels of an outside annotator system."""

    model_config = ConfigDict(
        extra="forbid",
    )
    labels: list[OutsideLabelIn]
    """Labels, 1 to 1,000."""


class LabelBatchOut(BaseModel):
    """Results of the labels of a request, in its order."""

    results: list[LabelResultOut]
    """One result per label, in the order of the request."""

    n_stored: int
    """Number of labels that this request has stored."""

    n_known: int
    """Number of labels that were stored already."""

    n_refused: int
    """Number of labels that were refused."""


class LabelIn(BaseModel):
    """A label of an outside annotator system."""

    model_config = ConfigDict(
        extra="forbid",
    )
    label: str
    """Code of the class, one of the codes of the read or of the release."""

    confidence: float | None = None
    """Your confidence in the class, 0 to 1; null or left out: not given."""

    second_choice: str | None = None
    """Code of the class that you think next likely, another one than `label`; null or left out: none."""

    flag: bool = False
    """True asks admins to look at the cell."""

    note: str | None = None
    """Comment for admins, at most 2,000 characters; null or left out: none."""

    annotator: str | None = None
    """Name of the annotator in the outside system, 1 to 100 characters; null or left out is an error."""

    blind: bool | None = None
    """True if the annotator saw neither the prediction nor other labels. Null or left out is an error; only blinded labels enter posteriors and evaluations."""

    round: Literal["planned", "adjudication"] | None = None
    """`planned`: an independent read; `adjudication`: a decision after disagreement. Null or left out: `planned`."""

    at: AwareDatetime | None = None
    """Time when the annotator gave the label, ISO 8601 with a time zone; at most five minutes ahead. Null or left out: not known."""


class LabelOut(BaseModel):
    """A label as stored."""

    id: str
    """Id of the label, a UUID."""

    case_id: str
    """Id of the cell, a UUID."""

    annotator: str
    """Name of the annotator, unique in the service."""

    label: str | None
    """Code of the class; null for a retraction."""

    confidence: float | None
    """Confidence that the annotator gave, 0 to 1; null if not given."""

    second_choice: str | None
    """Code of the class that the annotator thinks next likely; null if not given."""

    flagged: bool
    """True if the annotator asks admins to look at the cell."""

    note: str | None
    """Comment of the annotator; null without one, or after the patient was erased."""

    blind: bool
    """True if the label was given without knowledge of the prediction and of other labels."""

    round: Literal["planned", "adjudication"] | None
    """`planned` or `adjudication`. Null to annotators while the cell is hidden, since an adjudication would reveal a disagreement."""

    late: bool
    """True if the lease had expired and another annotator had the cell; late labels enter no evaluation."""

    kind: Literal["label", "correction", "revision", "retraction"]
    """`label`: a first answer; `correction`: a change while blinded; `revision`: a change after unblinding; `retraction`: the label is taken back."""

    supersedes: str | None
    """Id of the label that this one replaces; null for a first answer."""

    post_reveal: bool
    """True if it changes a label after the prediction or other labels were shown; such changes enter no evaluation."""

    reason: str | None
    """Reason of a revision or retraction; null for others, or after the patient was erased."""

    reading_seconds: float | None
    """Time from the display of the cell to the label, in seconds; null for outside labels."""

    at: AwareDatetime | None = None
    """Time when an outside annotator gave the label, in UTC; null if not known."""

    created_at: AwareDatetime
    """Time of creation, in UTC."""


class LabelResultOut(BaseModel):
    """Result of one label."""

    external_id: str
    """External id of the cell as sent."""

    annotator: str | None
    """Name of the annotator as sent; null if there was none."""

    status: Literal["stored", "known", "refused"]
    """`stored`: by this request; `known`: the annotator has this same label of the cell already; `refused`: nothing is stored, see `detail`."""

    label_id: str | None = None
    """Id of the stored or known label, a UUID; null if it was refused."""

    detail: str | None = None
    """Why the label was refused; null if it was not."""


class LabelsOut(BaseModel):
    """Labels of a cell."""

    items: list[LabelOut]
    """Labels, oldest first."""


class LeftOutOut(BaseModel):
    """Labels that no estimate uses, for one reason."""

    reason: Literal[
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
    """Why the labels are not used, the first reason that applies: `not-blinded`, `adjudication`, `late` or `correctable` answers, `withdrawn` ones; `no-prediction` of the cell, `trained-on` it, other `partition`, `other-cells` by the filters, `other-class`; first read `open`; labels of an `outside` system, another planned read `unanswered`."""

    n_labels: int
    """Number of these labels."""


class LimitOut(BaseModel):
    """A limit and its current use."""

    name: str
    """Name of the limit, as in docs/reference/limits.md."""

    per: str
    """Scope of the limit, such as `account`, `address` or `server process`."""

    unit: Literal["requests", "connections", "transactions", "attempts", "cores", "bytes", "seconds"]
    """Unit of `size`: `requests`, `connections`, `transactions`, `attempts`, `cores`, `bytes` or `seconds`."""

    size: int | None
    """Limit in its unit; null: unlimited."""

    queue: int | None
    """Number of requests that may wait; null: any number."""

    wait_seconds: float | None
    """Longest wait in seconds; null: as long as it takes."""

    in_use: int | None = None
    """Current use in `unit`, by the account or address that uses most; null if not counted."""

    waiting: int | None = None
    """Number of requests that wait now; null if not counted."""


class MetricOut(BaseModel):
    """One estimate."""

    value: float | None
    """The estimate, in the unit of the metric; null if no cell could be used."""

    se: float | None
    """Standard error, clustered by patient; null with fewer than two patients."""

    low: float | None
    """Lower end of the 95% interval for these annotators; null without a standard error."""

    high: float | None
    """Upper end of the 95% interval for these annotators; null without a standard error."""

    n: int
    """Number of cells used."""

    dropped: int
    """Number of cells without enough labels."""

    ess: float | None
    """Effective number of cells after weighting, (Σw)²/Σw²; null if not known."""

    clipped: bool
    """True if a negative squared quantity was set to 0 before its root was taken."""

    singleton_mass: float
    """Share of the weight in bins with a single cell, 0 to 1."""

    horvitz_thompson: float | None
    """The weighted sum divided by the number of all cells; null without weights."""

    largest_weight: float | None
    """Largest weight of a cell; null without weights."""

    model_assisted: ModelAssistedOut | None = None
    """The estimate with the help of the predictions of all cells; null without weights."""

    low_new: float | None = None
    """Lower end of the 95% interval for new annotators; null with fewer than three annotators."""

    high_new: float | None = None
    """Upper end of the 95% interval for new annotators; null with fewer than three annotators."""


class MetricsOut(BaseModel):
    """The document of `secondread evaluate`, with its cells and weights."""

    release: str
    """Id of the evaluated model release."""

    partition: Literal["all", "evaluation", "calibration"]
    """`evaluation`: patients that no calibration uses; `calibration`: the others; `all`: both."""

    weighting: Literal["ipw", "none"]
    """`ipw`: labelled cells are weighted by the inverse probability of their selection; `none`: all count the same."""

    n_cases: int
    """Number of evaluated cells."""

    n_labels: int
    """Number of their labels that count."""

    n_classes: int
    """Number of classes."""

    n_bins: int
    """Number of bins of each reliability diagram."""

    debias: Literal["pair", "paper", "none"]
    """Bias correction of CL: `pair`: pairs of cells in a bin; `paper`: as in the publication; `none`: uncorrected."""

    metrics: dict[str, MetricOut]
    """Each metric by its name, such as `L`, `EL`, `CL`, `DL`, `L_D`, `skill` or `agreement`; docs/metrics.md defines them."""

    classes: list[ClassMetricsOut]
    """Calibration and epistemic loss of each class, with its reliability diagram."""

    class_bins: list[BinOut]
    """Reliability diagram over all classes."""

    disagreement_bins: list[BinOut]
    """Reliability diagram of the disagreement probability."""

    warnings: list[str]
    """Limits of these numbers, a sentence each."""

    selection: SelectionOut
    """How the labelled cells were selected."""

    posterior_gain: MetricOut | None
    """Fall of the log loss of a left-out label thanks to the other labels of its cell, in nats; null with too few labels."""

    triage_curve: list[CapacityOut]
    """Share of disagreements that second reads catch, for increasing shares of the cells."""

    drift: list[DriftOut]
    """Shift from the training data, over all cells and for each site."""

    score_monitor: list[ScoreMonitorOut] | None = None
    """Alarm on a champion that has become worse, over all cells and for each site."""

    groups: list[GroupOut]
    """Headline metrics of each group; empty without `group_by`."""

    trained_on: TrainedOnOut | None = None
    """Cells left out because the model release was trained on them; null on older documents."""

    answer_sets: PublishedSets | None = None
    """Prediction sets of the model release; null if it has none."""


class MixChangeOut(BaseModel):
    """Largest change of a class's share, estimated from the predictions."""

    class_code: str
    """Code of the class whose share has changed most."""

    change: float
    """Estimated share of the class less its share of the training labels, −1 to 1."""

    low: float
    """Lower end of the 95% interval, which holds for all classes together."""

    high: float
    """Upper end of that interval."""


class ModelAssistedOut(BaseModel):
    """A mean with the help of what is known of all cases: predictions and first labels."""

    value: float | None
    """The estimate, in the unit of the metric; null if no cell could be used."""

    se: float | None
    """Standard error, clustered by patient; null with fewer than two patients."""

    low: float | None
    """Lower end of the 95% interval; null without a standard error."""

    high: float | None
    """Upper end of the 95% interval; null without a standard error."""


class MonitorStepOut(BaseModel):
    """Alarm statistic of the champion at the end of a day."""

    day: date
    """Day, in UTC."""

    n_units: int
    """Number of patients counted by the end of the day."""

    log10_capital: float
    """Decimal logarithm of the capital of the alarm; the alarm starts at `log10_threshold`."""


class NamedReaderOut(BaseModel):
    """Parameters of one annotator."""

    annotator: str
    """Name of the annotator, unique in the service."""

    n_labels: int
    """Number of labels in the fit."""

    confusions: dict[str, dict[str, float]]
    """Probability of each answer given the true opinion, 0 to 1: `confusions[opinion][answer]`; each row sums to 1."""

    remark: str | None
    """Main difference of the annotator from the population, in a sentence; null without one."""


class OutcomeIn(BaseModel):
    """What a cell is settled as: a class, split, or by rule."""

    model_config = ConfigDict(
        extra="forbid",
    )
    class_: Annotated[str | None, Field(alias="class")] = None
    """Code of the class. Null or left out: with `split` or `by_rule`."""

    split: bool = False
    """True if the cell is settled without a class, since experts differ."""

    by_rule: bool = False
    """True if the rule decides: the class of more than half of at least three final blinded labels, else split once the policy allows no further label or no annotator is left."""

    reason: str | None = None
    """Reason of the outcome, 1 to 2,000 characters. Null or left out: with `by_rule`."""


class OutcomeOut(BaseModel):
    """What a cell was settled as."""

    class_: Annotated[str | None, Field(alias="class")]
    """Code of the class; null if split."""

    split: bool
    """True if the cell was settled without a class, since experts differ."""

    rule: Literal["majority", "split"] | None
    """`majority`: more than half of the final blinded labels name the class; `split`: no class has a majority. Null if a person decided."""

    by: str | None
    """Name of the person who decided; null for a rule."""

    at: AwareDatetime
    """Time of the decision, in UTC."""

    reason: str | None
    """Reason that the person gave; null for a rule, or after the patient was erased."""


class OutsideLabelIn(BaseModel):
    """One of many labels of an outside annotator system."""

    model_config = ConfigDict(
        extra="forbid",
    )
    label: str
    """Code of the class, one of the codes of the read or of the release."""

    confidence: float | None = None
    """Your confidence in the class, 0 to 1; null or left out: not given."""

    second_choice: str | None = None
    """Code of the class that you think next likely, another one than `label`; null or left out: none."""

    flag: bool = False
    """True asks admins to look at the cell."""

    note: str | None = None
    """Comment for admins, at most 2,000 characters; null or left out: none."""

    annotator: str | None = None
    """Name of the annotator in the outside system, 1 to 100 characters; null or left out is an error."""

    blind: bool | None = None
    """True if the annotator saw neither the prediction nor other labels. Null or left out is an error; only blinded labels enter posteriors and evaluations."""

    round: Literal["planned", "adjudication"] | None = None
    """`planned`: an independent read; `adjudication`: a decision after disagreement. Null or left out: `planned`."""

    at: AwareDatetime | None = None
    """Time when the annotator gave the label, ISO 8601 with a time zone; at most five minutes ahead. Null or left out: not known."""

    external_id: str
    """External id of the cell, 1 to 200 characters."""


class OwnLabelIn(BaseModel):
    """A label that ends a read."""

    model_config = ConfigDict(
        extra="forbid",
    )
    label: str
    """Code of the class, one of the codes of the read or of the release."""

    confidence: float | None = None
    """Your confidence in the class, 0 to 1; null or left out: not given."""

    second_choice: str | None = None
    """Code of the class that you think next likely, another one than `label`; null or left out: none."""

    flag: bool = False
    """True asks admins to look at the cell."""

    note: str | None = None
    """Comment for admins, at most 2,000 characters; null or left out: none."""


class OwnPracticeOut(BaseModel):
    """Qualification, sets and runs of an annotator."""

    required: bool
    """True if the policy requires a qualification."""

    may_read: bool
    """True if reads are assigned to you."""

    because: Literal["not-required", "passed", "qualified", "earlier-labels", "withdrawn", "not-yet"]
    """`not-required`: no qualification needed; `passed`: by a run; `qualified`: by an admin; `earlier-labels`: you labelled before the requirement; `withdrawn`: by an admin; `not-yet`: still to pass."""

    sets: list[OwnSetOut]
    """Sets that you can work on."""

    runs: list[RunOut]
    """Your runs, newest first."""


class OwnReadingOut(BaseModel):
    """Statistics of an annotator, next to the others."""

    annotator: str
    """Name of the annotator, unique in the service."""

    until: AwareDatetime
    """Time until which reads count, in UTC: the last Monday."""

    n_reads: int
    """Number of reads, in steps of ten."""

    n_compared: int
    """Number of reads of closed cells that others read as well, in steps of ten."""

    seconds: PulledOut | None
    """Typical time per read in seconds, a geometric mean; null without timed reads."""

    cannot_tell: PulledOut | None
    """Share of reads that ended with "cannot tell", 0 to 1; null with fewer than ten reads."""

    self_agreement: PulledOut | None
    """Intra-rater agreement: share of repeated cells with the same answer, 0 to 1; null with fewer than ten repeats."""

    agreement: PulledOut | None
    """Probability that another annotator of the cell agrees, 0 to 1; null with fewer than ten compared reads."""

    agreement_surplus: PulledOut | None
    """`agreement` minus its expectation for a typical annotator on the same cells, −1 to 1; null with fewer than ten compared reads."""

    confusions: list[ConfusionOut]
    """How often this annotator chooses each class, given the class of the others."""

    confidence: list[ConfidenceOut]
    """Agreement of the others, by the confidence given."""

    steps: list[StepOut]
    """Agreement over time, in groups of ten cells or a multiple."""

    drift: PulledOut | None
    """Difference of the last steps from those before, −1 to 1; null with too few steps."""

    sentences: list[str]
    """The numbers above as English sentences, in reading order."""


class OwnSetOut(BaseModel):
    """A set for an annotator."""

    id: str
    """Id of the set, a UUID."""

    name: str
    """Name of the set."""

    purpose: Literal["training", "qualification"]
    """`training`: feedback after each answer; `qualification`: a result at the end."""

    n_per_run: int
    """Number of cells in a run."""

    run: str | None
    """Id of your open run of this set; null without one."""

    not_now: str | None
    """Why you cannot begin yet, in a sentence; null if you can."""


class PairAgreementOut(BaseModel):
    """Agreement of two annotators."""

    annotators: list[str]
    """Names of the two annotators."""

    cohen_kappa: MetricOut
    """Cohen's kappa, −1 to 1; 1 is full agreement, 0 is chance."""


class PassRatesOut(BaseModel):
    """Simulated pass rates of a run of a set."""

    like_the_others: float
    """Probability of passing for an annotator like the others, 0 to 1, simulated."""

    guessing: float
    """Probability of passing for someone who guesses, 0 to 1, simulated."""

    confusing: dict[str, float]
    """Probability of passing for someone who takes one class for another half of the time, 0 to 1, by the code of the class."""


class PoliciesOut(BaseModel):
    """Every version of the policy."""

    items: list[PolicyOut]
    """Versions, newest first."""

    draws: DrawsOut | None
    """Outcome of reads assigned at random; null before the first draw."""


class PolicyIn(BaseModel):
    """A complete new version of the policy; missing fields take their defaults."""

    model_config = ConfigDict(
        extra="forbid",
    )
    rule: Literal["disagreement", "expected_gain", "capacity", "graded", "specimen_value"] = "disagreement"
    """Rule for second reads: `disagreement`: disagreement probability above `threshold`; `expected_gain`: expected gain of a label above `threshold`; `capacity`: the most uncertain cells up to `capacity_per_day`; `graded`: a probability that grows with disagreement, up to `capacity_per_day`; `specimen_value`: the cells of each specimen whose second read is worth most for `specimen_goal`, up to `reads_per_specimen`."""

    threshold: float | None = None
    """Limit above which a cell gets a second read, 0 to below 1; required for `disagreement` and `expected_gain`, else null."""

    capacity_per_day: int | None = None
    """Second reads per day, 1 to 1,000,000; required for `capacity` and `graded`, else null."""

    audit_rate: float = 0.1
    """Probability of a random-sample second read for other cells, above 0 to 1."""

    target_error: float = 0.02
    """Expected squared error of the class probabilities at which labels suffice, above 0 to below 2."""

    adjudicate_below: float | None = 0.9
    """Probability of the majority class below which another annotator is asked, above 0 to below 1; null: no adjudication."""

    max_labels: int = 5
    """Number of labels at which no further annotator is asked, 2 to 100."""

    reveal: Literal["after_commit", "after_case_closed", "never"] = "after_case_closed"
    """When annotators see prediction and other labels: `after_commit` of their label, `after_case_closed`, or `never`."""

    lease_seconds: int = 600
    """Time to answer a read, in seconds, 30 to 86,400."""

    due_days: int = 7
    """Time in which a planned read should be answered, in days, 1 to 365."""

    repeat_rate: float = 0.02
    """Share of reads that repeat a cell to measure intra-rater agreement, 0 to 0.1."""

    draw_readers: bool = False
    """True assigns each read to an annotator drawn at random."""

    require_qualification: bool = False
    """True gives reads only to qualified annotators."""

    reporting_groups: Annotated[list[ReportingGroupIn], Field(validate_default=True)] = []
    """Classes whose shares of a specimen are reported together; each class belongs to one group at most."""

    reads_per_specimen: int | None = None
    """Cells of each specimen that are read twice, 1 to 500; required for `specimen_value`, else null."""

    specimen_goal: Literal["share", "decision"] | None = None
    """What the cells of a specimen are chosen for: `decision`, at the thresholds of the groups, or `share`; null unless the rule is `specimen_value`, which takes `decision` by default."""

    urgent: Annotated[list[UrgentClassIn], Field(validate_default=True)] = []
    """Classes that bring a patient forward: if a new cell's probability of `class` is more than `above`, all open reads of its patient are due within `hours`. Cells without a patient keep their due date."""

    reason: str
    """Reason for the audit log, 1 to 200 characters."""


class PolicyOut(BaseModel):
    """A version of the policy."""

    version: int
    """Version of the policy, 1 or more."""

    current: bool
    """True for the version in force."""

    rule: Literal["disagreement", "expected_gain", "capacity", "graded", "specimen_value"]
    """Rule for second reads: `disagreement`: disagreement probability above `threshold`; `expected_gain`: expected gain of a label above `threshold`; `capacity`: the most uncertain cells up to `capacity_per_day`; `graded`: a probability that grows with disagreement, up to `capacity_per_day`; `specimen_value`: the cells of each specimen whose second read is worth most for `specimen_goal`, up to `reads_per_specimen`."""

    threshold: float | None
    """Limit above which a cell gets a second read, 0 to below 1; required for `disagreement` and `expected_gain`, else null."""

    capacity_per_day: int | None
    """Second reads per day, 1 to 1,000,000; required for `capacity` and `graded`, else null."""

    audit_rate: float
    """Probability of a random-sample second read for other cells, above 0 to 1."""

    target_error: float
    """Expected squared error of the class probabilities at which labels suffice, above 0 to below 2."""

    adjudicate_below: float | None
    """Probability of the majority class below which another annotator is asked, above 0 to below 1; null: no adjudication."""

    max_labels: int
    """Number of labels at which no further annotator is asked, 2 to 100."""

    reveal: Literal["after_commit", "after_case_closed", "never"]
    """When annotators see prediction and other labels: `after_commit` of their label, `after_case_closed`, or `never`."""

    lease_seconds: int
    """Time to answer a read, in seconds, 30 to 86,400."""

    due_days: int
    """Time in which a planned read should be answered, in days, 1 to 365."""

    repeat_rate: float
    """Share of reads that repeat a cell to measure intra-rater agreement, 0 to 0.1."""

    draw_readers: bool
    """True assigns each read to an annotator drawn at random."""

    require_qualification: bool
    """True gives reads only to qualified annotators."""

    reporting_groups: list[ReportingGroupOut]
    """Classes whose shares of a specimen are reported together; each class belongs to one group at most."""

    reads_per_specimen: int | None
    """Cells of each specimen that are read twice, 1 to 500; required for `specimen_value`, else null."""

    specimen_goal: Literal["share", "decision"] | None
    """What the cells of a specimen are chosen for: `decision`, at the thresholds of the groups, or `share`; null unless the rule is `specimen_value`, which takes `decision` by default."""

    urgent: list[UrgentClassOut]
    """Classes that bring a patient forward: if a new cell's probability of `class` is more than `above`, all open reads of its patient are due within `hours`. Cells without a patient keep their due date."""

    reason: str
    """Reason of the change."""

    created_at: AwareDatetime
    """Time of creation, in UTC."""


class PosteriorOut(BaseModel):
    """The distribution after all active blinded labels."""

    class_probs: dict[str, float]
    """Probability of each class, by its code, 0 to 1; they sum to 1. It is the share of annotators expected to choose the class."""

    log_concentration: float | None
    """Natural logarithm of the Dirichlet concentration: larger means more certain class probabilities. Null without a concentration, and for ensembles."""

    disagreement_prob: float | None
    """Probability that two annotators give different classes, 0 to 1. Null for an out-of-distribution image with fewer than two labels."""

    disagreement_calibrated: bool
    """True if the model release learned how often annotators disagree; else the probability follows from the class probabilities alone."""

    disagreement_constant: bool
    """True if the model release gives every unlabelled cell the same disagreement probability."""

    class_intervals: dict[str, list[Any]] | None
    """95% interval `[low, high]` of the probability of each class, by its code. Null without a concentration, and for an out-of-distribution image with fewer than two labels."""

    consensus: ConsensusOut | None = None
    """How likely further annotators agree on a class. Null without a concentration, and for an out-of-distribution image with fewer than two labels."""

    answer_set: AnswerSetOut | None = None
    """Prediction set: classes that contain the next annotator's answer with a stated probability. Null if the release has none."""

    release: str
    """Id of the model release."""

    n_labels: int
    """Number of labels that entered: active and blinded."""

    label_counts: dict[str, int]
    """Number of labels by class code; they sum to `n_labels`."""

    majority_prob: float | None
    """Probability that the leading class is the most frequent answer of all annotators, 0 to 1; null without a concentration."""

    further_labels_expected: int | None
    """Number of further labels needed to reach the policy's target error; null without a concentration."""

    reader_model: int | None
    """Version of the annotator model that weights the labels; null if all annotators count the same."""


class PracticeAnswerIn(BaseModel):
    """An answer to a cell of a run."""

    model_config = ConfigDict(
        extra="forbid",
    )
    label: str
    """Code of the class, one of the codes of the cell, 1 to 200 characters."""


class PracticeItemOut(BaseModel):
    """A cell of a run with the answer to it, if there is one, and in training how others answered."""

    item: ItemOut
    """The cell."""

    label: str | None
    """Code of the class that you answered; null before your answer."""

    feedback: FeedbackOut | None
    """Answers of others, in training; null before your answer and in a qualification."""

    run: str
    """Id of the run."""


class PracticeSetIn(BaseModel):
    """A set of completed cells for training or qualification."""

    model_config = ConfigDict(
        extra="forbid",
    )
    name: str
    """Name of the set, 1 to 100 characters, unique."""

    purpose: Literal["training", "qualification"]
    """`training`: feedback after each answer; `qualification`: a result at the end."""

    n_cells: int = 80
    """Number of cells in the set, 2 to 1,000."""

    n_per_run: int | None = None
    """Number of cells in a run, 2 to 200. Null or left out: all cells of a training set, half of a qualification set."""

    min_labels: int = 3
    """Least number of final blinded labels of a cell, 2 to 20."""

    borderline_share: float = 0.2
    """Share of cells about which annotators disagree, 0 to 1."""


class PracticeSetOut(BaseModel):
    """A set as admins see it."""

    id: str
    """Id of the set, a UUID."""

    name: str
    """Name of the set, 1 to 100 characters, unique."""

    purpose: Literal["training", "qualification"]
    """`training`: feedback after each answer; `qualification`: a result at the end."""

    n_cells: int
    """Number of cells in the set."""

    n_per_run: int
    """Number of cells in a run."""

    min_labels: int
    """Least number of final blinded labels of a cell, 2 to 20."""

    borderline_share: float
    """Share of cells about which annotators disagree, 0 to 1."""

    created_at: AwareDatetime
    """Time of creation, in UTC."""

    retired_at: AwareDatetime | None
    """Time of retirement, in UTC; null while in use."""

    n_runs: int
    """Number of runs that annotators began."""

    n_finished: int
    """Number of finished runs."""

    n_passed: int
    """Number of passed qualification runs."""

    report: SetReportOut
    """Cells of the set at its creation, and who would pass."""

    sentences: list[str]
    """The numbers above as English sentences, in reading order."""


class PracticeSetsOut(BaseModel):
    """Every set."""

    items: list[PracticeSetOut]
    """Sets, newest first."""


class PredictionOut(BaseModel):
    """A prediction by a model release."""

    class_probs: dict[str, float]
    """Probability of each class, by its code, 0 to 1; they sum to 1. It is the share of annotators expected to choose the class."""

    log_concentration: float | None
    """Natural logarithm of the Dirichlet concentration: larger means more certain class probabilities. Null without a concentration, and for ensembles."""

    disagreement_prob: float | None
    """Probability that two annotators give different classes, 0 to 1. Null for an out-of-distribution image with fewer than two labels."""

    disagreement_calibrated: bool
    """True if the model release learned how often annotators disagree; else the probability follows from the class probabilities alone."""

    disagreement_constant: bool
    """True if the model release gives every unlabelled cell the same disagreement probability."""

    class_intervals: dict[str, list[Any]] | None
    """95% interval `[low, high]` of the probability of each class, by its code. Null without a concentration, and for an out-of-distribution image with fewer than two labels."""

    consensus: ConsensusOut | None = None
    """How likely further annotators agree on a class. Null without a concentration, and for an out-of-distribution image with fewer than two labels."""

    answer_set: AnswerSetOut | None = None
    """Prediction set: classes that contain the next annotator's answer with a stated probability. Null if the release has none."""

    release: str
    """Id of the model release that predicted."""

    classes: list[str]
    """Codes of the classes, in the order of the release."""

    triage: TriageOut
    """Decision on a second read."""

    out_of_distribution: bool | None
    """True if the image differs from the training images of the release; null if the release has no such check, and the cell is then read twice."""

    reasons: list[Literal["place", "size", "focus", "stain", "features"]]
    """Checks that the image failed, the strongest first: `place`, `size`, `focus`, `stain`, `features`."""

    distance: float | None
    """Distance from the training images by the strongest check, 0 or more; above 1 the image is out of distribution. Null without a check."""

    distance_percentile: float | None
    """Percentage of held-out training images with a smaller distance, 0 to 100; null without a check."""

    image_sha256: str
    """SHA-256 of the uploaded file, 64 hexadecimal digits."""


class PredictionsOut(BaseModel):
    """Predictions of a cell."""

    items: list[PredictionOut]
    """Predictions, newest first."""


class ProblemDocument(BaseModel):
    """RFC 9457 problem document."""

    type: str
    """Stable URN of the kind of problem, such as `urn:secondread:problem:not-found`; programs should compare this field."""

    title: str
    """Short name of the problem."""

    status: int
    """HTTP status, 400 to 599."""

    detail: str
    """Explanation of the problem, and what to do."""

    errors: list[Fault] | None = None
    """Each fault of an invalid request; null or missing for other problems."""


class PublishedSets(BaseModel):
    """Thresholds of a model release's prediction sets, and their coverage."""

    misses: float = 0.1
    """Share of answers that may lie outside their set, 0 to 1."""

    answers_of: Literal["annotators", "outside"] = "annotators"
    """Annotators whose answers calibrated the sets: `annotators` of this service, or those of `outside` systems."""

    reason: str | None = None
    """Why there are no sets; null if there are."""

    notes: list[str] | None = None
    """Limits of the sets, a sentence each."""

    prior: list[SiteThresholds] | None = None
    """Thresholds for predictions, by site."""

    after_label: list[SiteThresholds] | None = None
    """Thresholds for cells with one label, by site."""

    quality: list[SetQualityOut] | None = None
    """Coverage on the evaluation partition."""


class PulledOut(BaseModel):
    """An estimate for one annotator, shrunk towards all annotators, with its 95% interval."""

    value: float
    """The estimate, in the unit of the field that contains it, shrunk towards all annotators."""

    low: float
    """Lower end of the 95% interval."""

    high: float
    """Upper end of the 95% interval."""

    n: int
    """Number of observations of this annotator."""

    everybody: float
    """The same quantity over all annotators, in the same unit."""


class QualifiedListOut(BaseModel):
    """Annotators with accounts, by name."""

    required: bool
    """True if the policy requires a qualification."""

    items: list[QualifiedOut]
    """Annotators with accounts, in alphabetical order."""


class QualifiedOut(BaseModel):
    """Qualification of an annotator."""

    annotator: str
    """Name of the annotator, unique in the service."""

    may_read: bool
    """True if reads are assigned to the annotator."""

    because: Literal["not-required", "passed", "qualified", "earlier-labels", "withdrawn", "not-yet"]
    """`not-required`: no qualification needed; `passed`: by a run; `qualified`: by an admin; `earlier-labels`: labelled before the requirement; `withdrawn`: by an admin; `not-yet`: still to pass."""

    decisions: list[DecisionOut]
    """Decisions on the annotator, newest first."""

    attempts: list[ResultOut]
    """Results of finished qualification runs, newest first."""


class RaterMarginalsOut(BaseModel):
    """Test of equal use of the classes by the annotators."""

    chi2: float | None
    """Test statistic, 0 or more; null with too few labels."""

    p_value: float | None
    """The p value of equal use of the classes, 0 to 1; null with too few labels."""

    n: int
    """Number of cells used."""


class ReadOut(BaseModel):
    """A read as its annotator sees it."""

    id: str
    """Id of the read, a UUID."""

    case_id: str
    """Id of the cell, a UUID that is valid for this annotator only."""

    image: str
    """Path of the image, relative to the address of the service."""

    field: str | None = None
    """Path of a wider image around the cell; null without one."""

    classes: list[ClassOut]
    """Classes to choose from, in the order of the release."""

    state: Literal["leased", "committed", "declined", "released", "expired"]
    """`leased`: waiting for an answer; `committed`: labelled; `declined`; `released`: given back; `expired`: the time ran out."""

    leased_at: AwareDatetime
    """Time of the lease, in UTC."""

    expires_at: AwareDatetime
    """Time at which the lease ends unless it is extended, in UTC."""


class ReaderDriftOut(BaseModel):
    """Drift of an annotator's first reads since the promotion of the champion, until the last Monday."""

    annotator: str
    """Name of the annotator, unique in the service."""

    n_patients: int
    """Number of patients whose first read this annotator answered."""

    tolerance: float
    """Rise of the excess loss that raises no alarm, in nats per label."""

    level: float
    """Probability of a false alarm in a year, 0 to 1, shared by all annotators."""

    alarm_on: date | None
    """Day on which the alarm started; null without an alarm."""

    weeks: list[ReaderWeekOut]
    """Excess loss by week, oldest first."""

    sentence: str
    """The finding in a sentence."""


class ReaderFitIn(BaseModel):
    """Population and model release for a fit."""

    model_config = ConfigDict(
        extra="forbid",
    )
    experts: list[str] = []
    """Names of the annotators who represent the population, at most 1,000; empty: all, by their number of labels."""

    release: UUID | None = None
    """Id of the champion or of a candidate with the champion's network, a UUID; null or left out: the champion."""


class ReaderFitOut(BaseModel):
    """How a model was fitted and tested; gains are measured on the evaluation partition."""

    kind: str
    """Model of names with the smallest of `left_out_losses`, or `alike` if `weight` is 0. It is `alike` (annotators do not differ), `rate` (each has an error rate), or what confusions are shrunk towards with the strength, such as `population 30`."""

    left_out_losses: dict[str, float]
    """Negative log-likelihood of a left-out label, in nats, for each candidate of `kind`."""

    n_cases: int
    """Number of cells in the fit."""

    n_labels: int
    """Number of labels in the fit."""

    n_annotators: int
    """Number of annotators in the fit."""

    gain_over_served: MetricOut | None
    """Fall of the log loss of the next label against the current posterior, in nats; positive is better. Null without evaluation labels."""

    gain_over_alike: MetricOut | None
    """Fall of the log loss of the next label against equal annotators, in nats; positive is better. Null without evaluation labels."""

    passed: bool
    """True if the model predicts the next label significantly better, so that it may be used."""

    verdict: str
    """The result of the test in a sentence."""

    temperature: float
    """Factor on the logarithm of the class probabilities, above 0; 1 changes nothing."""

    log_concentration_shift: float
    """Shift of `log_concentration`, a natural logarithm; 0 changes nothing."""

    weight: float = 1.0
    """Weight of the model of names in a mixture with equal annotators, 0 to 1; 0 ignores names."""


class ReaderModelDetailOut(BaseModel):
    """A version with the parameters of each annotator and of the population of unknown ones."""

    version: int
    """Version of the annotator model, 1 or more."""

    release: str
    """Id of the model release for which it was fitted."""

    created_at: AwareDatetime
    """Time of creation, in UTC."""

    in_use: bool
    """True if it weights labels."""

    fit: ReaderFitOut
    """How it was fitted and tested."""

    class_names: dict[str, str]
    """Name of each class, by its code."""

    readers: list[NamedReaderOut]
    """Parameters of each annotator."""

    population: dict[str, dict[str, float]]
    """Probability of each answer given the true opinion for an unknown annotator, 0 to 1: `population[opinion][answer]`; each row sums to 1."""


class ReaderModelInUseOut(BaseModel):
    """Position of the switch between annotator models."""

    version: int | None
    """Version in use; null: all annotators count the same."""

    serves: bool
    """False if the version was fitted for another release than the champion; all annotators then count the same."""

    revision: int
    """Number of switches so far, 0 or more; the ETag for `If-Match`."""


class ReaderModelOut(BaseModel):
    """A version of the annotator model, for one model release."""

    version: int
    """Version of the annotator model, 1 or more."""

    release: str
    """Id of the model release for which it was fitted."""

    created_at: AwareDatetime
    """Time of creation, in UTC."""

    in_use: bool
    """True if it weights labels."""

    fit: ReaderFitOut
    """How it was fitted and tested."""


class ReaderModelsOut(BaseModel):
    """Every version."""

    in_use: int | None
    """Version in use; null: all annotators count the same."""

    revision: int
    """Number of switches so far, 0 or more; the value for `If-Match`."""

    items: list[ReaderModelOut]
    """Versions, newest first."""


class ReaderSwitchIn(BaseModel):
    """Version to weight labels with."""

    model_config = ConfigDict(
        extra="forbid",
    )
    version: int | None
    """Version that will weight labels, 1 or more; null: all annotators count the same."""

    reason: str
    """Reason for the audit log, 1 to 2,000 characters, not only spaces."""


class ReaderWeekOut(BaseModel):
    """Mean excess loss of an annotator's answers in a week."""

    week: date
    """Monday on which the week begins, in UTC."""

    n_patients: int
    """Number of patients of the week."""

    excess_loss: float
    """Mean log loss of the answers minus its expectation if the prediction is right, in nats per label."""

    low: float
    """Lower end of the band that contains all weeks with 95% probability, in nats per label."""

    high: float
    """Upper end of the band that contains all weeks with 95% probability, in nats per label."""


class ReadersDriftOut(BaseModel):
    """Drift of annotators."""

    items: list[ReaderDriftOut]
    """Annotators with a first read since the promotion of the champion."""


class ReadsOut(BaseModel):
    """The caller's leases."""

    items: list[ReadOut]
    """Your leases, oldest first; at most three."""


class ReadyOut(BaseModel):
    """Readiness, part by part."""

    status: Literal["ready", "not ready"]
    """`ready` or `not ready`."""

    database: str
    """`ok`, or what is wrong with the database."""

    release: str
    """`ok`, or why no prediction is possible."""

    worker: str
    """`ok`, or which workers are missing. Without a worker the service is ready, but jobs wait."""

    storage: str = "ok"
    """`ok`, or what is wrong with the image storage."""

    device: str = "cpu"
    """Device of the network: `cpu`, `cuda` or `remote`; after `cpu:` the reason why it is not the GPU."""

    limits: list[LimitOut] | None = None
    """Limits with their current use; null without `verbose`."""


class RecalibrationIn(BaseModel):
    """Method and cells of a recalibration."""

    model_config = ConfigDict(
        extra="forbid",
    )
    method: Literal["none", "temperature", "vector", "matrix", "adapt"] = "temperature"
    """How class probabilities are calibrated: `none`, `temperature`, `vector` or `matrix`, with a new fit of the concentration. `adapt`: for annotators who differ from those of the release and at least 20 cells with two labels; it relearns only temperature, level and slope of the disagreement."""

    since: AwareDatetime | None = None
    """Only cells stored at this time or later, with a time zone; null or left out: all."""


class ReleaseDetailOut(BaseModel):
    """A model release with its card and last promotion check."""

    id: str
    """Id of the model release, a UUID."""

    name: str
    """Name on the release card."""

    aliases: list[Literal["champion", "challenger"]]
    """Aliases that name this model release: `champion`, `challenger`, both or none."""

    classes: list[ClassOut]
    """Classes in their order."""

    disagreement_calibrated: bool
    """True if the model release learned how often annotators disagree."""

    out_of_distribution_check: bool
    """True if it detects images that differ from its training images; without the check each of its cells is read twice."""

    metrics_stated_by_maker: bool
    """True if the card's metrics were not measured on this network; the promotion check and reports do not use them."""

    card_sha256: str
    """SHA-256 of the release card, 64 hexadecimal digits."""

    parent: str | None
    """Id of the model release from which it was recalibrated; null for a release trained elsewhere."""

    gate_passed: bool | None
    """Result of the last promotion check; null before the first."""

    gate_fault: str | None = None
    """Why the stored result of the promotion check is unreadable; such a release cannot be promoted. Null if it is readable."""

    created_at: AwareDatetime
    """Time of registration, in UTC."""

    card: dict[str, Any]
    """The release card as JSON: classes, preprocessing, data, metrics, licence and limits of use."""

    gate: Gate | None = None
    """Last result of the promotion check; null before the first."""


class ReleaseOut(BaseModel):
    """A model release."""

    id: str
    """Id of the model release, a UUID."""

    name: str
    """Name on the release card."""

    aliases: list[Literal["champion", "challenger"]]
    """Aliases that name this model release: `champion`, `challenger`, both or none."""

    classes: list[ClassOut]
    """Classes in their order."""

    disagreement_calibrated: bool
    """True if the model release learned how often annotators disagree."""

    out_of_distribution_check: bool
    """True if it detects images that differ from its training images; without the check each of its cells is read twice."""

    metrics_stated_by_maker: bool
    """True if the card's metrics were not measured on this network; the promotion check and reports do not use them."""

    card_sha256: str
    """SHA-256 of the release card, 64 hexadecimal digits."""

    parent: str | None
    """Id of the model release from which it was recalibrated; null for a release trained elsewhere."""

    gate_passed: bool | None
    """Result of the last promotion check; null before the first."""

    gate_fault: str | None = None
    """Why the stored result of the promotion check is unreadable; such a release cannot be promoted. Null if it is readable."""

    created_at: AwareDatetime
    """Time of registration, in UTC."""


class ReleasesOut(BaseModel):
    """Model releases."""

    items: list[ReleaseOut]
    """Model releases, newest first."""


class ReportingGroupIn(BaseModel):
    """Classes whose shares are reported as one, with thresholds."""

    model_config = ConfigDict(
        extra="forbid",
    )
    group: str
    """Name of the group, 1 to 200 characters, unique in the policy."""

    classes: list[str]
    """Codes of its classes, 1 to 100."""

    thresholds: list[ShareThresholdIn] | None = None
    """Shares at which the group decides something, at most 5."""


class ReportingGroupOut(BaseModel):
    """Classes whose shares are reported as one."""

    group: str
    """Name of the group, 1 to 200 characters, unique in the policy."""

    classes: list[str]
    """Codes of its classes, 1 to 100."""

    thresholds: list[ShareThresholdOut]
    """Shares at which the group decides something, at most 5."""


class RequestOut(BaseModel):
    """A planned read, its reason, and its state."""

    ordinal: int
    """Number of the read of this cell: 1 the first, 2 the second, 3 and above adjudications."""

    round: Literal["planned", "adjudication"]
    """`planned`: decided by the prediction; `adjudication`: after disagreement."""

    arm: Literal["first", "triage", "audit", "adjudication"]
    """Why the read was planned: `first`: each cell has one; `triage`: the rule selected the cell; `audit`: random sample; `adjudication`: the labels so far disagree."""

    u: float
    """Random number of the cell, 0 to 1; the cell is read twice if it is below `pi`."""

    pi: float
    """Probability of a second planned read, 0 to 1."""

    policy_version: int
    """Version of the policy that planned the read."""

    state: Literal["open", "leased", "answered", "closed"]
    """`open`: waiting; `leased`: an annotator has it; `answered`: labelled; `closed`: no longer needed."""

    due_at: AwareDatetime
    """Time until which it should be answered, in UTC."""

    closed_at: AwareDatetime | None
    """Time of the answer or closing, in UTC; null while open."""

    held_by: str | None
    """Annotator who has it; null unless leased."""

    asked_of: str | None
    """Assigned annotator; null: any."""

    probability: float | None
    """Probability with which that annotator was drawn, 0.1 to 1; null if not drawn."""


class ResultOut(BaseModel):
    """Result of a qualification."""

    n: int
    """Number of answered cells."""

    mean: float
    """Mean probability of the answers, 0 to 1, given the labels of the others."""

    of_pool: float
    """The same mean for a typical annotator, 0 to 1."""

    difference: float
    """`mean` minus `of_pool`, −1 to 1."""

    low: float
    """Lower end of the 95% interval of `difference`."""

    high: float
    """Upper end of the 95% interval of `difference`."""

    p: float
    """Probability of such a result or a worse one for a typical annotator, 0 to 1."""

    passed: bool
    """True if the annotator passed."""

    sentences: list[str]
    """The numbers above as English sentences, in reading order."""


class RetractionIn(BaseModel):
    """Reason of a retraction."""

    model_config = ConfigDict(
        extra="forbid",
    )
    reason: str
    """Reason for the audit log, at most 2,000 characters."""


class RevisionIn(BaseModel):
    """A changed label, with the reason."""

    model_config = ConfigDict(
        extra="forbid",
    )
    label: str
    """Code of the class, one of the codes of the read or of the release."""

    confidence: float | None = None
    """Your confidence in the class, 0 to 1; null or left out: not given."""

    second_choice: str | None = None
    """Code of the class that you think next likely, another one than `label`; null or left out: none."""

    flag: bool = False
    """True asks admins to look at the cell."""

    note: str | None = None
    """Comment for admins, at most 2,000 characters; null or left out: none."""

    reason: str
    """Reason of the change, at most 2,000 characters."""

    blind: bool | None = None
    """Outside systems only: true if the annotator still saw neither the prediction nor other labels. Null or left out: for annotators with accounts."""


class RunIn(BaseModel):
    """Choice of a set."""

    model_config = ConfigDict(
        extra="forbid",
    )
    set: UUID
    """Id of the set, a UUID."""


class RunOut(BaseModel):
    """A run as its annotator sees it."""

    id: str
    """Id of the run, a UUID."""

    set: str
    """Name of the set."""

    purpose: Literal["training", "qualification"]
    """`training`: feedback after each answer; `qualification`: a result at the end."""

    state: Literal["open", "finished"]
    """`open` or `finished`."""

    n_cells: int
    """Number of cells in the run."""

    n_answered: int
    """Number of answered cells."""

    begun_at: AwareDatetime
    """Start of the run, in UTC."""

    finished_at: AwareDatetime | None
    """End of the run, in UTC; null while open."""

    item: ItemOut | None
    """The next cell; null at the end."""

    result: ResultOut | None
    """Result of a finished qualification; null in training and while open."""


class SaidOut(BaseModel):
    """What predictions said of some cases, on average, and what annotators did."""

    said: float
    """Mean predicted probability, 0 to 1."""

    seen: MetricOut
    """Observed share, 0 to 1, with its 95% interval."""


class ScoreMonitorOut(BaseModel):
    """Alarm on a champion that has become worse since its promotion."""

    site: str | None
    """Name of the site; null: all sites."""

    since: AwareDatetime
    """Promotion of the champion, in UTC."""

    n_units: int
    """Number of patients, each with the cells of their first day."""

    n_reference: int
    """Number of patients in the reference period, at most 2,000."""

    reference_loss: float | None
    """Mean clipped log loss in the reference period, in nats per label; null without one."""

    recent_loss: float
    """Mean clipped log loss of the last 30 days, in nats per label."""

    floor: float
    """Probabilities below this value count as this value, 0 to 1."""

    tolerance: float
    """Rise of the loss that raises no alarm, in nats per label; 0 since the alarm is on ranks."""

    level: float
    """Probability of a false alarm in a year, 0 to 1, over all sites."""

    log10_threshold: float
    """Decimal logarithm of the capital at which the alarm starts."""

    alarm_on: date | None
    """Day on which the alarm started; null without an alarm. It lasts until the next promotion."""

    steps: list[MonitorStepOut]
    """Capital by day, thinned."""

    warnings: list[str]
    """Limits of these numbers, a sentence each."""


class SecondReadsOut(BaseModel):
    """Second reads that the policy in force requests among the cases, and the disagreements that they catch."""

    policy_version: int
    """Version of the policy in force."""

    by: Literal["disagreement", "expected_gain", "specimen_value"]
    """Score by which the policy orders cells: `disagreement` or `expected_gain`; `specimen_value`: it chooses by specimen."""

    share: float | None
    """Share of the cells that the policy selects for a second read, 0 to 1, without random-sample reads; null without cells, while a daily rule has no threshold, or if the rule chooses by specimen."""

    caught: MetricOut | None
    """Share of the disagreements in the selected cells, 0 to 1; null before the first disagreement. Random second reads would catch `share`."""


class SelectionOut(BaseModel):
    """How the labelled cells were selected."""

    n_closed: int
    """Number of cells with closed reads."""

    n_open: int
    """Number of further cells whose first planned read is open."""

    n_waiting: int = 0
    """Number of closed cells that wait for a second planned read."""

    outside_share: float
    """Share of cells with labels of outside systems, 0 to 1."""

    orders: list[WeightsOut]
    """Weights of cells with one label and with two; empty without weighting."""

    cannot_tell: list[CannotTellOut]
    """Reads that ended with "cannot tell", by arm and quintile."""


class SensitivityOut(BaseModel):
    """How often the leading class is the one that an annotator names."""

    class_code: str
    """Code of the class."""

    sensitivity: MetricOut
    """Share of the labels of this class for which it is also the most probable class, 0 to 1."""


class SetQualityOut(BaseModel):
    """Coverage of the prediction sets on the evaluation partition; each patient counts once."""

    labels: int
    """Number of labels: 0 for sets of predictions, 1 for sets after a label."""

    by: Literal["all", "site", "class"]
    """Grouping: `all` cells, one `site`, or one answered `class`."""

    group: str
    """Name of the site or code of the class; empty for all cells."""

    n_patients: int
    """Number of patients; a cell without a patient counts as one."""

    n_cells: int
    """Number of cells."""

    n_without: int
    """Number of them without a set."""

    coverage: MetricOut
    """Share of the answers that the sets contained, 0 to 1."""

    mean_size: MetricOut
    """Mean number of classes in a set."""

    single: MetricOut
    """Share of sets with one class, 0 to 1."""


class SetReportOut(BaseModel):
    """Cells of a set at its creation."""

    n_candidates: int
    """Number of closed cells with enough labels."""

    by_class: dict[str, int]
    """Number of cells by their most probable class."""

    n_borderline: int
    """Number of cells about which annotators disagree."""

    pass_rates: PassRatesOut | None
    """Simulated probability of passing; null for training sets."""


class ShareOut(BaseModel):
    """A share with its 95 % interval."""

    share: float
    """The share, 0 to 1. It ignores outcomes."""

    interval: list[Any]
    """Limits of the 95 % interval, 0 to 1."""


class ShareThresholdIn(BaseModel):
    """A share of a group that matters, and the cost of a miss in costs of a false alarm."""

    model_config = ConfigDict(
        extra="forbid",
    )
    at: float
    """Share of the patient's cells that the group must reach, above 0 to below 1."""

    miss_cost: float = 1.0
    """Cost of a missed share above the threshold, in costs of a false alarm, above 0 to 1,000."""


class ShareThresholdOut(BaseModel):
    """A share of a group that matters."""

    at: float
    """Share of the patient's cells that the group must reach, above 0 to below 1."""

    miss_cost: float
    """Cost of a missed share above the threshold, in costs of a false alarm, above 0 to 1,000."""


class SignatureIn(BaseModel):
    """A signature on the shares of a specimen as they were shown."""

    model_config = ConfigDict(
        extra="forbid",
    )
    meaning: Literal["reviewed", "approved"]
    """What the signature stands for: `reviewed` or `approved`."""

    version: int | None = None
    """The `version` of the specimen as it was shown to you; if it is another one now, nothing is signed. Null or left out: the shares of now."""

    amends: int | None = None
    """The number of the last signature that you have seen; if there is another one, nothing is signed. Null or left out: not checked."""

    reason: str | None = None
    """Why the signature is amended, for all signatures after the first; else null."""

    comment: str | None = None
    """A comment; null: none."""

    password: str | None = None
    """Your password. Null or left out: with a single sign-on of the last 5 minutes."""


class SignatureOut(BaseModel):
    """A signature on a specimen."""

    number: int
    """Number of the signature on this specimen, from 1. The highest one holds."""

    meaning: Literal["reviewed", "approved"]
    """`reviewed` or `approved`."""

    by: str
    """Account that signed."""

    signed_at: AwareDatetime
    """Time of the signature, in UTC."""

    comment: str | None
    """Comment of the signer; null: none, or the patient is erased."""

    reason: str | None
    """Why an earlier signature was amended; null for the first one, or if the patient is erased."""

    version: int
    """The `version` of the specimen that was signed."""

    digest: str
    """SHA-256 of the signed document: JSON in ASCII, with sorted keys and without spaces."""

    differs: list[DifferenceOut]
    """Decisions at thresholds that are not the signed ones any more."""


class SignaturesOut(BaseModel):
    """Signatures on a specimen."""

    items: list[SignedVersionOut]
    """Signatures, newest first."""


class SignedVersionOut(BaseModel):
    """A signature with what was shown."""

    number: int
    """Number of the signature on this specimen, from 1. The highest one holds."""

    meaning: Literal["reviewed", "approved"]
    """`reviewed` or `approved`."""

    by: str
    """Account that signed."""

    signed_at: AwareDatetime
    """Time of the signature, in UTC."""

    comment: str | None
    """Comment of the signer; null: none, or the patient is erased."""

    reason: str | None
    """Why an earlier signature was amended; null for the first one, or if the patient is erased."""

    version: int
    """The `version` of the specimen that was signed."""

    digest: str
    """SHA-256 of the signed document: JSON in ASCII, with sorted keys and without spaces."""

    differs: list[DifferenceOut]
    """Decisions at thresholds that are not the signed ones any more."""

    document: dict[str, Any]
    """What was signed: the shares as they were shown, with `specimen`, `version` and `policy`, the version of the reading policy."""


class SinceFirst(BaseModel):
    """Changes since the first champion, or the reason why they are unknown."""

    release: str | None
    """Id of the first champion; null if unknown."""

    is_champion: bool = False
    """True if the first champion is the current one."""

    unknown: str | None = None
    """Why the changes are unknown, in a sentence; null if they are known."""

    n_cases: int | None = None
    """Number of cells that both predicted; null if unknown."""

    L: MetricOut | None = None
    """Change of the expected squared loss L; negative is better. Null if unknown."""

    L_D: MetricOut | None = None
    """Change of the disagreement loss L_φ; negative is better. Null if unknown."""


class SiteAgreementOut(BaseModel):
    """Agreement about the cases of one site."""

    site: str
    """Name of the site."""

    n_cases: int
    """Number of cells."""

    krippendorff_alpha: MetricOut
    """Krippendorff's alpha of the cells of this site, −1 to 1; 1 is full agreement, 0 is chance."""


class SiteThresholds(BaseModel):
    """Thresholds of the cells of one site; `steps`: see `Thresholds`."""

    site: str | None
    """Name of the site; null: all sites without separate thresholds."""

    n_patients: int
    """Number of patients; a cell without a patient counts as one."""

    n_cells: int
    """Number of cells that calibrated the thresholds."""

    steps: list[list[Any]]
    """Pairs of the largest weight of a new patient and its threshold of probability, both rising."""


class SpecimenCellOut(BaseModel):
    """Result of one cell; the same whether it was stored now or before."""

    external_id: str
    """Name of the file as sent, without folder. The stored external id is that of the specimen, a slash, and this name."""

    case: str | None = None
    """Id of the cell; null if it was refused."""

    status: Literal["stored", "refused"]
    """`stored`: the cell is stored, by this request or an earlier one; `refused`: it is not, see `detail`."""

    detail: str | None = None
    """Why the cell was refused; null if it was not."""

    same_image_as: str | None = None
    """Id of the first cell with the same pixels, of any specimen; null without one."""


class SpecimenCellsOut(BaseModel):
    """Results of the cells of a request, in its order."""

    specimen: str
    """Id of the specimen."""

    results: list[SpecimenCellOut]
    """One result per cell: in the order of the parts, or of the names in the zip, after which come files that are no images."""

    n_stored: int
    """Number of cells that are stored."""

    n_refused: int
    """Number of cells that were refused."""

    summary: SpecimenOut
    """The specimen with its shares, after these cells."""


class SpecimenIn(BaseModel):
    """A specimen before its cells."""

    model_config = ConfigDict(
        extra="forbid",
    )
    external_id: str
    """Identifier of the specimen in the laboratory, unique in the service."""

    patient: str | None = None
    """Code of the patient, for all cells of the specimen; null: none."""

    site: str | None = None
    """Name of the site; null: not recorded."""

    collected_at: AwareDatetime | None = None
    """Time at which the specimen was taken, ISO 8601 with a time zone; null: not known."""


class SpecimenOut(BaseModel):
    """A specimen with its shares, and what would settle them."""

    n_cells: int = 0
    """Number of cells; an image that came twice counts twice, and enters the shares once."""

    release: str | None = None
    """Id of the model release whose predictions enter; null without cells."""

    mix: Literal["own", "training"] = "training"
    """`own`: the cells are weighted by the specimen's own class mix; `training`: by that of the calibration cells, with fewer than 20 cells."""

    groups: list[GroupShareOut] | None = None
    """Shares of the reporting groups of the policy; of each class if it has none."""

    deciding_cells: list[DecidingCellOut] | None = None
    """At most 10 cells of which a further read is worth most, the best first; empty once every threshold is decided."""

    reads: SpecimenReadsOut | None = None
    """Final blinded labels of the cells."""

    assumes: list[str] | None = None
    """What the intervals leave out, a sentence each."""

    warnings: list[str] | None = None
    """Limits of these shares, a sentence each."""

    specimen: str
    """Id of the specimen."""

    external_id: str
    """Identifier of the specimen in the laboratory, unique in the service."""

    patient: str | None
    """Code of the patient, for all cells of the specimen; null: none."""

    site: str | None
    """Name of the site; null: not recorded."""

    collected_at: AwareDatetime | None
    """Time at which the specimen was taken, ISO 8601 with a time zone; null: not known."""

    created_at: AwareDatetime
    """Time of creation, in UTC."""

    state: Literal["open", "decided", "signed"]
    """`decided`: every threshold of every group is decided; `open`: not, or there is no threshold; `signed`: a person has signed it."""

    version: int
    """Number of times that the shares have changed, from 1; 0: not computed yet."""

    computed_at: AwareDatetime | None
    """Time at which the shares were computed, in UTC; null: not yet."""

    stale: bool
    """True if a cell, a label or a setting has changed since the shares were computed."""

    signature: SignatureOut | None
    """The signature that holds; null if there is none."""


class SpecimenReadsOut(BaseModel):
    """Blinded labels of a specimen's cells."""

    labels: int = 0
    """Number of labels."""

    annotators: int = 0
    """Number of annotators who gave them."""


class SpecimensOut(BaseModel):
    """A page of specimens."""

    items: list[SpecimenOut]
    """Specimens, newest first."""

    next_cursor: str | None
    """Value of `cursor` for the next page; null on the last page."""


class StepOut(BaseModel):
    """Consecutive cells, ten or a multiple, and the agreement on them."""

    first: AwareDatetime
    """Time of the first read of the step, in UTC."""

    last: AwareDatetime
    """Time of the last read of the step, in UTC."""

    surplus: PulledOut
    """Agreement minus its expectation for a typical annotator, −1 to 1."""


class SubmittedOut(BaseModel):
    """The stored label and the new posterior."""

    label: LabelOut
    """The stored label."""

    posterior: PosteriorOut | None
    """Posterior of the cell after this label; null while the cell is hidden from you."""

    hidden_because: Literal["before-commit", "until-case-closed", "never"] | None
    """`before-commit`: you have not labelled it; `until-case-closed`: other reads are open; `never`: the policy hides all. Null if it is shown."""


class TargetsIn(BaseModel):
    """New targets; a missing one takes its default."""

    model_config = ConfigDict(
        extra="forbid",
    )
    disagreement_gap: float = 0.1
    """Largest difference between predicted and observed disagreement, above 0 to below 1."""

    leading_gap: float = 0.05
    """Largest difference between predicted and observed agreement with the leading class, above 0 to below 1."""

    caught: float = 0.6
    """Least share of disagreements that second reads catch, above 0 to below 1."""

    agreement: float = 0.8
    """Least agreement of annotators with the leading class, above 0 to below 1."""

    hours: float = 48.0
    """Time in which nine of ten planned reads are answered, in hours, above 0 to 8,760."""

    reason: str
    """Reason for the audit log, 1 to 200 characters."""


class TargetsOut(BaseModel):
    """Targets in force."""

    version: int
    """Version of the targets; 0 has the defaults. The value for `If-Match`."""

    disagreement_gap: float
    """Largest difference between predicted and observed disagreement, above 0 to below 1."""

    leading_gap: float
    """Largest difference between predicted and observed agreement with the leading class, above 0 to below 1."""

    caught: float
    """Least share of disagreements that second reads catch, above 0 to below 1."""

    agreement: float
    """Least agreement of annotators with the leading class, above 0 to below 1."""

    hours: float
    """Time in which nine of ten planned reads are answered, in hours, above 0 to 8,760."""


class ThresholdOut(BaseModel):
    """Whether the patient's share of a group reaches a threshold."""

    at: float
    """The threshold, a share from 0 to 1."""

    miss_cost: float
    """Cost of a missed share above the threshold, 0 or more, in costs of a false alarm."""

    probability_above: float
    """Probability, 0 to 1, that the patient's share reaches the threshold."""

    decision: Literal["above", "below", "open"]
    """`above` or `below` if the probability of an error is below 2 %; else `open`. Fewer than 50 cells are never `below`."""

    expected_loss: float
    """Expected loss of the better decision, 0 or more, in costs of a false alarm."""

    settled: bool
    """True if all further reads together would change the side with a probability below 2 %. An open decision then needs more cells."""


class TrainedOnOut(BaseModel):
    """Cells left out because a model release was trained on them, or on other cells of their patient."""

    n_left_out: int
    """Number of cells left out: the model release was trained on them or on other cells of their patient."""

    images: Literal["known", "unknown"]
    """`known`: training images were compared by digest; `unknown`: the release has no digests."""

    patients: Literal["known", "unknown"]
    """`known`: training patients were compared by digest; `unknown`: the release has no digests of this service's patients."""


class TriageOut(BaseModel):
    """Decision on a second read, its reason, and its probability."""

    decision: Literal["single_read", "second_read"]
    """`second_read`: the rule selects the cell; `single_read`: one read, or a random-sample second read."""

    priority: float
    """Disagreement probability as a share of its largest possible value, 0 to 1; the worklist sorts by it."""

    expected_gain: float | None
    """Fall of the expected squared error by one further label, 0 or more; null without a concentration."""

    reason: str
    """Reason of the decision, in a sentence."""

    pi: float
    """Probability of a second planned read, 0 to 1."""


class UrgentClassIn(BaseModel):
    """A class that brings all cells of a patient forward, if one of them may be of it."""

    model_config = ConfigDict(
        extra="forbid",
    )
    class_: Annotated[str, Field(alias="class")]
    """Class code."""

    above: float
    """Probability above which the class counts as possible, above 0 to below 1."""

    hours: int
    """Hours within which the patient's cells are due, 1 to 8,760."""


class UrgentClassOut(BaseModel):
    """A class that brings all cells of a patient forward."""

    class_: Annotated[str, Field(alias="class")]
    """Class code."""

    above: float
    """Probability above which the class counts as possible, above 0 to below 1."""

    hours: int
    """Hours within which the patient's cells are due, 1 to 8,760."""


class WeightsOut(BaseModel):
    """Inverse selection probabilities of cells with enough labels."""

    order: int
    """Number of labels that the estimates need: 1 or 2."""

    non_response: float
    """Share of planned cells without these labels, 0 to 1."""

    ess: float
    """Effective number of cells after weighting, (Σw)²/Σw²."""

    largest_weight: float
    """Largest weight of a cell, 1 or more."""

    cells: list[CellOut]
    """Planned and answered cells by arm and quintile."""


class WithoutAnnotator(BaseModel):
    """The promotion check without one annotator's labels, or why it failed."""

    annotator: str
    """Name of the annotator, unique in the service."""

    failed: str | None = None
    """Why the check failed without this annotator, in a sentence; null if it ran."""

    L: MetricOut | None = None
    """Change of the expected squared loss L; negative is better. Null if the check failed."""

    L_D: MetricOut | None = None
    """Change of the disagreement loss L_φ; negative is better. Null if the check failed."""

    worse: dict[str, Worse] | None = None
    """Each loss that is worse without this annotator, by name; null if the check failed."""


class WorkOut(BaseModel):
    """A cell that needs a read."""

    case: CaseOut
    """The cell with its prediction."""

    need: float
    """Its disagreement probability, 0 to 1; 1 without a prediction."""

    near_duplicate: bool
    """True if it resembles another cell of the same patient that has a second read."""

    deciding: bool
    """True if a read of it would help most to decide on its specimen; these cells come first."""

    requests: list[RequestOut]
    """Planned reads of the cell, in order."""


class WorklistOut(BaseModel):
    """A page of cells that need a read."""

    items: list[WorkOut]
    """Cells, highest need first."""

    next_cursor: str | None
    """Value of `cursor` for the next page; null on the last page."""


class Worse(BaseModel):
    """Difference of a change from the change by all labels, with its standard error."""

    value: float | None
    """Change without the annotator minus change with all annotators, in the unit of the loss; positive is worse. Null if not a number."""

    se: float | None
    """Standard error of `value`; null if not a number."""
