"""Two server processes on one PostgreSQL lease one worklist: no request is ever handed out twice."""

import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, insert, select

from app.audit.chain.keys import DerivedKey
from app.database.engine import Database
from app.database.tables import Account, Case, Read, ReadRequest, new_id, utc_now
from app.triage.planning import uniform_draw
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.waiting import patient

PEOPLE = [f"annotator-{number}" for number in range(8)]


def fill(url: str, n: int) -> None:
    """Cases with one open request each, as uploads would have left them."""
    database = Database(url)
    with database.write() as session:
        account = session.execute(select(Account.id).limit(1)).scalar_one()
        made, ids, key = utc_now(), [new_id() for _ in range(n)], DerivedKey(b"", b"coin:")
        shared: dict[str, Any] = {
            "created_at": made, "case_metadata": {}, "image_sha256": "0" * 64, "stored_sha256": "0" * 64, "width": 8,
            "height": 8, "partition": "evaluation", "created_by": account, "pi": 0.1, "need": 0.5, "waiting": True,
        }  # fmt: skip
        session.execute(
            insert(Case),
            [shared | {"id": i, "external_id": str(i), "u": uniform_draw(key, str(i))} for i in ids],
        )
        request = {
            "created_at": made, "ordinal": 1, "round": "planned", "arm": "first", "u": 0.5, "pi": 1.0, "due_at": made,
            "policy_version": 1, "due_on": made.date().isoformat(), "state": "open",
        }  # fmt: skip
        session.execute(
            insert(ReadRequest),
            [request | {"id": new_id(), "case_id": i, "shuffle": uuid.UUID(int=i.int).int % (2**31 - 1)} for i in ids],
        )
    database.engine.dispose()


def read_until_empty(address: str, key: str, taken: list[str], statuses: Counter[int]) -> None:
    with httpx2.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=patient(30)) as client:
        while True:
            answer = client.post("/v1/reads", headers={"Idempotency-Key": uuid.uuid4().hex})
            statuses[answer.status_code] += 1
            if answer.status_code == 204:
                return
            if answer.status_code == 201:
                taken.append(answer.json()["case_id"])
                end(client, answer.json()["id"])


def end(client: httpx2.Client, read: str) -> None:
    """Close the request of a read for everybody, however often the database asks to try again."""
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    while True:
        answer = client.post(f"/v1/reads/{read}/decline", headers=headers, json={"reason": "cannot_tell"})
        assert answer.status_code in {200, 503}, answer.text
        if answer.status_code == 200:
            return


@pytest.mark.parametrize("n", [pytest.param(80, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.heavy)])
def test_no_request_is_handed_out_twice(postgres: PostgresServer, tmp_path: Path, tiny_release: Path, n: int) -> None:
    url = postgres.url(postgres.create())
    servers = [Installation(tmp_path / "home", url) for _ in range(2)]
    keys = servers[0].prepare(tiny_release, **dict.fromkeys(PEOPLE, "annotator"))
    fill(servers[0].sqlalchemy_url, n)
    taken: list[list[str]] = [[] for _ in PEOPLE]
    statuses: Counter[int] = Counter()
    try:
        for server in servers:
            server.start()
        threads = [
            threading.Thread(target=read_until_empty, args=(servers[i % 2].address, keys[who], taken[i], statuses))
            for i, who in enumerate(PEOPLE)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for server in servers:
            server.stop()
    assert set(statuses) <= {201, 204, 503}, statuses
    assert sum(len(part) for part in taken) == n
    database = Database(servers[0].sqlalchemy_url)
    with database.read() as session:
        assert session.execute(select(func.count(Read.request_id.distinct()))).scalar_one() == n
        assert session.execute(select(func.count()).select_from(Read)).scalar_one() == n
        assert session.execute(select(func.count()).where(ReadRequest.state == "closed")).scalar_one() == n
    database.engine.dispose()
    assert min(len(part) for part in taken) > 0
