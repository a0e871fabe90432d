"""Fair share: limits the concurrent requests of each caller; further requests wait.

Sixty requests of one program would otherwise take every thread and most of the processor, and everybody else's labels
would wait behind them. Who waits here has neither a thread nor memory, so that others are served meanwhile.
"""

import asyncio
from hashlib import blake2b

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.accounts.sign_in import network_of, session_token
from app.http.errors import ServiceOverloaded, answer_problem
from app.http.limiter import (
    ADDRESS_REQUESTS,
    CALLER_REQUESTS,
    CALLERS_PER_ADDRESS,
    MIN_PER_ADDRESS,
    Limiter,
    LimitPlace,
)

#: Seconds of a request for which its place is kept while its body arrives.
BODY_SECONDS = 0.05
#: What supervisors and monitoring ask for, and what waits for an identity provider: they have no thread.
FREE_PATHS = frozenset({"/healthz", "/v2/health/live", "/metrics", "/login/oidc", "/login/oidc/callback"})


def make_share_limiters(at_once: int) -> tuple[Limiter, Limiter]:
    """Limiters of callers and of addresses, for so many requests of a caller at once."""
    per_address = max(MIN_PER_ADDRESS, CALLERS_PER_ADDRESS * at_once)
    return Limiter(CALLER_REQUESTS, at_once), Limiter(ADDRESS_REQUESTS, per_address)


class FairShare:
    """ASGI middleware that lets a few requests of each caller and of each address in at once."""

    def __init__(self, app: ASGIApp, of_callers: Limiter, of_addresses: Limiter) -> None:
        self.app, self.of_callers, self.of_addresses = app, of_callers, of_addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["path"] in FREE_PATHS:
            await self.app(scope, receive, send)
            return
        caller, address = _get_caller_and_address_keys(Request(scope))
        places = (LimitPlace(self.of_callers, key=caller), LimitPlace(self.of_addresses, key=address))
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
    """Keys of the caller (by credentials or address) and of the address."""
    address = "from " + network_of(request.client.host if request.client else "")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    sent = token.strip() or scheme or session_token(request)
    return ("sent " + blake2b(sent.encode(), digest_size=16).hexdigest() if sent else address), address


class _RequestSlots:
    """Slots of one request, released while its body arrives and when its answer begins."""

    def __init__(self, places: tuple[LimitPlace, LimitPlace], receive: Receive, send: Send) -> None:
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

    async def send(self, message: Message) -> None:
        """Send a part of the answer, unless there was no place: then what the application makes of that is dropped."""
        if self.problem is not None and not self.begun:
            return
        self.begun = True
        self.give_back()
        await self._send(message)

    async def receive(self) -> Message:
        """The next part of the body."""
        if self._complete or self.begun:
            return await self._receive()
        message = await self._without_place()
        self._complete = not message.get("more_body", False)
        is_body = self._complete and message["type"] == "http.request"
        if is_body and not self._places[-1].is_held and not await self.take():
            raise ClientDisconnect
        return message

    async def _without_place(self) -> Message:
        """What is received, giving the places back where it is not here yet."""
        loop = asyncio.get_running_loop()
        self._keep_until = self._keep_until or loop.time() + BODY_SECONDS
        # no task, which would cost more than what it waits for: most often the body is here
        late = loop.call_at(self._keep_until, self.give_back)
        try:
            return await self._receive()
        finally:
            late.cancel()
