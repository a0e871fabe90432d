"""What a browser says about where its request comes from, and whether browsers reach the service by TLS."""

from urllib.parse import urlsplit

from fastapi import Request

from app.http.errors import CrossSite
from app.settings import Settings

COOKIE, SECURE_COOKIE = "sr_session", "__Host-sr_session"


def _public_origin(request: Request) -> str | None:
    """Scheme and host of the address that browsers use, where the settings name it."""
    settings: Settings = request.app.state.context.settings
    if settings.public_url is None:
        return None
    parts = urlsplit(settings.public_url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def is_secure(request: Request) -> bool:
    """Whether browsers reach the service by TLS: a trusted proxy says so, or the settings' public address does."""
    return request.scope.get("scheme") == "https" or (_public_origin(request) or "").startswith("https://")


def session_cookie(request: Request) -> str:
    """Name of the session's cookie; with the prefix no other site, and nobody without TLS, can set it."""
    return SECURE_COOKIE if is_secure(request) else COOKIE


def session_token(request: Request) -> str | None:
    """Token of the request's session cookie."""
    return request.cookies.get(session_cookie(request))


def refuse_cross_site(request: Request) -> None:
    """Refuse a form or script of another site that rides on a signed-in browser.

    Raises:
        CrossSite: the browser says the request comes from elsewhere.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None and site not in {"same-origin", "none"}:
        raise CrossSite("the request comes from another site")
    own = {f"{request.url.scheme}://{request.headers.get('host', '')}".lower(), _public_origin(request)}
    if origin is not None and origin.lower() not in own:
        raise CrossSite("the request comes from another site; behind a proxy, set PUBLIC_URL or TRUSTED_PROXIES")
