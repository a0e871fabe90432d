"""Limits that apply before any parsing: size of a body, declared or streamed, and time to receive it."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.platform.errors import Problem, TooLarge, problem_response

MAX_BODY = 1 * 1024**2
MAX_UPLOAD = 12 * 1024**2
RECEIVE_SECONDS = 30.0
#: Paths that take images.
UPLOAD_PATHS = frozenset({"/v1/cases", "/v1/predictions"})
#: Paths that take archives, which are streamed to disk.
ARCHIVE_PATHS = frozenset({"/v1/imports", "/imports"})
#: How large and how slow an archive may be.
MAX_ARCHIVE, ARCHIVE_SECONDS = 2 * 1024**3, 1800.0


class SlowRequest(Problem):
    """The body did not arrive in time."""

    status, code, title = 408, "request-timeout", "Request too slow"


class BodyLimits:
    """ASGI middleware that answers 413 and 408 itself, whatever the application makes of a cut body.

    Args:
        app: the application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection.

        Raises:
            ClientDisconnect: the caller went away.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = _limit_of(scope["path"])
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await problem_response(_too_large(limit))(scope, receive, send)
            return
        seconds = ARCHIVE_SECONDS if scope["path"] in ARCHIVE_PATHS else RECEIVE_SECONDS
        guard = _Guard(receive, send, limit, seconds)
        try:
            await self.app(scope, guard.receive, guard.send)
        except ClientDisconnect:
            if guard.problem is None:
                raise
        if guard.problem is not None and not guard.started:
            await problem_response(guard.problem)(scope, receive, send)


def _limit_of(path: str) -> int:
    if path in ARCHIVE_PATHS:
        return MAX_ARCHIVE
    return MAX_UPLOAD if path in UPLOAD_PATHS else MAX_BODY


def _too_large(limit: int) -> Problem:
    return TooLarge(f"the body is larger than {limit // 1024**2} MiB")


class _Guard:
    """Counts one request's body; once it breaks a limit, what the application answers is dropped."""

    def __init__(self, receive: Receive, send: Send, limit: int, seconds: float) -> None:
        self._receive: Callable[[], Awaitable[Message]] = receive
        self._send, self._limit = send, limit
        self._seen, self._complete = 0, False
        self._seconds = seconds
        self._deadline = asyncio.get_running_loop().time() + seconds
        self.problem: Problem | None = None
        self.started = False

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as exc:
            self.problem = SlowRequest(f"the body did not arrive within {self._seconds:.0f} s")
            raise ClientDisconnect from exc
        self._seen += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._seen > self._limit:
            self.problem = _too_large(self._limit)
            raise ClientDisconnect
        return message

    async def send(self, message: Message) -> None:
        if self.problem is not None and not self.started:
            return
        self.started = True
        await self._send(message)
