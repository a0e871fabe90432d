"""Who is calling, and what they may do: every role is a set of scopes, and a service key names them one by one."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ml.messages import messages

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


def sees_more(scopes: Iterable[str]) -> bool:
    """Whether scopes show anything of a case beyond its pixels: every scope does but that of one's own reads.

    >>> sees_more(["reads:own"]), sees_more(["predict"])
    (False, True)
    """
    return bool(set(scopes) - {READING})


@dataclass(frozen=True)
class Principal:
    """The caller of a request.

    Attributes:
        account_id: account.
        name: of the account.
        role: viewer, annotator, admin or service.
        scopes: what it may do.
        session_id: browser session; None for an API key.
        session_ends: when it ends at the latest.
        language: of the pages, as chosen by the account; None for the browser's.
    """

    account_id: uuid.UUID
    name: str
    role: str
    scopes: frozenset[str]
    session_id: uuid.UUID | None = None
    session_ends: datetime | None = None
    language: str | None = None

    @property
    def blind(self) -> bool:
        """Whether predictions and others' labels are hidden from these callers until they have committed their own."""
        return READING in self.scopes and "cases:read" not in self.scopes
