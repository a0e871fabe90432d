"""Principal: the caller and its scopes; a role is a set of scopes, a service key lists them."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ml.messages import messages

COOKIE, SECURE_COOKIE = "sr_session", "__Host-sr_session"


SCOPES = messages(
    {
        "predict": "predict images without storing them",
        "cases:read": "read cases, images, predictions, posteriors and labels",
        "cases:write": "store cases",
        "reads:own": "see images, give labels, and see one's own cases after committing",
        "labels:write": "store labels of named annotators of an outside system",
        "metrics:read": "read metrics, releases, policies and jobs",
        "manage": "change policies, recalibrate, promote, manage people and keys, read the audit",
    }
)
#: The scope of annotators.
READING = "reads:own"
_VIEWER = frozenset({"predict", "cases:read", "metrics:read"})
ROLE_SCOPES = {
    "viewer": _VIEWER,
    "annotator": frozenset({READING}),
    "admin": _VIEWER | {"cases:write", "manage"},
    "service": frozenset[str](),
}


def can_see_more_than_pixels(scopes: Iterable[str]) -> bool:
    """Whether scopes show anything of a case beyond its pixels.

    >>> can_see_more_than_pixels(["reads:own"]), can_see_more_than_pixels(["predict"])
    (False, True)
    """
    return bool(set(scopes) - {READING})


@dataclass(frozen=True)
class Principal:
    """The caller of a request."""

    account_id: uuid.UUID
    name: str
    # viewer, annotator, admin or service
    role: str
    # what it may do
    scopes: frozenset[str]
    # browser session; None for an API key
    session_id: uuid.UUID | None = None
    # when it ends at the latest
    session_ends: datetime | None = None
    # of the pages, as chosen by the account; None for the browser's
    language: str | None = None

    @property
    def blind(self) -> bool:
        """Whether predictions and others' labels are hidden from these callers until they have committed their own."""
        return READING in self.scopes and "cases:read" not in self.scopes
