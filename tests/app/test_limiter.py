"""Laws of the one limiter, by threads and by coroutines, and of the limit of requests in a minute."""

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.accounts.passwords import HASHING
from app.http.errors import RateLimited, ServiceOverloaded
from app.http.limiter import (
    BACKEND_PREDICTIONS,
    CALLER_REQUESTS,
    LIMITS,
    PASSWORDS,
    WRITERS,
    Limit,
    Limiter,
    LimiterUse,
    LimitPlace,
    RateLimit,
)
from tests.support.coroutines import asynchronous, run_async
from tests.support.service import Service
from tests.support.waiting import patient, wait_until

EMPTY = LimiterUse(0, 0)


def make_limit(*, passing: bool = False, queue: int | None = None, wait_seconds: float | None = None) -> Limit:
    return Limit("of a test", queue=queue, wait_seconds=wait_seconds, passing=passing, full="full", late="late")


class Watched:
    """A limiter with what a test knows of it: who waits, who is in, and by how much the first of a line was passed."""

    def __init__(self, size: int, passing: bool) -> None:
        self.limiter, self.size, self.passing = Limiter(make_limit(passing=passing), size), size, passing
        self.signals: dict[LimitPlace, threading.Event] = {}
        self.lines: dict[str, list[LimitPlace]] = defaultdict(list)
        self.inside: list[LimitPlace] = []
        self.passed: dict[LimitPlace, int] = defaultdict(int)
        self.n_admitted = 0

    def arrive(self, key: str, size: int) -> None:
        place = LimitPlace(self.limiter, size, key)
        signal = self.limiter.enter(place, threading.Event)
        assert (signal is None) == place.is_held
        self.lines[key].append(place)
        self.signals[place] = signal or threading.Event()
        if signal is None:
            self.signals[place].set()
        self.settle()

    def leave(self, number: int) -> None:
        if self.inside:
            self.inside.pop(number % len(self.inside)).give_back()
            self.settle()

    def go_away(self, number: int) -> None:
        """Somebody who waits gives up; somebody who was let in meanwhile gives the place back."""
        everyone = [place for line in self.lines.values() for place in line] + self.inside
        if everyone:
            place = everyone[number % len(everyone)]
            self.limiter.leave(place, waiting=True)
            for line in (*self.lines.values(), self.inside):
                if place in line:
                    line.remove(place)
            self.settle()

    def come_too_late(self, number: int) -> None:
        waiting = [place for line in self.lines.values() for place in line]
        if waiting:
            place = waiting[number % len(waiting)]
            with pytest.raises(ServiceOverloaded, match="late"):
                self.limiter.refuse_late(place)
            self.lines[place.key].remove(place)
            self.settle()
        for place in self.inside:
            self.limiter.refuse_late(place)  # let in at the last moment: the place stays
            assert place.is_held

    def settle(self) -> None:
        """Note who was let in, and check the laws."""
        for line in self.lines.values():
            admitted = [place for place in line if place.is_held]
            line[:] = [place for place in line if not place.is_held] if self.passing else line[len(admitted) :]
            assert not any(place.is_held for place in line), "somebody was overtaken"
            if line:
                arrival = list(self.signals)
                first = arrival.index(line[0])
                self.passed[line[0]] += sum(place.size for place in admitted if arrival.index(place) > first)
                assert self.passed[line[0]] <= self.size, "the first of a line starves"
            self.inside += admitted
            self.n_admitted += len(admitted)
        in_use: dict[str, int] = defaultdict(int)
        for place in self.inside:
            in_use[place.key] += place.size
        assert all(used <= self.size for used in in_use.values())
        for key, line in self.lines.items():
            for place in line:
                fits = in_use[key] + place.size <= self.size
                may_pass = self.passing and self.passed[line[0]] + place.size <= self.size
                assert not (fits and (place is line[0] or may_pass)), "somebody who fits was kept waiting"
        assert all(self.signals[place].is_set() == place.is_held for place in self.inside)
        assert not any(self.signals[place].is_set() for line in self.lines.values() for place in line)
        waiting = sum(map(len, self.lines.values()))
        assert self.limiter.count_use() == LimiterUse(max(in_use.values(), default=0), waiting)


_ARRIVAL = st.tuples(st.just("arrive"), st.sampled_from("aab"), st.integers(0, 5))
_STEPS = st.lists(
    st.one_of(_ARRIVAL, _ARRIVAL, st.tuples(st.sampled_from(["leave", "go_away", "come_too_late"]), st.integers(0, 9))),
    min_size=10,
    max_size=80,
)


