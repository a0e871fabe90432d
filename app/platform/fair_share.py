"""A fair share of the service: of one caller a few requests are worked on at once, the others wait outside.

Sixty requests of one program would otherwise take every thread and most of the processor, and everybody else's labels
would wait behind them. Who waits here has neither a thread nor memory, so that others are served meanwhile.
"""

import asyncio
import threading
from collections import Counter, defaultdict, deque
from contextlib import ExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.platform.errors import Overloaded, problem_response

#: Requests of one address that are worked on at once, with whatever credentials.
PER_ADDRESS = 32
#: Requests of one caller that may wait, and for how long.
QUEUE, WAIT_SECONDS = 128, 10.0
#: What supervisors and monitoring ask for, which cost next to nothing.
FREE_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


class Places:
    """So many at once of each key; who comes later waits in turn. For any thread and event loop.

    Args:
        at_once: places of each key.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once, self._lock = at_once, threading.Lock()
        self.taken: Counter[str] = Counter()
        self.waiting: defaultdict[str, deque[asyncio.Future[None]]] = defaultdict(deque)

    async def enter(self, key: str) -> None:
        """Take a place, or wait until somebody who leaves hands theirs over.

        Raises:
            Overloaded: too many wait, or it took too long.
        """
        with self._lock:
            if self.taken[key] < self._at_once:
                self.taken[key] += 1
                return
            if len(self.waiting[key]) >= QUEUE:
                raise Overloaded("too many of your requests are waiting; send fewer at once")
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting[key].append(turn)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn
        except BaseException as exc:
            self._give_up(key, turn)
            if isinstance(exc, TimeoutError):
                raise Overloaded("your other requests take their time; send fewer at once") from exc
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
            if self.waiting[key]:
                turn = self.waiting[key].popleft()
                turn.get_loop().call_soon_threadsafe(_begin, turn)
                return
            del self.waiting[key]
            self.taken[key] -= 1
            if not self.taken[key]:
                del self.taken[key]


def _begin(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)


class FairShare:
    """ASGI middleware that lets a few requests of each caller and of each address in at once.

    A place is free again when the answer begins: what streams for hours takes none.

    Args:
        app: the application inside.
        at_once: requests of one caller, by the credentials sent, and by the address where there are none.
    """

    def __init__(self, app: ASGIApp, at_once: int) -> None:
        self.app, self.of_callers, self.of_addresses = app, Places(at_once), Places(PER_ADDRESS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or scope["path"] in FREE_PATHS:
            await self.app(scope, receive, send)
            return
        with ExitStack() as places:

            async def begun(message: Message) -> None:
                places.close()
                await send(message)

            address = scope["client"][0] if scope.get("client") else ""
            try:
                for kind, key in ((self.of_callers, _credentials(scope) or address), (self.of_addresses, address)):
                    await kind.enter(key)
                    places.callback(kind.leave, key)
            except Overloaded as exc:
                places.close()
                await problem_response(exc)(scope, receive, send)
                return
            await self.app(scope, receive, begun)


def _credentials(scope: Scope) -> str:
    headers = dict(scope["headers"])
    return (headers.get(b"authorization") or headers.get(b"cookie") or b"").decode("latin-1")
