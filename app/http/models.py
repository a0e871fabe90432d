"""Base models and value types shared by several domains."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from pydantic_core import PydanticKnownError

from app.http.descriptions import DescribedModel
from ml.messages import Message
from ml.metrics.definitions import with_long_names, without_long_names
from ml.metrics.jackknife import Estimate, EstimateDocument, ModelAssistedDocument

# NUL, which PostgreSQL cannot store, and what turns the direction of all text behind it on a page
_BAD = r"\u0000\u202a-\u202e\u2066-\u2069"
_REFUSED = re.compile(f"[{_BAD}]")


def _require_storable_text(text: str) -> str:
    if found := _REFUSED.search(text):
        raise ValueError(f"must not contain the character U+{ord(found[0]):04X}")
    return text


def _require_words(text: str) -> str:
    if not text.strip():
        raise PydanticKnownError("string_too_short", {"min_length": 1})
    return _require_storable_text(text)


_STORABLE = Field(json_schema_extra={"pattern": f"^[^{_BAD}]*$"})
_WORDS = Field(json_schema_extra={"pattern": rf"^[^{_BAD}]*[^\s{_BAD}][^{_BAD}]*$"})
#: Text of a line: external ids, names, codes.
Line = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_require_words), _WORDS]
#: Text of a form or of a page's address, which may be empty; its length is said where it is asked for.
PageText = Annotated[str, AfterValidator(_require_storable_text)]
#: Longer text.
Paragraph = Annotated[str, StringConstraints(max_length=2000), AfterValidator(_require_storable_text), _STORABLE]
#: A reason or a comment.
Reason = Annotated[str, StringConstraints(min_length=1, max_length=2000), AfterValidator(_require_words), _WORDS]


def _with_code(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """A message as it is: to check a text makes another one of it."""
    return value if isinstance(value, Message) else check(value)


#: A sentence of the service; it may be a message.
Sentence = Annotated[str, WrapValidator(_with_code)]


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError as exc:
        raise ValueError("lies outside the years 1 to 9999") from exc


def _require_digits(value: Any) -> Any:
    if isinstance(value, str) and not value.strip().removeprefix("-").isdecimal():
        raise PydanticKnownError("int_parsing")
    return value


#: For whole numbers, after their limits: of a text pydantic would take "1.000", a thousand in German, for 1.
DIGITS = BeforeValidator(_require_digits)

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]")


def _refuse_number(value: Any) -> Any:
    """Refuse numbers, which pydantic would take for seconds since 1970."""
    if isinstance(value, int | float) or (isinstance(value, str) and _DATE.match(value) is None):
        raise ValueError("must be a date and time in ISO 8601 with its zone")
    return value


#: A time with its zone.
Moment = Annotated[AwareDatetime, BeforeValidator(_refuse_number), AfterValidator(_in_utc)]


class RequestModel(DescribedModel):
    """Base of request bodies; rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_for_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false, which pydantic would take for 1 and 0."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            choices = (annotation, *get_args(annotation))
            kinds = {get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in choices}
            if kinds & {int, float} and bool not in kinds:
                raise PydanticKnownError("float_type")
        return value


class ResponseModel(DescribedModel):
    """Base of response bodies."""

    model_config = ConfigDict(extra="forbid")


class ModelAssistedOut(ResponseModel):
    """A mean with the help of what is known of all cases: predictions and first labels."""

    value: float | None
    se: float | None
    low: float | None
    high: float | None

    def to_dict(self) -> ModelAssistedDocument:
        """The same as it stands on a release's card."""
        return {"value": self.value, "se": self.se, "low": self.low, "high": self.high}


