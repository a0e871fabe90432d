"""Defects are answered inside what every answer passes: its number, its headers, its line in the log."""

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.errors import on_defect


class Defects:
    """ASGI middleware that answers an exception that nobody expected.

    The framework's own handler of such exceptions lies outside of every middleware, so that its answers have neither
    the request's identifier nor the headers of the others.

    Args:
        app: the application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection.

        Raises:
            ClientDisconnect: the caller went away.
            Exception: the answer had begun, and cannot become another one.
        """
        begun = False

        async def watch(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except ClientDisconnect:
            raise
        except Exception as exc:
            if scope["type"] != "http" or begun:
                raise
            await on_defect(Request(scope), exc)(scope, receive, send)