@given(st.integers(1, 5), st.booleans(), _STEPS)
def test_never_more_than_there_is_and_in_order(size: int, passing: bool, steps: list[tuple[Any, ...]]) -> None:
    watched = Watched(size, passing)
    for name, *values in steps:
        getattr(watched, name)(*values)
    while watched.inside:
        watched.leave(0)
    assert not any(watched.lines.values()), "somebody was lost"
    assert watched.limiter.count_use() == EMPTY
    assert not watched.limiter._in_use
    assert not watched.limiter._lines


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(20)):
        while not condition():
            await asyncio.sleep(0)


def test_threads_and_coroutines_share_one_limiter() -> None:
    limiter, inside, most = Limiter(make_limit(passing=True), 10), [0], [0]
    counting = threading.Lock()

    def count(change: int) -> None:
        with counting:
            inside[0] += change
            most[0] = max(most[0], inside[0])

    def by_thread(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(100):
            size = draw.randint(1, 10)
            with LimitPlace(limiter, size):
                count(size)
                count(-size)

    async def by_coroutine(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(50):
            task = asyncio.create_task(hold(draw.randint(1, 10)))
            if draw.random() < 0.5:
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def hold(size: int) -> None:
        async with LimitPlace(limiter, size):
            count(size)
            try:
                await asyncio.sleep(0)
            finally:
                count(-size)

    async def many() -> None:
        await asyncio.gather(*(by_coroutine(seed) for seed in range(8)))

    with ThreadPoolExecutor(6) as pool:
        done = [pool.submit(by_thread, seed) for seed in range(4)] + [pool.submit(run_async, many()) for _ in range(2)]
        for one in done:
            one.result(timeout=patient(60))
    assert 0 < most[0] <= 10
    assert limiter.count_use() == EMPTY


def test_a_place_is_taken_once_and_given_back_once() -> None:
    limiter = Limiter(make_limit(), 2)
    place, other = LimitPlace(limiter), LimitPlace(limiter)
    other.take()
    place.take()
    place.take()
    assert limiter.count_use().in_use == 2
    place.give_back()
    place.give_back()
    assert limiter.count_use().in_use == 1
    place.take()
    assert limiter.count_use().in_use == 2


@asynchronous
async def test_a_place_handed_to_a_caller_that_was_cancelled_goes_to_the_next() -> None:
    limiter, first = Limiter(make_limit(), 1), None
    first = LimitPlace(limiter)
    await first.take_async()
    gone, next_one = LimitPlace(limiter), LimitPlace(limiter)
    tasks = [asyncio.create_task(place.take_async()) for place in (gone, next_one)]
    await until(lambda: limiter.count_use().waiting == 2)
    first.give_back()  # to the first of them, which is cancelled before it learns of it
    assert gone.is_held
    tasks[0].cancel()
    await tasks[1]
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert (gone.is_held, next_one.is_held) == (False, True)
    next_one.give_back()
    assert limiter.count_use() == EMPTY


@asynchronous
async def test_a_place_handed_over_at_the_last_moment_is_kept() -> None:
    """The time is over, and the place came while the caller had not looked yet."""
    limiter = Limiter(make_limit(wait_seconds=0.01), 1)
    first, late = LimitPlace(limiter), LimitPlace(limiter)
    first.take()
    task = asyncio.create_task(late.take_async())
    await until(lambda: limiter.count_use().waiting == 1)
    threading.Event().wait(0.05)  # the loop stands still, and the time passes
    first.give_back()
    await task
    assert late.is_held


def test_a_caller_whose_loop_has_ended_keeps_no_place() -> None:
    limiter, places = Limiter(make_limit(), 1), list[LimitPlace]()

    async def wait_and_go() -> None:
        places.append(LimitPlace(limiter))
        limiter.enter(places[0], asyncio.get_running_loop().create_future)  # as if it had ended without a word

    with LimitPlace(limiter):
        run_async(wait_and_go())
        behind = LimitPlace(limiter)
        limiter.enter(behind, threading.Event)
    assert (places[0].is_held, behind.is_held) == (False, True)
    behind.give_back()
    assert limiter.count_use() == EMPTY


def test_those_taken_along_leave_the_line_and_are_woken_without_a_place() -> None:
    limiter, done = Limiter(make_limit(wait_seconds=0.05), 1), list[bool]()
    first, along, behind = (LimitPlace(limiter) for _ in range(3))
    first.take()

    def ride() -> None:
        along.take()
        done.append(along.is_held)

    thread = threading.Thread(target=ride)
    thread.start()
    wait_until(lambda: limiter.count_use().waiting == 1)
    limiter.enter(behind, threading.Event)
    assert limiter.take_along(first, lambda line: line[:1]) == [along]
    thread.join(0.2)
    assert thread.is_alive(), "it waits for the run that serves it, however long that takes"
    first.give_back()
    assert behind.is_held
    along.wake()
    thread.join(patient(20))
    assert done == [False]
    behind.give_back()
    assert limiter.count_use() == EMPTY


def test_readiness_has_the_table_with_its_present_use_if_asked_and_names_nobody(service: Service) -> None:
    plain = service.get(None, "/readyz").json()
    assert set(plain) == {"status", "database", "release", "worker", "storage", "device"}
    of_callers: Limiter = service.client.app.state.limiters[0]  # type: ignore[attr-defined]
    with LimitPlace(of_callers, 3, "a caller"), LimitPlace(of_callers, 2, "another"), LimitPlace(HASHING):
        answer = service.get(None, "/readyz?verbose")
    document = answer.json()
    rows = {row["name"]: row for row in document.pop("limits")}
    assert document == plain
    absent = {BACKEND_PREDICTIONS.name, *([] if service.context.database.writers else [WRITERS.name])}
    assert set(rows) == {limit.name for limit in LIMITS} - absent
    of_caller = rows[CALLER_REQUESTS.name]
    assert (of_caller["size"], of_caller["queue"], of_caller["in_use"], of_caller["waiting"]) == (8, 512, 3, 0)
    assert rows[PASSWORDS.name]["in_use"] == 1
    of_minute = {"name": "requests in any minute", "per": "account", "unit": "requests", "size": 12_000, "queue": 0}
    unset = dict.fromkeys(("wait_seconds", "in_use", "waiting"))
    assert rows["requests in any minute"] == of_minute | unset
    assert "caller" not in answer.text.replace(CALLER_REQUESTS.name, "")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.seconds = 600.0

    def __call__(self) -> float:
        return self.seconds


def accepted(limit: RateLimit, caller: str = "a") -> bool:
    try:
        limit.count(caller)
    except RateLimited:
        return False
    return True


#: Of a clock that counts 1,024 steps per second, so that sums of seconds are exact.
_PAUSES = st.integers(0, 40 * 1024).map(lambda steps: steps / 1024)


@given(st.integers(1, 20), st.lists(st.tuples(_PAUSES, st.integers(1, 30)), min_size=1, max_size=12))
def test_no_sixty_seconds_have_more_and_who_waits_may(per_minute: int, bursts: list[tuple[float, int]]) -> None:
    clock = Clock()
    limit, at = RateLimit(per_minute, clock), []
    for pause, number in bursts:
        clock.seconds += pause
        at += [clock.seconds for _ in range(number) if accepted(limit)]
    assert max(sum(start <= one < start + 60 for one in at) for start in at) <= per_minute
    while accepted(limit):
        pass
    with pytest.raises(RateLimited, match=f"more than {per_minute} requests") as refused:
        limit.count("a")
    wait, now = refused.value.retry_after, clock.seconds
    assert wait is not None
    assert 1 <= wait <= 60
    clock.seconds = now + wait - 1 - 1 / 1024
    assert wait == 1 or not accepted(limit), "sooner would have been welcome too"
    clock.seconds = now + wait
    assert accepted(limit)


def test_callers_of_more_than_a_minute_ago_are_forgotten() -> None:
    clock = Clock()
    limit = RateLimit(5, clock)
    for number in range(1000):
        limit.count(f"caller {number}")
    clock.seconds += 60
    limit.count("a")
    assert list(limit._until) == ["a"]


def test_threads_together_get_no_more_than_one() -> None:
    limit, barrier = RateLimit(50, Clock()), threading.Barrier(8)

    def ask(_: int) -> int:
        barrier.wait()
        return sum(accepted(limit) for _ in range(40))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 50


def test_zero_is_no_limit() -> None:
    limit = RateLimit(0)
    assert all(accepted(limit) for _ in range(1000))
