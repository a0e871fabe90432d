"""Request and response models of the release routes."""

import uuid
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from app.http.models import ClassOut, Moment, Paragraph, RequestModel, ResponseModel
from app.releases.gate_verdicts import Gate
from ml.calibration.scaling import Method


class ReleaseOut(ResponseModel):
    """A release."""

    id: str
    name: str
    aliases: list[str]
    classes: list[ClassOut]
    disagreement_calibrated: bool
    out_of_distribution_check: Annotated[
        bool, Field(description="Whether it notices images unlike its own; without, each of its cases is read twice.")
    ]
    metrics_stated_by_maker: Annotated[
        bool,
        Field(
            description="The card does not name this network as the one that its metrics were measured on; neither the "
            "gate nor a report uses them."
        ),
    ]
    card_sha256: str
    parent: str | None
    gate_passed: bool | None
    gate_fault: Annotated[
        str | None, Field(description="Why what the gate found cannot be read; such a release cannot be promoted.")
    ] = None
    created_at: datetime


class ReleaseDetailOut(ReleaseOut):
    """A release with its whole card, and what the gate of this service found last."""

    card: dict[str, Any]
    gate: Gate | None = None


class ReleasesOut(ResponseModel):
    """Releases, newest first."""

    items: list[ReleaseOut]


class AliasOut(ResponseModel):
    """Which release an alias names; ``revision`` counts its moves and is its ETag."""

    name: str
    release: str
    revision: int


class AliasesOut(ResponseModel):
    """Every alias."""

    items: list[AliasOut]


class AliasIn(RequestModel):
    """Where an alias is to point, and why; people who are signed in repeat their password."""

    release: uuid.UUID
    reason: Paragraph
    password: Paragraph | None = None
    despite_gate: Annotated[
        bool,
        Field(
            description="Promote a model release without a passed promotion check; the reason must explain it. "
            "The first champion of an empty service needs no check."
        ),
    ] = False


#: A scaling of the class probabilities with which everything is fitted anew, or ``adapt``: the champion's calibration
#: is kept but for temperature, level and slope of the disagreement.
RecalibrationMethod = Literal[Method, "adapt"]
RECALIBRATION_METHODS: tuple[RecalibrationMethod, ...] = (*get_args(Method), "adapt")
#: Where nobody chooses.
DEFAULT_METHOD: RecalibrationMethod = "temperature"


class RecalibrationIn(RequestModel):
    """How the champion is to be recalibrated, and on which cases."""

    method: Annotated[
        RecalibrationMethod,
        Field(
            description="none, temperature, vector, matrix: how class probabilities are calibrated, with the "
            "concentration fitted anew. adapt: for annotators who are not those of the release and few cases read "
            "twice (20 at least); the champion's calibration is kept, and temperature, level and slope of the "
            "disagreement are relearned."
        ),
    ] = DEFAULT_METHOD
    since: Annotated[Moment | None, Field(description="Only cases stored at this time or later.")] = None
