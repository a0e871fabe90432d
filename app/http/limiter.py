"""One Limiter for everything that makes a request wait, and the table of all limits."""

import asyncio
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self, TypeVar

from app.http.errors import Problem, RateLimited, ServiceOverloaded, ServiceUnavailable
from ml.messages import Message

_Signal = TypeVar("_Signal", threading.Event, "asyncio.Future[None]")
_Place = TypeVar("_Place", bound="LimitPlace")


LimitUnit = Literal["requests", "connections", "transactions", "attempts", "cores", "bytes", "seconds"]


@dataclass(frozen=True)
class Limit:
    """One row of the table of limits."""

    name: str
    # None: chosen at the start, as the words describe
    size: int | None = None
    unit: LimitUnit = "requests"
    # each of these has as many
    per: str = "server process"
    chosen: str = ""
    # that changes the size, or the length of the queue where the size is chosen otherwise
    setting: str = ""
    # requests that may wait; None: any number
    queue: int | None = 0
    # for how long one waits; None: for as long as it takes
    wait_seconds: float | None = None
    # whether what fits passes a larger request that waits
    passing: bool = False
    answer: str = "429 `overloaded`"
    full: str = ""
    late: str = ""


class LimiterUse(NamedTuple):
    """Present use of a limiter: by the key that has most in use, and by all that wait."""

    in_use: int
    waiting: int


class Limiter:
    """A number of slots or bytes per key, with a bounded line each; for any thread and event loop."""

    def __init__(
        self, limit: Limit, size: int | None = None, *, queue: int | None = None, wait_seconds: float | None = None
    ) -> None:
        self.limit, self.size = limit, (limit.size or 0) if size is None else size
        self.queue = limit.queue if queue is None else queue
        self.wait_seconds = limit.wait_seconds if wait_seconds is None else wait_seconds
        self._lock = threading.Lock()
        # keys of which nothing is in use, and lines that are empty, are not kept
        self._in_use: dict[str, int] = {}
        self._lines: dict[str, deque[LimitPlace]] = {}

    def count_use(self) -> LimiterUse:
        """Count what is in use and who waits."""
        with self._lock:
            return LimiterUse(max(self._in_use.values(), default=0), sum(map(len, self._lines.values())))

    def enter(self, place: "LimitPlace", make_signal: Callable[[], _Signal]) -> _Signal | None:
        """Let a place in, or put it into its line and return what wakes it."""
        with self._lock:
            if place.is_held:
                return None
            line = self._lines.get(place.key)
            if self._may_enter(place, line):
                self._admit(place)
                return None
            if place.remaining is None:
                self._require_room(place, line)
            place.signal, place.passed = make_signal(), 0
            self._lines.setdefault(place.key, deque()).append(place)
            return place.signal

    def require_room(self, place: "LimitPlace") -> None:
        """Refuse a request whose place would neither be free nor fit into the line."""
        with self._lock:
            line = self._lines.get(place.key)
            if not self._may_enter(place, line):
                self._require_room(place, line)

    def leave(self, place: "LimitPlace", *, waiting: bool = False) -> None:
        """Take a held place back, or one that waits, and let in those who waited for it."""
        with self._lock:
            if place.is_held:
                self._expel(place)
                self._admit_waiting(place.key)
            elif waiting:
                self._leave_line(place)

    def refuse_late(self, place: "LimitPlace") -> None:
        """Refuse a place that still waits; one that was let in at the last moment stays."""
        with self._lock:
            length = len(self._lines.get(place.key, ()))
            if self._leave_line(place):
                if place.remaining is not None:
                    raise place.remaining.overdue()
                raise ServiceOverloaded(self.limit.late, place.seconds_for(length))

    def take_along(self, place: _Place, choose: Callable[[list[_Place]], list[_Place]]) -> list[_Place]:
        """Take those out of the line that the holder of a place serves as well; it wakes them when they are served."""
        with self._lock:
            line = self._lines.get(place.key)
            if line is None:
                return []
            chosen = choose([other for other in line if isinstance(other, type(place))])
            for other in chosen:
                line.remove(other)
            self._admit_waiting(place.key)
            return chosen

    def _require_room(self, place: "LimitPlace", line: "deque[LimitPlace] | None") -> None:
        length = 0 if line is None else len(line)
        if self.queue is not None and length >= self.queue:
            raise ServiceOverloaded(self.limit.full, place.seconds_for(length + 1))

    def _leave_line(self, place: "LimitPlace") -> bool:
        line = self._lines.get(place.key)
        if line is None or place not in line:
            return False
        line.remove(place)
        self._admit_waiting(place.key)  # who waited behind may fit
        return True

    def _may_enter(self, place: "LimitPlace", line: "deque[LimitPlace] | None") -> bool:
        if self._in_use.get(place.key, 0) + place.size > self.size:
            return False
        if not line:
            return True
        first = line[0]
        if not self.limit.passing or first.passed + place.size > self.size:
            return False
        first.passed += place.size
        return True

    def _admit(self, place: "LimitPlace") -> None:
        place.is_held = True
        self._in_use[place.key] = self._in_use.get(place.key, 0) + place.size

    def _expel(self, place: "LimitPlace") -> None:
        place.is_held = False
        self._in_use[place.key] = self._in_use.get(place.key, 0) - place.size
        if not self._in_use[place.key]:
            del self._in_use[place.key]

    def _admit_waiting(self, key: str) -> None:
        line = self._lines.get(key)
        while line and self._may_enter(line[0], None):
            self._admit_and_wake(line.popleft())
        if line and self.limit.passing:
            for place in list(line)[1:]:
                if self._may_enter(place, line):
                    line.remove(place)
                    self._admit_and_wake(place)
        if line is not None and not line:
            del self._lines[key]

    def _admit_and_wake(self, place: "LimitPlace") -> None:
        self._admit(place)
        if not place.wake():
            self._expel(place)


