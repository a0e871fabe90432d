"""Request and response models of the annotator-model routes."""

import uuid
from datetime import datetime
from typing import Annotated

from pydantic import Field

from app.http.models import Line, MetricOut, Paragraph, RequestModel, ResponseModel, Sentence


class NamedReaderOut(ResponseModel):
    """Parameters of one annotator: ``confusions[opinion][answer]``, rows that sum to one."""

    annotator: str
    n_labels: int
    confusions: dict[str, dict[str, float]]
    remark: Annotated[
        Sentence | None,
        Field(description="Their main difference from the population, in a sentence; null: none."),
    ]


class ReaderFitOut(ResponseModel):
    """How a model was fitted and judged.

    ``left_out_losses``: negative log-likelihood of a left-out label in nats, by how strongly annotators are pulled
    together; ``kind`` is the chosen one, ``alike`` where names predict no better. ``gain_over_served`` and
    ``gain_over_alike``: fall of the log loss of the next label on the evaluation partition.
    """

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


class ReaderModelOut(ResponseModel):
    """A version of the model of annotators, of one release."""

    version: int
    release: str
    created_at: datetime
    in_use: bool
    fit: ReaderFitOut


class ReaderModelDetailOut(ReaderModelOut):
    """A version with what it holds of each annotator and of the population that an unknown one is drawn from."""

    class_names: dict[str, str]
    readers: list[NamedReaderOut]
    population: dict[str, dict[str, float]]


class ReaderModelsOut(ResponseModel):
    """Every version, newest first; ``in_use`` null: annotators are taken as alike; ``revision`` is for If-Match."""

    in_use: int | None
    revision: int
    items: list[ReaderModelOut]


class ReaderModelInUseOut(ResponseModel):
    """Where the switch is: ``version`` null, annotators are taken as alike; ``revision`` is for If-Match.

    ``serves`` is false where the version was fitted beside another release than the champion: until there is a new one,
    annotators are then taken as alike.
    """

    version: int | None
    serves: bool
    revision: int


class ReaderFitIn(RequestModel):
    """Whose answers are the population's: named annotators, or everybody by the number of their labels.

    ``release``: beside whose predictions; null: the champion's. Another one must have the champion's network, as a
    recalibrated candidate has, so that its model is there when it is promoted.
    """

    experts: Annotated[tuple[Line, ...], Field(max_length=1000)] = ()
    release: uuid.UUID | None = None


class ReaderSwitchIn(RequestModel):
    """Which version is to weigh labels; null: annotators are taken as alike."""

    version: Annotated[int | None, Field(ge=1, le=2**31 - 1)]
    reason: Annotated[Paragraph, Field(min_length=1, pattern=r"\S", description="Why; not only spaces.")]
