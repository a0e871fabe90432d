"""Security headers of every answer."""

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.accounts.sign_in import is_secure

#: Browsers that have come by TLS once come by nothing else for a year.
_HSTS = (b"strict-transport-security", b"max-age=31536000")
#: What a page may load and do, unless its route has another policy.
POLICY = (
    "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    # not "no-referrer": browsers then send the Origin of forms as "null"
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class SecurityHeaders:
    """ASGI middleware that adds the headers, and forbids storing pages and answers unless a route says otherwise.

    Args:
        app: the application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                wanted = [*_HEADERS, _HSTS] if is_secure(Request(scope)) else _HEADERS
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in wanted if one[0] not in present)]
            await send(message)

        await self.app(scope, receive, add if scope["type"] == "http" else send)
