"""Parts of a report are kept for a short while, by a clock that never goes back, and never too many of them."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.evaluations.service import metrics
from app.pages import report_views
from app.pages.report_views import RecentParts
from tests.support.service import Service, cell_png, collect


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


def test_a_part_is_computed_once_for_all_who_ask_meanwhile() -> None:
    parts, computed, asked = RecentParts(size=2, seconds=60), [], threading.Barrier(6)

    def compute() -> int:
        computed.append(threading.get_ident())
        threading.Event().wait(0.3)  # long enough for the others to arrive
        return len(computed)

    def ask() -> int:
        asked.wait(timeout=10)
        return parts.get(("document",), compute)

    with ThreadPoolExecutor(6) as threads:
        answers = [future.result(timeout=10) for future in [threads.submit(ask) for _ in range(6)]]
    assert (answers, len(computed)) == ([1] * 6, 1)


def test_a_part_that_failed_is_computed_again() -> None:
    parts = RecentParts(size=2, seconds=60)
    with pytest.raises(ZeroDivisionError):
        parts.get(("a",), lambda: 1 // 0)
    assert parts.get(("a",), lambda: 7) == 7


def _charts(page: str) -> dict[str, str]:
    addresses = [address.replace("&amp;", "&") for address in re.findall(r'(?:src|href)="(/report/charts/[^"]+)', page)]
    return {re.split(r"[/?]", address)[3]: address for address in addresses}


def test_charts_show_the_state_of_their_page(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    collect(service, [cell_png(number) for number in range(12)], patients=False)
    monkeypatch.setattr(report_views, "_recent", RecentParts(size=32, seconds=60))
    evaluated: list[Any] = []

    def counted(*arguments: Any) -> Any:
        evaluated.append(arguments)
        return metrics(*arguments)

    monkeypatch.setattr(report_views, "metrics", counted)
    query = "partition=all&weighting=none"
    charts = _charts(service.get("viewer", f"/report?{query}").text)
    assert {"classes.svg", "classes.csv", "triage.svg", "triage.csv"} <= charts.keys()
    assert len(evaluated) == 1

    def numbers(address: str) -> str:
        answer = service.get("viewer", address)
        assert answer.status_code == 200
        return answer.text

    before = {name: numbers(address) for name, address in charts.items() if name.endswith(".csv")}
    case = service.add_case("one more", cell_png(50))
    for reader in ("r0", "r1", "r2"):
        service.outside_label(case["id"], reader, case["prediction"]["classes"][0])
    assert {name: numbers(charts[name]) for name in before} == before
    assert service.get("viewer", charts["classes.svg"]).status_code == 200
    assert len(evaluated) == 1
    now = numbers(f"/report/charts/classes.csv?{query}")
    assert now != before["classes.csv"]
    # nobody remembers the state of the page any more
    monkeypatch.setattr(report_views, "_recent", RecentParts(size=32, seconds=60))
    assert numbers(charts["classes.csv"]) == now
    assert _charts(service.get("viewer", f"/report?{query}").text)["classes.svg"] != charts["classes.svg"]
