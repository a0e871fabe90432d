"""Principal: the caller and its scopes, its cookie and its address; a role is a set of scopes."""

import ipaddress
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.requests import Request

from ml.messages import messages

COOKIE, SECURE_COOKIE = "sr_session", "__Host-sr_session"


SCOPES = messages(
    {
        "predict": "predict images without storing them",
        "cases:read": "read cells, images, predictions, posteriors and labels",
        "cases:write": "store cells",
        "reads:own": "see images, submit labels, and then see one's own cells",
        "labels:write": "store labels of named annotators of an external system",
        "metrics:read": "read metrics, releases, policies and jobs",
        "manage": "change policies, recalibrate, promote, manage people and keys, read the audit log",
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


def role_or_key_sees_more(role: str, scopes: Iterable[str] | None) -> bool:
    """Whether a role, or the scopes of one of its keys where there is one, shows more than pixels."""
    return can_see_more_than_pixels(ROLE_SCOPES[role]) or can_see_more_than_pixels(scopes or ())


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


def public_origin(request: Request) -> str | None:
    """Scheme and host of the address that browsers use, where the settings name it."""
    public_url: str | None = request.app.state.context.settings.public_url
    if public_url is None:
        return None
    parts = urlsplit(public_url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def is_secure(request: Request) -> bool:
    """Whether browsers reach the service by TLS: a trusted proxy says so, or the settings' public address does."""
    return request.scope.get("scheme") == "https" or (public_origin(request) or "").startswith("https://")


def session_cookie(request: Request) -> str:
    """Name of the session cookie; the prefix keeps other sites from setting it."""
    return SECURE_COOKIE if is_secure(request) else COOKIE


def session_token(request: Request) -> str | None:
    """Token of the request's session cookie."""
    return request.cookies.get(session_cookie(request))


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """The address, or the network that one subscriber has in IPv6, where addresses cost nothing.

    >>> network_of("192.0.2.7"), network_of("2001:db8:1:2:3:4:5:6"), network_of("testclient")
    ('192.0.2.7', '2001:db8:1:2::/64', 'testclient')
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))