class LimitPlace:
    """A place within a limit, taken and given back any number of times by one request."""

    __slots__ = ("is_held", "key", "limiter", "passed", "remaining", "seconds_for", "signal", "size")

    def __init__(self, limiter: Limiter, size: int = 1, key: str = "") -> None:
        # more than there is at all counts as all of it
        self.limiter, self.size, self.key = limiter, min(size, limiter.size), key
        self.is_held, self.passed = False, 0
        # seconds until so many requests are served, None where that is not known
        self.seconds_for: Callable[[int], int | None] = _know_nothing
        self.signal: threading.Event | asyncio.Future[None] | None = None
        # of a request that has begun its work: it waits for as long as it has, however long the line is
        self.remaining: RequestTime | None = None

    @property
    def wait_seconds(self) -> float | None:
        """Seconds that the place is waited for at most."""
        return self.limiter.wait_seconds if self.remaining is None else self.remaining.seconds_left()

    def take(self) -> None:
        """Take the place, or wait for it in this thread; returns without it where another place's holder served it."""
        signal = self.limiter.enter(self, threading.Event)
        if signal is None:
            return
        try:
            if not signal.wait(self.wait_seconds):
                self.limiter.refuse_late(self)
                signal.wait()
        except BaseException:
            self.limiter.leave(self, waiting=True)
            raise

    async def take_async(self) -> None:
        """Take the place, or wait for it without a thread."""
        signal = self.limiter.enter(self, _make_future)
        if signal is None:
            return
        try:
            await asyncio.wait((signal,), timeout=self.wait_seconds)
            if not signal.done():
                self.limiter.refuse_late(self)
                await signal
        except BaseException:
            self.limiter.leave(self, waiting=True)
            raise

    def give_back(self) -> None:
        """Give the place back if it is held."""
        self.limiter.leave(self)

    def wake(self) -> bool:
        """Wake the caller that waits for the place; whether it can still be woken."""
        if isinstance(self.signal, threading.Event):
            self.signal.set()
        elif self.signal is not None:
            try:
                self.signal.get_loop().call_soon_threadsafe(_resolve_future, self.signal)
            except RuntimeError:  # its loop has ended
                return False
        return True

    def __enter__(self) -> Self:
        self.take()
        return self

    async def __aenter__(self) -> Self:
        await self.take_async()
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    async def __aexit__(self, *_: object) -> None:
        self.give_back()


