"""Request and response models of the policy routes."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from app.database.tables.values import Reveal, Rule, SpecimenGoal
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


#: Field with the number that each rule spends; the others go by a threshold.
AMOUNT_OF_RULE = {
    "capacity": "capacity_per_day",
    "graded": "capacity_per_day",
    "specimen_value": "reads_per_specimen",
}


class ShareThresholdIn(RequestModel):
    """A share of a group that matters, and the cost of a miss in costs of a false alarm."""

    at: Annotated[float, Field(gt=0, lt=1)]
    miss_cost: Annotated[float, Field(gt=0, le=1000)] = 1.0


class ShareThresholdOut(ResponseModel):
    """A share of a group that matters."""

    at: float
    miss_cost: float


class ReportingGroupIn(RequestModel):
    """Classes whose shares are reported as one, with thresholds."""

    group: Line
    classes: Annotated[list[Line], Field(min_length=1, max_length=100)]
    thresholds: Annotated[list[ShareThresholdIn], Field(max_length=5, default_factory=list)]


class ReportingGroupOut(ResponseModel):
    """Classes whose shares are reported as one."""

    group: str
    classes: list[str]
    thresholds: list[ShareThresholdOut]


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
    reporting_groups: list[ReportingGroupIn] = Field([], max_length=30)
    reads_per_specimen: Annotated[int, Field(ge=1, le=500), DIGITS] | None = None
    specimen_goal: SpecimenGoal | None = None
    urgent: list[UrgentClassIn] = Field([], max_length=20)
    reason: Line

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Each rule needs its own number, and no other."""
        needed = AMOUNT_OF_RULE.get(self.rule, "threshold")
        name = "the graded rule" if self.rule == "graded" else f"the rule by {self.rule.replace('_', ' ')}"
        if getattr(self, needed) is None:
            raise ValueError(Message("{name} needs {wanted}", name=name, wanted=needed))
        for other in ("threshold", *dict.fromkeys(AMOUNT_OF_RULE.values())):
            if other != needed and getattr(self, other) is not None:
                raise ValueError(Message("{name} takes no {other}", name=name, other=other))
        if self.rule == "specimen_value":
            self.specimen_goal = self.specimen_goal or "decision"
            wanted = "reporting_groups" if self.specimen_goal == "share" else "thresholds"
            counts = [len(group.thresholds) if wanted == "thresholds" else 1 for group in self.reporting_groups]
            if not sum(counts):
                raise ValueError(Message("{name} needs {wanted}", name=name, wanted=wanted))
        elif self.specimen_goal is not None:
            raise ValueError(Message("{name} takes no {other}", name=name, other="specimen_goal"))
        return self

    @field_validator("reporting_groups")
    @classmethod
    def _disjoint_groups(cls, groups: list[ReportingGroupIn]) -> list[ReportingGroupIn]:
        """Each name once, and each class in one group."""
        of_class: dict[str, str] = {}
        names: set[str] = set()
        for group in groups:
            if group.group in names:
                raise ValueError(Message("two reporting groups are called {name}", name=group.group))
            names.add(group.group)
            for code in group.classes:
                if code in of_class:
                    both = {"code": code, "one": of_class[code], "other": group.group}
                    raise ValueError(Message("class {code} belongs to {one} and to {other}", **both))
                of_class[code] = group.group
        return groups


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
    reporting_groups: list[ReportingGroupOut]
    reads_per_specimen: int | None
    specimen_goal: SpecimenGoal | None
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
