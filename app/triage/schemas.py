"""Request and response models of the policy routes."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from app.database.tables.values import Reveal, Rule
from app.http.models import DIGITS, Line, RequestModel, ResponseModel
from ml.messages import Message


class UrgentClassIn(RequestModel):
    """A class that brings all cells of a patient forward, if one of them may be of it."""

    model_config = ConfigDict(serialize_by_alias=True)

    class_code: Annotated[Line, Field(alias="class")]
    above: Annotated[float, Field(gt=0, lt=1)]
    hours: Annotated[int, Field(ge=1, le=24 * 365), DIGITS]


class UrgentClassOut(ResponseModel):
    """A class that brings all cells of a patient forward."""

    model_config = ConfigDict(serialize_by_alias=True)

    class_code: Annotated[str, Field(alias="class")]
    above: float
    hours: int


class PolicyIn(RequestModel):
    """A complete new version of the policy; missing fields take their defaults."""

    rule: Rule = "disagreement"
    threshold: Annotated[float, Field(ge=0, lt=1)] | None = None
    capacity_per_day: Annotated[int, Field(ge=1, le=1_000_000), DIGITS] | None = None
    audit_rate: Annotated[float, Field(gt=0, le=1)] = 0.10
    target_error: Annotated[float, Field(gt=0, lt=2)] = 0.02
    adjudicate_below: Annotated[float, Field(gt=0, lt=1)] | None = 0.90
    max_labels: Annotated[int, Field(ge=2, le=100), DIGITS] = 5
    reveal: Reveal = "after_case_closed"
    lease_seconds: Annotated[int, Field(ge=30, le=86_400), DIGITS] = 600
    due_days: Annotated[int, Field(ge=1, le=365), DIGITS] = 7
    repeat_rate: Annotated[float, Field(ge=0, le=0.1)] = 0.02
    draw_readers: bool = False
    require_qualification: bool = False
    urgent: list[UrgentClassIn] = Field([], max_length=20)
    reason: Line

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Each rule needs its own number, and no other."""
        needed, other = (
            ("capacity_per_day", "threshold")
            if self.rule in {"capacity", "graded"}
            else ("threshold", "capacity_per_day")
        )
        name = "the graded rule" if self.rule == "graded" else f"the rule by {self.rule.replace('_', ' ')}"
        if getattr(self, needed) is None:
            raise ValueError(Message("{name} needs {wanted}", name=name, wanted=needed))
        if getattr(self, other) is not None:
            raise ValueError(Message("{name} takes no {other}", name=name, other=other))
        return self


class PolicyOut(ResponseModel):
    """A version of the policy."""

    version: int
    current: bool
    rule: Rule
    threshold: float | None
    capacity_per_day: int | None
    audit_rate: float
    target_error: float
    adjudicate_below: float | None
    max_labels: int
    reveal: Reveal
    lease_seconds: int
    due_days: int
    repeat_rate: float
    draw_readers: bool
    require_qualification: bool
    urgent: list[UrgentClassOut]
    reason: str
    created_at: datetime


class DrawsOut(ResponseModel):
    """Outcome of planned reads assigned at random."""

    n_answered: int
    n_as_drawn: int
    n_drawn_again: int
    n_overdue: int


class PoliciesOut(ResponseModel):
    """Every version of the policy."""

    items: list[PolicyOut]
    draws: DrawsOut | None
