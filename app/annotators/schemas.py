"""Response models of the annotator routes."""

from datetime import datetime

from app.http.models import ResponseModel, Sentence


class PulledOut(ResponseModel):
    """An estimate of one annotator, pulled towards all annotators, with its 95 % interval."""

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
    """Some cases in a row, ten or a multiple: whether the annotator's answers were foreseen as well as expected."""

    first: datetime
    last: datetime
    surplus: PulledOut


class OwnReadingOut(ResponseModel):
    """How an annotator reads, next to the others; until the last Monday, and in steps of ten."""

    annotator: str
    until: datetime
    n_reads: int
    n_compared: int
    seconds: PulledOut | None
    cannot_tell: PulledOut | None
    self_agreement: PulledOut | None
    agreement: PulledOut | None
    # what the agreement is more than for somebody like the others on the same cases
    agreement_surplus: PulledOut | None
    confusions: list[ConfusionOut]
    confidence: list[ConfidenceOut]
    steps: list[StepOut]
    # of the last steps compared with those before
    drift: PulledOut | None
    sentences: list[Sentence]


class AnnotatorsOut(ResponseModel):
    """Names of annotators with accounts."""

    items: list[str]
