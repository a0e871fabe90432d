"""Fair share: limits the concurrent requests of each caller; further requests wait.

Sixty requests of one program would otherwise take every thread and most of the processor, and everybody else's labels
would wait behind them. Who waits here has neither a thread nor memory, so that others are served meanwhile.
"""

import asyncio
import threading
from collections import Counter, defaultdict, deque
from hashlib import blake2b

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.accounts.sign_in import network_of, session_token
from app.http.errors import ServiceOverloaded, answer_problem

#: Requests of one address that are worked on at once at least, with whatever credentials; times those of a caller.
PER_ADDRESS, CALLERS_PER_ADDRESS = 32, 4
#: Requests of one caller that may wait, and for how long.
QUEUE, WAIT_SECONDS = 512, 10.0
#: Seconds of a request for which its place is kept while its body arrives.
BODY_SECONDS = 0.05
#: What supervisors and monitoring ask for, and what waits for an identity provider: they have no thread.
FREE_PATHS = frozenset({"/healthz", "/v2/health/live", "/metrics", "/login/oidc", "/login/oidc/callback"})


class KeyedSlots:
    """Limited slots per key, with a queue; for any thread and event loop."""

    # For any thread and event loop.

    def __init__(self, at_once: int) -> None:
        self._at_once, self._lock = at_once, threading.Lock()
        self.taken: Counter[str] = Counter()
        self.waiting: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)

    async def enter(self, key: str) -> None:
        """Take a place, or wait until somebody who leaves hands theirs over."""
        with self._lock:
            if self.taken[key] < self._at_once:
                self.taken[key] += 1
                return
            if len(self.waiting[key]) >= QUEUE:
                raise ServiceOverloaded("too many of your requests are waiting; send fewer at once")
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting[key].append(turn)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn
        except BaseException as exc:
            self._give_up(key, turn)
            if isinstance(exc, TimeoutError):
                raise ServiceOverloaded("your other requests take their time; send fewer at once") from exc
            raise

    def _give_up(self, key: str, turn: "asyncio.Future[None]") -> None:
        """Wait no more; a place that was handed over meanwhile goes to the next."""
        with self._lock:
            handed_over = turn not in self.waiting[key]
            if not handed_over:
                self.waiting[key].remove(turn)
        if handed_over:
            self.leave(key)

    def leave(self, key: str) -> None:
        """Hand the place over to whoever has waited for the longest time, or free it."""
        with self._lock:
            while self.waiting[key]:
                turn = self.waiting[key].popleft()
                if not turn.get_loop().is_closed():
                    turn.get_loop().call_soon_threadsafe(_grant_turn, turn)
                    return
            del self.waiting[key]
            self.taken[key] -= 1
            if not self.taken[key]:
                del self.taken[key]


def _grant_turn(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)


class FairShare:
    """ASGI middleware that lets a few requests of each caller and of each address in at once."""

    def __init__(self, app: ASGIApp, at_once: int) -> None:
        self.app, self.of_callers = app, KeyedSlots(at_once)
        self.of_addresses = KeyedSlots(max(PER_ADDRESS, CALLERS_PER_ADDRESS * at_once))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["path"] in FREE_PATHS:
            await self.app(scope, receive, send)
            return
        caller, address = _get_caller_and_address_keys(Request(scope))
        share = _RequestSlots([(self.of_callers, caller), (self.of_addresses, address)], receive, send)
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

    def __init__(self, places: list[tuple[KeyedSlots, str]], receive: Receive, send: Send) -> None:
        self._places, self._receive, self._send = places, receive, send
        self._taken: list[tuple[KeyedSlots, str]] = []
        self._placed, self._complete = False, False
        self._keep_until: float | None = None
        self.problem: ServiceOverloaded | None = None
        self.begun = False

    async def take(self) -> bool:
        """Take all places, or wait for them; whether they came in time."""
        try:
            for places, key in self._places:
                await places.enter(key)
                self._taken.append((places, key))
        except ServiceOverloaded as exc:
            self.problem = exc
            return False
        self._placed = True
        return True

    def give_back(self) -> None:
        """Give back what is taken now."""
        taken, self._taken, self._placed = self._taken, [], False
        for places, key in reversed(taken):
            places.leave(key)

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
        if is_body and not self._placed and not await self.take():
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