class ClientGone(Problem):
    """The client closed the connection before its answer."""

    status, code, title = 499, "client-gone", "Client gone"


class RequestTime:
    """Time for a request of many parts, as long as its client is there."""

    def __init__(self, seconds: float, is_client_gone: Callable[[], bool]) -> None:
        self._seconds, self._ends_at, self._is_client_gone = seconds, time.monotonic() + seconds, is_client_gone

    def seconds_left(self) -> float:
        """Seconds that are left, 0 at the end."""
        return max(0.0, self._ends_at - time.monotonic())

    def overdue(self) -> ServiceUnavailable:
        """Problem of a request whose time is over."""
        return ServiceUnavailable("the request took more than {n:.0f} s; send fewer images", n=self._seconds)

    def require(self) -> None:
        """End a request whose time is over, or whose client is gone."""
        if self._is_client_gone():
            raise ClientGone("the client is gone")
        if not self.seconds_left():
            raise self.overdue()


def _know_nothing(_: int) -> int | None:
    return None


def _make_future() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


def _resolve_future(signal: "asyncio.Future[None]") -> None:
    if not signal.done():
        signal.set_result(None)


_MIB = 1024**2
#: Requests of one address, with whatever credentials, and the least of them where a caller may send few.
CALLERS_PER_ADDRESS, MIN_PER_ADDRESS = 4, 32
#: Small predictions at once on any number of cores: more would wait for the interpreter, not for a core.
MAX_SMALL_RUNS = 4
#: How long a connection to SQLite waits for another one's lock, and a writer for its turn.
BUSY_SECONDS = 5.0
#: Sizes of bodies, and the seconds in which they must arrive.
MAX_BODY, MAX_UPLOAD, MAX_CELLS, MAX_SIGN_IN, MAX_ARCHIVE = _MIB, 12 * _MIB, 64 * _MIB, 64 * 1024, 2 * 1024**3
RECEIVE_SECONDS, CELLS_SECONDS, ARCHIVE_SECONDS = 30.0, 120.0, 1800.0
#: Time for a request of the Open Inference Protocol once its body is here, with all its images.
INFER_SECONDS = 60.0
#: Headers of a request: their bytes, and the seconds in which they must be complete.
MAX_HEADERS, HEADER_SECONDS = 64 * 1024, 10.0
#: Open connections of an address, and of everybody; with more than the last uvicorn refuses requests.
PER_ADDRESS, IN_ALL, REFUSED_BEYOND = 128, 480, 512
#: Wrong passwords in a row that cost nothing, and the seconds to wait after the next ones: each doubles the last.
FREE_TRIES, FIRST_WAIT, LONGEST_WAIT = 5, 60.0, 3600.0

