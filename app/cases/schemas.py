"""Request and response models of the case routes."""

import json
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from app.database.tables.values import Arm, OutcomeRule, Partition, RequestState, Round
from app.http.models import Line, PredictionOut, Reason, RequestModel, ResponseModel
from ml.messages import Message


def _json_object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (json.JSONDecodeError, RecursionError) as exc:
        raise ValueError("must be a JSON object of texts") from exc


#: Texts that come with a case, each by its name.
Metadata = Annotated[dict[Line, Line], Field(max_length=20)]


class CaseIn(RequestModel):
    """Fields that come with the image of a case."""

    external_id: Line
    patient: Line | None = None
    site: Line | None = None
    specimen: Line | None = None
    metadata: Annotated[Metadata, BeforeValidator(_json_object), Field(default_factory=dict)]


class OutcomeOut(ResponseModel):
    """What a cell was settled as."""

    model_config = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    code: Annotated[str | None, Field(alias="class")]
    split: bool
    rule: OutcomeRule | None
    by: str | None
    at: datetime
    reason: str | None


class CaseOut(ResponseModel):
    """A cell with its prediction."""

    id: str
    external_id: str
    patient: str | None
    site: str | None
    specimen: str | None
    metadata: dict[str, str]
    width: int
    height: int
    partition: Partition
    same_image_as: str | None
    created_at: datetime
    n_labels: int
    prediction: PredictionOut | None
    has_field: bool = False
    outcome: OutcomeOut | None = None
    class_probs_in_specimen: dict[str, float] | None = None


class CasesOut(ResponseModel):
    """A page of cells."""

    items: list[CaseOut]
    next_cursor: str | None


class PredictionsOut(ResponseModel):
    """Predictions of a cell."""

    items: list[PredictionOut]


class RequestOut(ResponseModel):
    """A planned read, its reason, and its state."""

    ordinal: int
    round: Round
    arm: Arm
    u: float
    pi: float
    policy_version: int
    state: RequestState
    due_at: datetime
    closed_at: datetime | None
    held_by: str | None
    asked_of: str | None
    probability: float | None


class WorkOut(ResponseModel):
    """A cell that needs a read."""

    case: CaseOut
    need: float
    near_duplicate: bool
    deciding: bool
    requests: list[RequestOut]


class WorklistOut(ResponseModel):
    """A page of cells that need a read."""

    items: list[WorkOut]
    next_cursor: str | None


#: A place on an image: a share of its width or height.
_Share = Annotated[float, Field(ge=0, le=1)] | None


class CommentIn(RequestModel):
    """A comment on a cell, with a place on its image or without."""

    text: Reason
    x: _Share = None
    y: _Share = None

    @model_validator(mode="after")
    def _whole_place(self) -> Self:
        """A place has both shares."""
        if (self.x is None) != (self.y is None):
            raise ValueError(Message("a place on the image needs both x and y"))
        return self


class CommentOut(ResponseModel):
    """A comment on a cell."""

    id: str
    case_id: str
    author: str
    text: str
    x: float | None
    y: float | None
    created_at: datetime


class CommentsOut(ResponseModel):
    """Comments on a cell."""

    items: list[CommentOut]