class MetricOut(ResponseModel):
    """One estimate."""

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

    @classmethod
    def of(cls, estimate: Estimate) -> "MetricOut":
        """An estimate as the API shows it: what is not a number becomes null."""
        return MetricOut.model_validate(estimate.to_dict())

    def to_dict(self) -> EstimateDocument:
        """The estimate as it stands on a release's card."""
        return {
            "value": self.value,
            "se": self.se,
            "low": self.low,
            "high": self.high,
            "n": self.n,
            "dropped": self.dropped,
            "ess": self.ess,
            "clipped": self.clipped,
            "singleton_mass": self.singleton_mass,
            "horvitz_thompson": self.horvitz_thompson,
            "largest_weight": self.largest_weight,
            "model_assisted": None if self.model_assisted is None else self.model_assisted.to_dict(),
            "low_new": self.low_new,
            "high_new": self.high_new,
        }


def _without_long_names(values: Any) -> Any:
    return without_long_names(values) if isinstance(values, Mapping) else values


#: Takes what ``both_names`` wrote.
BY_SYMBOL = BeforeValidator(_without_long_names)


def both_names(of: Any) -> PlainSerializer:
    """Write values by metric under symbol and long name."""
    return PlainSerializer(with_long_names, return_type=dict[str, of])


#: Estimates by symbol; JSON has each under its long name, too.
MetricsByName = Annotated[dict[str, MetricOut], BY_SYMBOL, both_names(MetricOut)]


class ClassOut(ResponseModel):
    """A class of the reading task."""

    code: str
    name: str
    shortcut: str
    group: str = ""


class TriageOut(ResponseModel):
    """Decision on a second read, its reason, and its probability."""

    decision: Literal["single_read", "second_read"]
    priority: float
    expected_gain: float | None
    reason: Sentence
    pi: float


#: Whose answers calibrate sets: those of the service's own annotators, or of outside systems where nobody else answers.
AnswersOf = Literal["annotators", "outside"]


class AnswerSetOut(ResponseModel):
    """Classes that contain the next annotator's answer for a stated share of new patients."""

    level: float
    classes: list[str] | None
    reason: Sentence | None
    answers_of: AnswersOf
    site: str | None
    n_patients: int
    n_cells: int


#: Ends of an interval in millionths, rounded outwards: what lies below says nothing.
_Low = Annotated[float, AfterValidator(lambda end: math.floor(end * 1e6) / 1e6)]
_High = Annotated[float, AfterValidator(lambda end: math.ceil(end * 1e6) / 1e6)]


class ConsensusOut(ResponseModel):
    """Probabilities of consensus among further annotators, by class; else they are split."""

    at_least: int
    of: int
    class_probs: dict[str, float]
    split: float
    pair_probs: dict[str, float]

    @classmethod
    def by_class(cls, classes: list[str], probs: tuple[list[float], list[float]] | None) -> "ConsensusOut | None":
        """Probabilities that four of five, and that both of two, name each class; None where they are not known."""
        if probs is None:
            return None
        four, both = (dict(zip(classes, values, strict=True)) for values in probs)
        split = max(0.0, 1 - sum(probs[0]))
        return ConsensusOut(at_least=4, of=5, class_probs=four, split=split, pair_probs=both)


class DistributionOut(ResponseModel):
    """A predictive distribution."""

    class_probs: dict[str, float]
    log_concentration: float | None
    disagreement_prob: float | None
    disagreement_calibrated: bool
    disagreement_constant: bool
    class_intervals: dict[str, tuple[_Low, _High]] | None
    consensus: ConsensusOut | None = None
    answer_set: AnswerSetOut | None = None


class PredictionOut(DistributionOut):
    """A prediction by a model release."""

    release: str
    classes: list[str]
    triage: TriageOut
    out_of_distribution: bool | None
    reasons: list[Literal["place", "size", "focus", "stain", "features"]]
    distance: float | None
    distance_percentile: float | None
    image_sha256: str


class PosteriorOut(DistributionOut):
    """The distribution after all active blinded labels."""

    release: str
    n_labels: int
    label_counts: dict[str, int]
    majority_prob: float | None
    further_labels_expected: int | None
    reader_model: int | None
