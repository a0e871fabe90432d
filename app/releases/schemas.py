"""Request and response models of the release routes."""

import uuid
from datetime import datetime
from typing import Any, Literal, get_args

from app.database.tables.values import AliasName
from app.http.models import ClassOut, Moment, Paragraph, Reason, RequestModel, ResponseModel
from app.releases.gate_verdicts import Gate
from ml.calibration.scaling import Method


class ReleaseOut(ResponseModel):
    """A model release."""

    id: str
    name: str
    aliases: list[AliasName]
    classes: list[ClassOut]
    disagreement_calibrated: bool
    out_of_distribution_check: bool
    metrics_stated_by_maker: bool
    card_sha256: str
    parent: str | None
    gate_passed: bool | None
    gate_fault: str | None = None
    created_at: datetime


class ReleaseDetailOut(ReleaseOut):
    """A model release with its card and last promotion check."""

    card: dict[str, Any]
    gate: Gate | None = None


class ReleasesOut(ResponseModel):
    """Model releases."""

    items: list[ReleaseOut]


class AliasOut(ResponseModel):
    """An alias and its model release."""

    name: AliasName
    release: str
    revision: int


class AliasesOut(ResponseModel):
    """Every alias."""

    items: list[AliasOut]


class AliasIn(RequestModel):
    """Move of an alias, with the reason."""

    release: uuid.UUID
    reason: Reason
    password: Paragraph | None = None
    despite_gate: bool = False


#: A scaling of the class probabilities with which everything is fitted anew, or ``adapt``: the champion's calibration
#: is kept but for temperature, level and slope of the disagreement.
RecalibrationMethod = Literal[Method, "adapt"]
RECALIBRATION_METHODS: tuple[RecalibrationMethod, ...] = (*get_args(Method), "adapt")
#: Where nobody chooses.
DEFAULT_METHOD: RecalibrationMethod = "temperature"


class RecalibrationIn(RequestModel):
    """Method and cells of a recalibration."""

    method: RecalibrationMethod = DEFAULT_METHOD
    since: Moment | None = None
