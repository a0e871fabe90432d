"""Promotions that race: each that is answered with success moved the alias once, from what its caller had seen (F7)."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.service import Service

PROMOTERS = 4


@pytest.mark.both_databases
@pytest.mark.parametrize("rounds", [6, pytest.param(75, marks=pytest.mark.heavy)])
def test_wins_are_revisions_are_events(service: Service, rounds: int) -> None:
    release = service.get("viewer", "/v1/releases").json()["items"][0]["id"]

    def revision() -> int:
        aliases = service.get("viewer", "/v1/aliases").json()["items"]
        return next((alias["revision"] for alias in aliases if alias["name"] == "challenger"), 0)

    def promote(number: int) -> list[int]:
        body, answers = {"release": release, "reason": f"promoter {number}"}, []
        for _ in range(rounds):
            headers = {"If-Match": f'"{revision()}"'}
            answer = service.call("admin", "PUT", "/v1/aliases/challenger", json=body, headers=headers)
            answers.append(answer.status_code)
        return answers

    with ThreadPoolExecutor(PROMOTERS) as pool:
        answers = Counter(status for part in pool.map(promote, range(PROMOTERS)) for status in part)
    assert set(answers) <= {200, 409, 412, 503}, answers
    moves = service.get("admin", "/v1/audit-events", params={"action": "alias.move", "limit": 200}).json()["items"]
    assert answers[200] == revision() == len(moves) >= rounds
    assert sorted(event["details"]["revision"] for event in moves) == list(range(1, len(moves) + 1))
