"""Response models of the annotator routes."""

from datetime import datetime

from app.http.models import ResponseModel, Sentence


class PulledOut(ResponseModel):
    """An estimate for one annotator, shrunk towards all annotators, with its 95% interval."""

    value: float
    low: float
    high: float
    n: int
    everybody: float


class ConfusionOut(ResponseModel):
    """How often an annotator chooses a class if the others choose another or the same."""

    others_say: str
    says: str
    share: float
    low: float
    high: float
    everybody: float
    notable: bool


class ConfidenceOut(ResponseModel):
    """Agreement of others with an annotator by confidence."""

    confidence: float
    agreement: PulledOut


class StepOut(ResponseModel):
    """Consecutive cells, ten or a multiple, and the agreement on them."""

    first: datetime
    last: datetime
    surplus: PulledOut


class OwnReadingOut(ResponseModel):
    """Statistics of an annotator, next to the others."""

    annotator: str
    until: datetime
    n_reads: int
    n_compared: int
    seconds: PulledOut | None
    cannot_tell: PulledOut | None
    self_agreement: PulledOut | None
    agreement: PulledOut | None
    agreement_surplus: PulledOut | None
    confusions: list[ConfusionOut]
    confidence: list[ConfidenceOut]
    steps: list[StepOut]
    drift: PulledOut | None
    sentences: list[Sentence]


class AnnotatorsOut(ResponseModel):
    """Names of annotators with accounts."""

    items: list[str]
