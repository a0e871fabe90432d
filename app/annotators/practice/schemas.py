"""Request and response models of the practice routes."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from app.database.tables.values import EligibilityReason, PracticePurpose, QualificationKind, RunState
from app.http.models import DIGITS, ClassOut, Line, Reason, RequestModel, ResponseModel, Sentence

_Name = Annotated[Line, Field(max_length=100)]


class PracticeSetIn(RequestModel):
    """A set of completed cells for training or qualification."""

    name: _Name
    purpose: PracticePurpose
    n_cells: Annotated[int, Field(ge=2, le=1000), DIGITS] = 80
    n_per_run: Annotated[int, Field(ge=2, le=200), DIGITS] | None = None
    min_labels: Annotated[int, Field(ge=2, le=20), DIGITS] = 3
    borderline_share: Annotated[float, Field(ge=0, le=1)] = 0.2


class PassRatesOut(ResponseModel):
    """Simulated pass rates of a run of a set."""

    like_the_others: float
    guessing: float
    confusing: dict[str, float]


class SetReportOut(ResponseModel):
    """Cells of a set at its creation."""

    n_candidates: int
    by_class: dict[str, int]
    n_borderline: int
    pass_rates: PassRatesOut | None


class PracticeSetOut(ResponseModel):
    """A set as admins see it."""

    id: str
    name: str
    purpose: PracticePurpose
    n_cells: int
    n_per_run: int
    min_labels: int
    borderline_share: float
    created_at: datetime
    retired_at: datetime | None
    n_runs: int
    n_finished: int
    n_passed: int
    report: SetReportOut
    sentences: list[Sentence]


class PracticeSetsOut(ResponseModel):
    """Every set."""

    items: list[PracticeSetOut]


class RunIn(RequestModel):
    """Choice of a set."""

    set: UUID


class PracticeAnswerIn(RequestModel):
    """An answer to a cell of a run."""

    label: Line


class ItemOut(ResponseModel):
    """A cell of a run: its image and the classes, nothing else."""

    id: str
    image: str
    position: int
    classes: list[ClassOut]


class FeedbackOut(ResponseModel):
    """How others answered a cell of a training run."""

    label: str
    label_counts: dict[str, int] | None
    class_probs: dict[str, float] | None
    sentences: list[Sentence]


class ResultOut(ResponseModel):
    """Result of a qualification."""

    n: int
    mean: float
    of_pool: float
    difference: float
    low: float
    high: float
    p: float
    passed: bool
    sentences: list[Sentence]


class RunOut(ResponseModel):
    """A run as its annotator sees it."""

    id: str
    set: str
    purpose: PracticePurpose
    state: RunState
    n_cells: int
    n_answered: int
    begun_at: datetime
    finished_at: datetime | None
    item: ItemOut | None
    result: ResultOut | None


class AnsweredOut(ResponseModel):
    """A stored answer."""

    item: str
    label: str
    feedback: FeedbackOut | None
    run: RunOut


class PracticeItemOut(ResponseModel):
    """A cell of a run with the answer to it, if there is one, and in training how others answered."""

    item: ItemOut
    label: str | None
    feedback: FeedbackOut | None
    run: str


class OwnSetOut(ResponseModel):
    """A set for an annotator."""

    id: str
    name: str
    purpose: PracticePurpose
    n_per_run: int
    run: str | None
    not_now: Sentence | None


class OwnPracticeOut(ResponseModel):
    """Qualification, sets and runs of an annotator."""

    required: bool
    may_read: bool
    because: EligibilityReason
    sets: list[OwnSetOut]
    runs: list[RunOut]


class DecisionIn(RequestModel):
    """An admin's decision with its reason."""

    kind: Literal["qualified", "withdrawn", "renewed"]
    reason: Reason


class DecisionOut(ResponseModel):
    """A decision on an annotator."""

    kind: QualificationKind
    at: datetime
    by: str | None
    reason: str | None


class QualifiedOut(ResponseModel):
    """Qualification of an annotator."""

    annotator: str
    may_read: bool
    because: EligibilityReason
    decisions: list[DecisionOut]
    attempts: list[ResultOut]


class QualifiedListOut(ResponseModel):
    """Annotators with accounts, by name."""

    required: bool
    items: list[QualifiedOut]
