"""Request models of the outcome routes."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from app.http.models import Line, Reason, RequestModel, ResponseModel
from ml.messages import Message


class OutcomeIn(RequestModel):
    """What a cell is settled as: a class, split, or by rule."""

    code: Annotated[Line | None, Field(alias="class")] = None
    split: bool = False
    by_rule: bool = False
    reason: Reason | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """One of the three, and a reason unless a rule gives it."""
        if [self.code is not None, self.split, self.by_rule].count(True) != 1:
            raise ValueError(Message("choose one: a class, split or by_rule"))
        if self.by_rule == (self.reason is not None):
            raise ValueError(Message("by_rule takes no reason") if self.by_rule else Message("give a reason"))
        return self


class AssignmentIn(RequestModel):
    """An annotator who is to read a cell."""

    annotator: Line


class AssignedReadsOut(ResponseModel):
    """How many reads were assigned."""

    n_assigned: int
