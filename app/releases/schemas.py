"""What the routes of releases answer."""

from datetime import datetime
from typing import Any

from app.schemas import ClassOut, Out


class ReleaseOut(Out):
    """A release."""

    id: str
    name: str
    aliases: list[str]
    classes: list[ClassOut]
    disagreement_calibrated: bool
    card_sha256: str
    created_at: datetime


class ReleaseDetailOut(ReleaseOut):
    """A release with its whole card."""

    card: dict[str, Any]


class ReleasesOut(Out):
    """Releases, newest first."""

    items: list[ReleaseOut]
