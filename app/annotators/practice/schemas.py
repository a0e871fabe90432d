"""Request and response models of the practice routes."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field, StringConstraints

from app.http.models import ClassOut, Line, Paragraph, RequestModel, ResponseModel, Sentence

Purpose = Literal["training", "qualification"]
_Name = Annotated[Line, Field(max_length=100, pattern=r"\S")]


class PracticeSetIn(RequestModel):
    """Cells to be chosen for a set: closed, with ``min_labels`` final blind labels or more.

    ``n_per_run``: cells of one run; where left out all of a training set, and half of a qualification set.
    """

    name: _Name
    purpose: Purpose
    n_cells: Annotated[int, Field(ge=2, le=1000)] = 80
    n_per_run: Annotated[int, Field(ge=2, le=200)] | None = None
    min_labels: Annotated[int, Field(ge=2, le=20)] = 3
    borderline_share: Annotated[float, Field(ge=0, le=1)] = 0.2


class PassRatesOut(ResponseModel):
    """Simulated pass rates of a run of a set; ``confusing``: who takes a class for another one half of the time."""

    like_the_others: float
    guessing: float
    confusing: dict[str, float]


class SetReportOut(ResponseModel):
    """Cells of a set at its creation; ``by_class``: cells by the leading class of their posterior."""

    n_candidates: int
    by_class: dict[str, int]
    n_borderline: int
    pass_rates: PassRatesOut | None


class PracticeSetOut(ResponseModel):
    """A set as admins see it."""

    id: str
    name: str
    purpose: str
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
    """Every set, newest first."""

    items: list[PracticeSetOut]


class RunIn(RequestModel):
    """Which set to work through."""

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
    """How others answered a cell of a training run; the probabilities are of the next annotator's answer.

    Where the cell is being read again, or closed to annotators by the policy, counts and probabilities are null.
    """

    label: str
    label_counts: dict[str, int] | None
    class_probs: dict[str, float] | None
    sentences: list[Sentence]


class ResultOut(ResponseModel):
    """Result of a qualification; ``p``: probability of such a result for a typical annotator."""

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
    """A run as its annotator sees it; ``item`` is the cell that is next, null at the end."""

    id: str
    set: str
    purpose: str
    state: str
    n_cells: int
    n_answered: int
    begun_at: datetime
    finished_at: datetime | None
    item: ItemOut | None
    result: ResultOut | None


class AnsweredOut(ResponseModel):
    """A stored answer; ``feedback`` in training only."""

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
    """A set for an annotator; ``not_now``: the reason why they cannot begin yet."""

    id: str
    name: str
    purpose: str
    n_per_run: int
    run: str | None
    not_now: Sentence | None


class OwnPracticeOut(ResponseModel):
    """An annotator's practice: whether reads go to them, and why, the sets, and their runs, newest first."""

    required: bool
    may_read: bool
    because: str
    sets: list[OwnSetOut]
    runs: list[RunOut]


class DecisionIn(RequestModel):
    """A manual decision with its reason; ``renewed`` allows two further attempts at once."""

    kind: Literal["qualified", "withdrawn", "renewed"]
    reason: Annotated[Paragraph, StringConstraints(min_length=1, pattern=r"\S")]


class DecisionOut(ResponseModel):
    """A decision on an annotator; ``reason`` is null where an attempt decided."""

    kind: str
    at: datetime
    by: str | None
    reason: str | None


class QualifiedOut(ResponseModel):
    """Qualification of an annotator: decisions and finished attempts, newest first."""

    annotator: str
    may_read: bool
    because: str
    decisions: list[DecisionOut]
    attempts: list[ResultOut]


class QualifiedListOut(ResponseModel):
    """Annotators with accounts, by name."""

    required: bool
    items: list[QualifiedOut]
