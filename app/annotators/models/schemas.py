"""Request and response models of the annotator-model routes."""

import uuid
from datetime import datetime
from typing import Annotated

from pydantic import Field

from app.http.models import Line, MetricOut, Reason, RequestModel, ResponseModel, Sentence


class NamedReaderOut(ResponseModel):
    """Parameters of one annotator."""

    annotator: str
    n_labels: int
    confusions: dict[str, dict[str, float]]
    remark: Sentence | None


class ReaderFitOut(ResponseModel):
    """How a model was fitted and tested; gains are measured on the evaluation partition."""

    kind: str
    left_out_losses: dict[str, float]
    n_cases: int
    n_labels: int
    n_annotators: int
    gain_over_served: MetricOut | None
    gain_over_alike: MetricOut | None
    passed: bool
    verdict: Sentence
    temperature: float
    log_concentration_shift: float
    weight: float = 1.0


class ReaderModelOut(ResponseModel):
    """A version of the annotator model, for one model release."""

    version: int
    release: str
    created_at: datetime
    in_use: bool
    fit: ReaderFitOut


class ReaderModelDetailOut(ReaderModelOut):
    """A version with the parameters of each annotator and of the population of unknown ones."""

    class_names: dict[str, str]
    readers: list[NamedReaderOut]
    population: dict[str, dict[str, float]]


class ReaderModelsOut(ResponseModel):
    """Every version."""

    in_use: int | None
    revision: int
    items: list[ReaderModelOut]


class ReaderModelInUseOut(ResponseModel):
    """Position of the switch between annotator models."""

    version: int | None
    serves: bool
    revision: int


class ReaderFitIn(RequestModel):
    """Population and model release for a fit."""

    experts: Annotated[tuple[Line, ...], Field(max_length=1000)] = ()
    release: uuid.UUID | None = None


class ReaderSwitchIn(RequestModel):
    """Version to weight labels with."""

    version: Annotated[int | None, Field(ge=1, le=2**31 - 1)]
    reason: Reason
