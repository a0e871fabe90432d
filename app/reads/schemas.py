"""What the routes of reads accept and answer."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from app.schemas import In, Line, Out, Paragraph, PosteriorOut

AnnotatorName = Annotated[Line, Field(max_length=100)]


class LabelIn(In):
    """A label; ``annotator`` and ``blind`` only from an outside annotator system."""

    label: Line
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    note: Paragraph | None = None
    annotator: AnnotatorName | None = None
    blind: bool | None = None


class LabelOut(Out):
    """A label as stored."""

    id: str
    case_id: str
    annotator: str
    label: str
    confidence: float | None
    note: str | None
    blind: bool
    round: str
    kind: str
    created_at: datetime


class SubmittedOut(Out):
    """The stored label, and what it made of the case."""

    label: LabelOut
    posterior: PosteriorOut


class LabelsOut(Out):
    """Active labels of a case, oldest first."""

    items: list[LabelOut]
