"""What requests pass on their way: language, headers, unexpected errors, fair share, steps of time, size of bodies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import blake2b
from time import monotonic

from fastapi import Depends
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from app.http import limiter
from app.http.errors import Problem, ServiceOverloaded, TooLarge, answer_problem, on_defect, problem_response
from app.http.languages import current_request
from app.http.principal import is_secure, network_of, session_token


class LanguageMiddleware:
    """ASGI middleware that remembers which request is being answered, so that every sentence finds its language."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection. What it remembers outlasts the application: a page about a defect is made outside."""
        if scope["type"] == "http":
            scope.setdefault("state", {})  # which the application shares
            current_request.set(None if scope["path"].startswith("/v1/") else Request(scope))
        await self.app(scope, receive, send)


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
    """ASGI middleware that adds the headers, and forbids storing pages and answers unless a route says otherwise."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""

        async def add(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                headers = [*_HEADERS, _HSTS] if is_secure(Request(scope)) else _HEADERS
                present = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in headers if one[0] not in present)]
            await send(message)

        await self.app(scope, receive, add if scope["type"] == "http" else send)


class UnexpectedErrorMiddleware:
    """ASGI middleware that answers unexpected exceptions."""

    # The framework's own handler of such exceptions lies outside of every middleware, so that its answers have neither
    # the request's identifier nor the headers of the others.

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        begun = False

        async def watch(message: AsgiMessage) -> None:
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


#: Seconds of a request for which its place is kept while its body arrives.
BODY_SECONDS = 0.05
#: What supervisors and monitoring ask for, and what waits for an identity provider: they have no thread.
FREE_PATHS = frozenset({"/healthz", "/v2/health/live", "/metrics", "/login/oidc", "/login/oidc/callback"})


def make_share_limiters(at_once: int) -> tuple[limiter.Limiter, limiter.Limiter]:
    """Limiters of callers and of addresses, for so many requests of a caller at once."""
    per_address = max(limiter.MIN_PER_ADDRESS, limiter.CALLERS_PER_ADDRESS * at_once)
    return limiter.Limiter(limiter.CALLER_REQUESTS, at_once), limiter.Limiter(limiter.ADDRESS_REQUESTS, per_address)


class FairShare:
    """ASGI middleware that admits a few requests of each caller and of each address at a time."""

    # Sixty requests of one program would otherwise take every thread and most of the processor, and the labels of
    # others would wait behind them. A waiting request holds neither a thread nor memory.

    def __init__(self, app: ASGIApp, of_callers: limiter.Limiter, of_addresses: limiter.Limiter) -> None:
        self.app, self.of_callers, self.of_addresses = app, of_callers, of_addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["path"] in FREE_PATHS:
            await self.app(scope, receive, send)
            return
        caller, address = _get_caller_and_address_keys(Request(scope))
        places = (limiter.LimitPlace(self.of_callers, key=caller), limiter.LimitPlace(self.of_addresses, key=address))
        share = _RequestSlots(places, receive, send)
        try:
            if await share.take():
                await self.app(scope, share.receive, share.send)
        except ClientDisconnect:
            if share.problem is None:
                raise
        finally:
            share.give_back()
        if share.problem is not None and not share.begun:
            await answer_problem(Request(scope), share.problem)(scope, receive, send)


def _get_caller_and_address_keys(request: Request) -> tuple[str, str]:
    address = "from " + network_of(request.client.host if request.client else "")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    sent = token.strip() or scheme or session_token(request)
    return ("sent " + blake2b(sent.encode(), digest_size=16).hexdigest() if sent else address), address


class _RequestSlots:
    """Slots of one request, released while its body arrives and when its answer begins."""

    def __init__(self, places: tuple[limiter.LimitPlace, limiter.LimitPlace], receive: Receive, send: Send) -> None:
        self._places, self._receive, self._send = places, receive, send
        self._complete = False
        self._keep_until: float | None = None
        self.problem: ServiceOverloaded | None = None
        self.begun = False

    async def take(self) -> bool:
        """Take both places, or wait for them; whether they came in time."""
        try:
            for place in self._places:
                await place.take_async()
        except ServiceOverloaded as exc:
            self.problem = exc
            return False
        return True

    def give_back(self) -> None:
        """Give back what is taken now."""
        for place in reversed(self._places):
            place.give_back()

    async def send(self, message: AsgiMessage) -> None:
        """Send a part of the answer, unless there was no place: then what the application makes of that is dropped."""
        if self.problem is not None and not self.begun:
            return
        self.begun = True
        self.give_back()
        await self._send(message)

    async def receive(self) -> AsgiMessage:
        """The next part of the body."""
        if self._complete or self.begun:
            return await self._receive()
        message = await self._without_place()
        self._complete = not message.get("more_body", False)
        is_body = self._complete and message["type"] == "http.request"
        if is_body and not self._places[-1].is_held and not await self.take():
            raise ClientDisconnect
        return message

    async def _without_place(self) -> AsgiMessage:
        """What is received, giving the places back where it is not here yet."""
        loop = asyncio.get_running_loop()
        self._keep_until = self._keep_until or loop.time() + BODY_SECONDS
        # no task, which would cost more than what it waits for: most often the body is here
        late = loop.call_at(self._keep_until, self.give_back)
        try:
            return await self._receive()
        finally:
            late.cancel()


#: Seconds between the moments at which answers of even time are sent.
EVEN_STEP = 0.01


async def _send_at_a_step() -> AsyncIterator[None]:
    # a cell with labels of others takes a quarter of a millisecond longer, which an annotator could measure
    began = monotonic()
    try:
        yield
    finally:
        await asyncio.sleep((began - monotonic()) % EVEN_STEP)


#: Of a route that leases or ends a read: its answer waits for the next step after all of its work.
EVEN_TIME = Depends(_send_at_a_step, scope="function")


#: A form's file is in memory twice for a moment: as it arrived, and as it is used.
_COPIES = 2
#: Paths that take images.
UPLOAD_PATHS = frozenset({"/v1/cases", "/v1/predictions"})
#: What paths of the Open Inference Protocol begin with.
PROTOCOL = "/v2/"
#: What paths begin with that take the cells of a specimen, many at once.
SPECIMENS = "/v1/specimens/"
#: Paths that take archives, which are streamed to disk.
ARCHIVE_PATHS = frozenset({"/v1/imports", "/imports", "/imports/checks"})
#: Paths that read a body of somebody who is not known yet.
SIGN_IN_PATHS = frozenset({"/login"})


class SlowRequest(Problem):
    """The body did not arrive in time."""

    status, code, title = 408, "request-timeout", "Request too slow"


class BodyLimits:
    """ASGI middleware that answers 408, 413 and 429 itself, whatever the application makes of a cut body."""

    def __init__(self, app: ASGIApp, memory: limiter.Limiter) -> None:
        self.app, self.memory = app, memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit, seconds = _get_body_limits(scope["path"])
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await _make_limit_response(scope, _make_too_large_problem(limit))(scope, receive, send)
            return
        # without a length it may become as large as is allowed
        size = limit if b"transfer-encoding" in headers else int(declared)
        size = 0 if scope["path"] in ARCHIVE_PATHS | SIGN_IN_PATHS else _COPIES * size
        place = limiter.LimitPlace(self.memory, size)
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


def _get_body_limits(path: str) -> tuple[int, float]:
    """Bytes of a body, and the seconds in which they must arrive."""
    if path in ARCHIVE_PATHS:
        return limiter.MAX_ARCHIVE, limiter.ARCHIVE_SECONDS
    if path.startswith(SPECIMENS) and path.endswith("/cells"):
        return limiter.MAX_CELLS, limiter.CELLS_SECONDS
    if path in SIGN_IN_PATHS:
        return limiter.MAX_SIGN_IN, limiter.RECEIVE_SECONDS
    is_upload = path in UPLOAD_PATHS or (path.startswith(PROTOCOL) and path.endswith("/infer"))
    return limiter.MAX_UPLOAD if is_upload else limiter.MAX_BODY, limiter.RECEIVE_SECONDS


def _make_too_large_problem(limit: int) -> Problem:
    mebibytes = limit // 1024**2
    return TooLarge(
        "the body is larger than {mebibytes}", mebibytes=f"{mebibytes} MiB" if mebibytes else f"{limit // 1024} KiB"
    )


class _BodyGuard:
    """Counts one request's body; once it breaks a limit, what the application answers is dropped."""

    def __init__(self, receive: Receive, send: Send, limit: int, seconds: float, place: limiter.LimitPlace) -> None:
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
