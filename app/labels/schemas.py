"""Request and response models of the read routes."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from app.database.tables.values import Hidden, LabelKind, ReadState, Round
from app.http.models import (
    ClassOut,
    Line,
    Moment,
    Paragraph,
    PosteriorOut,
    Reason,
    RequestModel,
    ResponseModel,
    Sentence,
)

AnnotatorName = Annotated[Line, Field(max_length=100)]
DeclineReason = Literal["cannot_tell", "image_quality", "not_my_field", "know_this_case", "other"]
Confidence = Annotated[float, Field(ge=0, le=1)]


class OwnLabelIn(RequestModel):
    """A label that ends a read."""

    label: Line
    confidence: Confidence | None = None
    second_choice: Line | None = None
    flag: bool = False
    note: Paragraph | None = None

    @field_validator("second_choice")
    @classmethod
    def _differs(cls, second: str | None, info: ValidationInfo) -> str | None:
        if second is not None and second == info.data.get("label"):
            raise ValueError("must be another class than the label")
        return second

    def says_only(self, code: str | None) -> bool:
        """Whether it adds nothing to an answer of this class."""
        return self.label == code and not (self.confidence is not None or self.second_choice or self.flag or self.note)


class LabelIn(OwnLabelIn):
    """A label of an outside annotator system."""

    annotator: AnnotatorName | None = None
    blind: bool | None = None
    round: Round | None = None
    at: Moment | None = None


class OutsideLabelIn(LabelIn):
    """One of many labels of an outside annotator system."""

    external_id: Line


class LabelBatchIn(RequestModel):
    """Labels of an outside annotator system."""

    labels: Annotated[list[OutsideLabelIn], Field(min_length=1, max_length=1000)]


class RevisionIn(OwnLabelIn):
    """A changed label, with the reason."""

    reason: Reason
    blind: bool | None = None


class RetractionIn(RequestModel):
    """Reason of a retraction."""

    reason: Reason


class DeclineIn(RequestModel):
    """Reason why a read is declined."""

    reason: DeclineReason
    note: Paragraph | None = None


class ReadOut(ResponseModel):
    """A read as its annotator sees it."""

    id: str
    case_id: str
    image: str
    field: str | None = None
    classes: list[ClassOut]
    state: ReadState
    leased_at: datetime
    expires_at: datetime


class ReadsOut(ResponseModel):
    """The caller's leases."""

    items: list[ReadOut]


class LabelOut(ResponseModel):
    """A label as stored."""

    id: str
    case_id: str
    annotator: str
    label: str | None
    confidence: float | None
    second_choice: str | None
    flagged: bool
    note: str | None
    blind: bool
    round: Round | None
    late: bool
    kind: LabelKind
    supersedes: str | None
    post_reveal: bool
    reason: str | None
    reading_seconds: float | None
    at: datetime | None = None
    created_at: datetime


class SubmittedOut(ResponseModel):
    """The stored label and the new posterior."""

    label: LabelOut
    posterior: PosteriorOut | None
    hidden_because: Hidden | None


class LabelResultOut(ResponseModel):
    """Result of one label."""

    external_id: str
    annotator: str | None
    status: Literal["stored", "known", "refused"]
    label_id: str | None = None
    detail: Sentence | None = None


class LabelBatchOut(ResponseModel):
    """Results of the labels of a request, in its order."""

    results: list[LabelResultOut]
    n_stored: int
    n_known: int
    n_refused: int


class LabelsOut(ResponseModel):
    """Labels of a cell."""

    items: list[LabelOut]
