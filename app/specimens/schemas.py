"""Request and response models of the specimen routes."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from app.database.tables.values import SignatureMeaning, SpecimenState
from app.http.models import Line, Moment, Paragraph, Reason, RequestModel, ResponseModel, Sentence

Decision = Literal["above", "below", "open"]
_Number = Annotated[int, Field(ge=1, le=2**31 - 1)]


class SpecimenIn(RequestModel):
    """A specimen before its cells."""

    external_id: Line
    patient: Line | None = None
    site: Line | None = None
    collected_at: Moment | None = None


class ShareOut(ResponseModel):
    """A share with its 95 % interval."""

    share: float
    interval: tuple[float, float]


class ComponentsOut(ResponseModel):
    """Variances of the patient's share by source; the total variance is their sum."""

    cells: float
    annotators: float
    sampling: float


class ThresholdOut(ResponseModel):
    """Whether the patient's share of a group reaches a threshold."""

    at: float
    miss_cost: float
    probability_above: float
    decision: Decision
    expected_loss: float
    settled: bool


class GroupShareOut(ResponseModel):
    """Share of a reporting group."""

    group: str
    count: int
    slide: ShareOut
    patient: ShareOut
    counted: tuple[float, float] | None
    components: ComponentsOut
    thresholds: list[ThresholdOut]


class DecidingCellOut(ResponseModel):
    """A cell of which a further read is worth most."""

    case: str
    value: float


class SpecimenReadsOut(ResponseModel):
    """Blinded labels of a specimen's cells."""

    labels: int = 0
    annotators: int = 0


class MeasuredShares(ResponseModel):
    """What is computed of a specimen; the defaults are those of one without cells."""

    n_cells: int = 0
    release: str | None = None
    mix: Literal["own", "training"] = "training"
    groups: list[GroupShareOut] = Field(default_factory=list)
    deciding_cells: list[DecidingCellOut] = Field(default_factory=list)
    reads: SpecimenReadsOut = Field(default_factory=SpecimenReadsOut)
    assumes: list[Sentence] = Field(default_factory=list)
    warnings: list[Sentence] = Field(default_factory=list)


class SignatureIn(RequestModel):
    """A signature on the shares of a specimen as they were shown."""

    meaning: SignatureMeaning
    version: _Number | None = None
    amends: _Number | None = None
    reason: Reason | None = None
    comment: Reason | None = None
    password: Paragraph | None = None


class DifferenceOut(ResponseModel):
    """A decision at a threshold that is another one than was signed."""

    group: str
    at: float
    signed: Decision
    now: Decision


class SignatureOut(ResponseModel):
    """A signature on a specimen."""

    number: int
    meaning: SignatureMeaning
    by: str
    signed_at: datetime
    comment: str | None
    reason: str | None
    version: int
    digest: str
    differs: list[DifferenceOut]


class SignedVersionOut(SignatureOut):
    """A signature with what was shown."""

    document: dict[str, Any]


class SignaturesOut(ResponseModel):
    """Signatures on a specimen."""

    items: list[SignedVersionOut]


class SpecimenOut(MeasuredShares):
    """A specimen with its shares, and what would settle them."""

    specimen: str
    external_id: str
    patient: str | None
    site: str | None
    collected_at: datetime | None
    created_at: datetime
    state: SpecimenState
    version: int
    computed_at: datetime | None
    stale: bool
    signature: SignatureOut | None


class SpecimensOut(ResponseModel):
    """A page of specimens."""

    items: list[SpecimenOut]
    next_cursor: str | None
