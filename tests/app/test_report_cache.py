"""Parts of a report are kept for a short while, by a clock that never goes back, and never too many of them."""

from app.pages.report_views import RecentParts


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_part_is_computed_once_until_it_is_too_old() -> None:
    clock, computed = Clock(), []
    parts = RecentParts(size=2, seconds=60, clock=clock)

    def ask(key: str) -> int:
        def compute() -> int:
            computed.append(key)
            return len(computed)

        return parts.get((key,), compute)

    assert [ask("a"), ask("a")] == [1, 1]
    clock.seconds = 59.9
    assert ask("a") == 1
    clock.seconds = 60.0
    assert ask("a") == 2
    clock.seconds = 60.0 + 86_400  # the same minute of the next day
    assert ask("a") == 3


def test_the_least_recently_used_part_goes_first() -> None:
    computed: list[str] = []
    parts = RecentParts(size=2, seconds=60, clock=Clock())
    for key in ("a", "b", "a", "c", "a", "b"):
        parts.get((key,), lambda key=key: computed.append(key))  # type: ignore[misc]
    assert computed == ["a", "b", "c", "b"]
