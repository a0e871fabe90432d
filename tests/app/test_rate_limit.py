"""A caller may send so many requests per minute, is told when to come back, and is welcome then."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.errors import RateLimited
from app.http.limiter import RateLimit


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
def test_no_sixty_seconds_have_more_and_whoever_comes_back_when_told_is_welcome(
    per_minute: int, bursts: list[tuple[float, int]]
) -> None:
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


def test_a_refused_request_counts_for_nothing_and_another_caller_is_not_touched() -> None:
    clock = Clock()
    limit = RateLimit(2, clock)
    assert [accepted(limit) for _ in range(100)] == [True, True] + [False] * 98
    assert accepted(limit, "b")
    clock.seconds += 60
    assert [accepted(limit) for _ in range(3)] == [True, True, False]


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