CALLER_REQUESTS = Limit(
    "requests of a caller",
    8,
    per="key, session, or address without one",
    setting="REQUESTS_AT_ONCE",
    queue=512,
    wait_seconds=10.0,
    full=Message("too many of your requests are waiting; send fewer at once"),
    late=Message("your other requests are still running; send fewer at once"),
)
ADDRESS_REQUESTS = replace(
    CALLER_REQUESTS,
    name="requests of an address",
    per="address, in IPv6 the network of a subscriber",
    size=None,
    chosen=f"{CALLERS_PER_ADDRESS} × `REQUESTS_AT_ONCE`, at least {MIN_PER_ADDRESS}",
)
BODIES = Limit(
    "bodies in memory, each counted twice",
    256 * _MIB,
    "bytes",
    queue=REFUSED_BEYOND,
    wait_seconds=10.0,
    passing=True,
    full=Message("too many uploads are running; try again shortly"),
    late=Message("too many uploads are running; try again shortly"),
)
CHEAP_PICTURES = replace(
    BODIES,
    name="pictures of up to a megapixel, decoded",
    queue=8,
    full=Message("too many images are being decoded; try again shortly"),
    late=Message("other images are being decoded; try again shortly"),
)
LARGE_PICTURES = replace(
    CHEAP_PICTURES, name="larger pictures, decoded", size=1024 * _MIB, setting="DECODE_MEMORY", queue=2
)
DOCUMENTS = replace(CHEAP_PICTURES, name="documents of the Open Inference Protocol", size=384 * _MIB)
PREDICTIONS = Limit(
    "predictions",
    unit="cores",
    chosen="the cores of the process; a large network takes all of them",
    setting="INFERENCE_QUEUE",
    queue=32,
    wait_seconds=10.0,
    full=Message("too many predictions are waiting; try again shortly"),
    late=Message("the prediction waited {n:.0f} s; try again shortly", n=10.0),
)
SMALL_PREDICTIONS = replace(
    PREDICTIONS,
    name="predictions of small pictures by a small network",
    unit="requests",
    chosen=f"the cores of the process, at most {MAX_SMALL_RUNS}",
)
BACKEND_PREDICTIONS = replace(
    SMALL_PREDICTIONS,
    name="predictions by the server of `INFERENCE_URL`",
    size=32,
    chosen="",
    queue=0,
    wait_seconds=None,
)
PASSWORDS = Limit("password hashing", 2, queue=8, full=Message("too many people are signing in; try again shortly"))
WRITERS = Limit(
    "writers on SQLite",
    1,
    "transactions",
    "process",
    queue=None,
    wait_seconds=BUSY_SECONDS,
    answer="503 `unavailable`",
)
#: Limits by a limiter.
WAITING_LIMITS = (
    CALLER_REQUESTS,
    ADDRESS_REQUESTS,
    BODIES,
    CHEAP_PICTURES,
    LARGE_PICTURES,
    DOCUMENTS,
    PREDICTIONS,
    SMALL_PREDICTIONS,
    BACKEND_PREDICTIONS,
    PASSWORDS,
    WRITERS,
)
#: Limits that are counted or measured, and at which nothing waits.
COUNTED_LIMITS = (
    Limit("requests in any minute", 12_000, per="account", setting="RATE_LIMIT", answer="429 `rate-limited`"),
    Limit(
        "wrong passwords in a row",
        FREE_TRIES,
        "attempts",
        "address and name",
        chosen=f"; then none for {FIRST_WAIT:.0f} s, and for twice as long each time, at most {LONGEST_WAIT:.0f} s",
        answer="401",
    ),
    Limit("connections of an address", PER_ADDRESS, "connections", "address", answer="closed"),
    Limit("connections", IN_ALL, "connections", answer="the longest idle connection is closed"),
    Limit("headers", MAX_HEADERS, "bytes", "request", answer="closed"),
    Limit("time for headers", int(HEADER_SECONDS), "seconds", "request", answer="closed"),
    Limit("body", MAX_BODY, "bytes", "request", answer="413 `too-large`"),
    Limit("body of a picture or tensor", MAX_UPLOAD, "bytes", "request", answer="413 `too-large`"),
    Limit("body of cells of a specimen", MAX_CELLS, "bytes", "request", answer="413 `too-large`"),
    Limit("body of a sign-in", MAX_SIGN_IN, "bytes", "request", answer="413 `too-large`"),
    Limit("archive", MAX_ARCHIVE, "bytes", "request", answer="413 `too-large`"),
    Limit("time for a body", int(RECEIVE_SECONDS), "seconds", "request", answer="408 `request-timeout`"),
    Limit(
        "time for the images of a request of the Open Inference Protocol",
        int(INFER_SECONDS),
        "seconds",
        "request",
        answer="503 `unavailable`",
    ),
    Limit("time for cells of a specimen", int(CELLS_SECONDS), "seconds", "request", answer="408 `request-timeout`"),
    Limit("time for an archive", int(ARCHIVE_SECONDS), "seconds", "request", answer="408 `request-timeout`"),
)
#: The table of limits: operators read it in docs/reference/limits.md and in `GET /readyz?verbose`.
LIMITS = (*WAITING_LIMITS, *COUNTED_LIMITS)


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
