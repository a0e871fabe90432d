"""PostgreSQL is frozen under load (F18): the service stays alive meanwhile and serves in full once it is thawed."""

import signal
import threading
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.waiting import patient, wait_until

CLIENTS = 60


@pytest.mark.slow
def test_a_frozen_database_leaves_the_service_alive_and_full_service_comes_back(
    own_postgres: PostgresServer, tmp_path: Path, tiny_release: Path
) -> None:
    with Installation(tmp_path / "home", own_postgres.url(own_postgres.create())) as made:
        keys = made.prepare(tiny_release, viewer="viewer")
        made.environment["SECONDREAD_WORKER"] = "false"
        made.start()
        answers: list[int] = []

        def ask(path: str) -> int:
            request = urllib.request.Request(
                f"{made.address}{path}", headers={"Authorization": f"Bearer {keys['viewer']}"}
            )
            try:
                with urllib.request.urlopen(request, timeout=patient(60)) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert ask("/v1/cases") == 200
        askers = [threading.Thread(target=lambda: answers.append(ask("/v1/cases"))) for _ in range(CLIENTS)]
        own_postgres.send_signal(signal.SIGSTOP)
        try:
            for asker in askers:
                asker.start()
            for _ in range(20):
                assert ask("/healthz") == 200
            assert 200 not in answers  # nobody was served: those who wait still wait
        finally:
            own_postgres.send_signal(signal.SIGCONT)
        for asker in askers:
            asker.join(patient(60))
        assert set(answers) <= {200, 503}, Counter(answers)
        assert len(answers) == CLIENTS
        wait_until(lambda: ask("/readyz") == 200, 30, lambda: made.log)
        assert [ask("/v1/cases") for _ in range(20)] == [200] * 20
