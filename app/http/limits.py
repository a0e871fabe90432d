"""Limits on the size, the memory and the rate of requests."""

import asyncio
import ctypes
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from app.http.errors import Problem, RateLimited, ServiceOverloaded, TooLarge, answer_problem, problem_response
from app.http.limiter import (
    ARCHIVE_SECONDS,
    MAX_ARCHIVE,
    MAX_BODY,
    MAX_SIGN_IN,
    MAX_UPLOAD,
    RECEIVE_SECONDS,
    Limiter,
    LimitPlace,
)
from ml.messages import Message

# of malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MIB = 1024**2


def give_back_freed_memory() -> None:
    """Have large freed blocks returned to the system, rather than kept by each thread for its next one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MIB)
        mallopt(_M_TRIM_THRESHOLD, 8 * _MIB)


#: A form's file is in memory twice for a moment: as it arrived, and as it is used.
_COPIES = 2
#: Paths that take images.
UPLOAD_PATHS = frozenset({"/v1/cases", "/v1/predictions"})
#: What paths of the Open Inference Protocol begin with.
PROTOCOL = "/v2/"
#: Paths that take archives, which are streamed to disk.
ARCHIVE_PATHS = frozenset({"/v1/imports", "/imports", "/imports/checks"})
#: Paths that read a body of somebody who is not known yet.
SIGN_IN_PATHS = frozenset({"/login"})


class SlowRequest(Problem):
    """The body did not arrive in time."""

    status, code, title = 408, "request-timeout", "Request too slow"


class BodyLimits:
    """ASGI middleware that answers 408, 413 and 429 itself, whatever the application makes of a cut body."""

    def __init__(self, app: ASGIApp, memory: Limiter) -> None:
        self.app, self.memory = app, memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = _get_body_limit(scope["path"])
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _make_limit_response(scope, _make_too_large_problem(limit))(scope, receive, send)
            return
        seconds = ARCHIVE_SECONDS if scope["path"] in ARCHIVE_PATHS else RECEIVE_SECONDS
        # without a length it may become as large as is allowed
        size = limit if b"transfer-encoding" in headers else int(declared)
        size = 0 if scope["path"] in ARCHIVE_PATHS | SIGN_IN_PATHS else _COPIES * size
        place = LimitPlace(self.memory, size)
        guard = _BodyGuard(receive, send, limit, seconds, place)
        try:
            await self.app(scope, guard.receive, guard.send)
        except ClientDisconnect:
            if guard.problem is None:
                raise
        finally:
            place.give_back()
        if guard.problem is not None and not guard.started:
            await _make_limit_response(scope, guard.problem)(scope, receive, send)


def _make_limit_response(scope: Scope, problem: Problem) -> Response:
    """A problem as a document; where another protocol is spoken, as that has it."""
    of_protocol = scope["path"].startswith(PROTOCOL)
    return answer_problem(Request(scope), problem) if of_protocol else problem_response(problem)


def _get_body_limit(path: str) -> int:
    if path.startswith(PROTOCOL) and path.endswith("/infer"):
        return MAX_UPLOAD
    if path in ARCHIVE_PATHS:
        return MAX_ARCHIVE
    if path in SIGN_IN_PATHS:
        return MAX_SIGN_IN
    return MAX_UPLOAD if path in UPLOAD_PATHS else MAX_BODY


def _make_too_large_problem(limit: int) -> Problem:
    mebibytes = limit // 1024**2
    return TooLarge(
        Message(
            "the body is larger than {mebibytes}", mebibytes=f"{mebibytes} MiB" if mebibytes else f"{limit // 1024} KiB"
        )
    )


class _BodyGuard:
    """Counts one request's body; once it breaks a limit, what the application answers is dropped."""

    def __init__(self, receive: Receive, send: Send, limit: int, seconds: float, place: LimitPlace) -> None:
        self._receive: Callable[[], Awaitable[AsgiMessage]] = receive
        self._send, self._limit = send, limit
        self._seen, self._complete = 0, False
        self._seconds = seconds
        self._deadline: float | None = None
        self._place = place
        self.problem: Problem | None = None
        self.started = False

    async def receive(self) -> AsgiMessage:
        if self._complete:
            return await self._receive()
        if self._deadline is None:
            await self._begin()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as exc:
            self.problem = SlowRequest(f"the body did not arrive within {self._seconds:.0f} s")
            raise ClientDisconnect from exc
        self._seen += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._seen > self._limit:
            self.problem = _make_too_large_problem(self._limit)
            raise ClientDisconnect
        return message

    async def _begin(self) -> None:
        """Take memory before the first byte is read: whoever waits for it has cost nothing yet."""
        try:
            await self._place.take_async()
        except ServiceOverloaded as exc:
            self.problem = exc
            raise ClientDisconnect from exc
        self._deadline = asyncio.get_running_loop().time() + self._seconds

    async def send(self, message: AsgiMessage) -> None:
        if self.problem is not None and not self.started:
            return
        self.started = True
        await self._send(message)


_SECONDS = 60.0


class RateLimit:
    """Limit of requests per caller in any window of sixty seconds."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock, self._lock = per_minute, clock, threading.Lock()
        #: until when each caller's requests of the last minute count; who asked least recently is first
        self._until: OrderedDict[str, deque[float]] = OrderedDict()

    def count(self, caller: str) -> None:
        """Count a request, unless it is refused."""
        if not self._limit:
            return
        with self._lock:
            now = self._clock()
            until = self._until.setdefault(caller, deque())
            self._until.move_to_end(caller)
            while until and until[0] <= now:
                until.popleft()
            self._forget_who_is_gone(now)
            if len(until) < self._limit:
                until.append(now + _SECONDS)
                return
            wait = until[0] - now
        raise RateLimited(
            Message("more than {limit} requests per minute; slow down", limit=self._limit), max(1, math.ceil(wait))
        )

    def _forget_who_is_gone(self, now: float) -> None:
        while len(self._until) > 1 and next(iter(self._until.values()))[-1] <= now:
            self._until.popitem(last=False)
