"""A key gives one answer, of its account and for its request; how long answers are kept, and what an erasure takes."""

import json
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi import Response
from pydantic import BaseModel
from sqlalchemy import func, select, update

from app.database import idempotency
from app.database.engine import Database
from app.database.idempotency import (
    KeyReused,
    Once,
)
from app.database.tables import Account, IdempotencyRecord, utc_now
from app.http.principal import Principal
from app.job_table import run_maintenance
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png
from tests.support.waiting import patient


class Stored(BaseModel):
    """What an action answers with."""

    number: int


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.engine.dispose()


@pytest.fixture
def people(database: Database) -> list[Principal]:
    """Two callers with accounts."""
    accounts = [Account(id=uuid.uuid4(), created_at=utc_now(), name=name, role="admin") for name in ("a", "b")]
    with database.write() as session:
        session.add_all(accounts)
    return [Principal(account.id, account.name, account.role, frozenset()) for account in accounts]


class Counter:
    """An action that counts how often it is done."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self) -> tuple[int, Stored]:
        self.done += 1
        return 201, Stored(number=self.done)


def once(who: Principal, key: str, request: str = "POST /v1/things") -> Once:
    return Once(who.account_id, key, request)


def send(database: Database, who: Principal, key: str, body: Any, action: Counter) -> Response:
    with database.write() as session:
        return once(who, key)(session, body, action)


@undone("F16", "a retry stores nothing twice", idempotency, "insert_if_absent", lambda *_: True)
@pytest.mark.both_databases
def test_the_first_answer_is_given_again_and_says_so(database: Database, people: list[Principal]) -> None:
    action = Counter()
    first = send(database, people[0], "k", "d", action)
    again = send(database, people[0], "k", "d", action)
    assert action.done == 1
    assert (first.status_code, json.loads(first.body)) == (201, {"number": 1})
    assert (again.status_code, again.body) == (201, first.body)
    assert (again.headers["Idempotent-Replayed"], "Idempotent-Replayed" in first.headers) == ("true", False)


@undone("F16", "a key is of one request", idempotency, "request_digest", lambda *_: "")
@pytest.mark.both_databases
def test_a_key_is_of_one_request_and_one_account(database: Database, people: list[Principal]) -> None:
    action = Counter()
    send(database, people[0], "k", "d", action)
    with pytest.raises(KeyReused, match=r"^this Idempotency-Key was sent with another request; choose a new one$"):
        send(database, people[0], "k", "another", action)
    with pytest.raises(KeyReused), database.write() as session:
        once(people[0], "k", "POST /v1/things/1")(session, "d", action)
    assert action.done == 1
    assert json.loads(send(database, people[1], "k", "another", action).body) == {"number": 2}
    assert json.loads(send(database, people[0], "l", "d", action).body) == {"number": 3}


@pytest.mark.both_databases
def test_an_action_that_fails_leaves_its_key_free(database: Database, people: list[Principal]) -> None:
    def fails() -> tuple[int, Stored]:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"), database.write() as session:
        once(people[0], "k")(session, "d", fails)
    assert json.loads(send(database, people[0], "k", "d", Counter()).body) == {"number": 1}


@pytest.mark.both_databases
def test_the_same_key_at_the_same_time_does_the_work_once(database: Database, people: list[Principal]) -> None:
    action, answers = Counter(), []
    together = threading.Barrier(4)

    def ask() -> None:
        together.wait(patient(20))
        answers.append(send(database, people[0], "k", "d", action))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert action.done == 1
    assert {answer.body for answer in answers} == {b'{"number":1}'}
    assert len([answer for answer in answers if "Idempotent-Replayed" in answer.headers]) == 3


def kept(service: Service) -> int:
    return service.one(select(func.count()).select_from(IdempotencyRecord))


def test_old_answers_are_swept_and_young_ones_stay(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.database.idempotency.SWEEP_ROWS", 2)
    monkeypatch.setattr("app.job_table.SWEEP_ROWS", 2)
    for number in range(6):
        service.upload(f"case {number}", cell_png(number), f"key {number}")
    old = utc_now() - idempotency.KEPT - timedelta(minutes=1)
    with service.context.database.write() as session:
        keys = [f"key {number}" for number in range(5)]
        session.execute(update(IdempotencyRecord).where(IdempotencyRecord.key.in_(keys)).values(created_at=old))
    run_maintenance(service.context)
    assert kept(service) == 1
    assert service.upload("case 5", cell_png(5), "key 5").headers["idempotent-replayed"] == "true"
    again = service.upload("case 0", cell_png(0), "key 0")
    assert (again.status_code, "idempotent-replayed" in again.headers) == (200, False)  # the case itself is known


def test_an_answer_that_is_swept_while_it_is_asked_for_is_asked_for_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL the sweep may commit between the insertion that meets the key and the reading of its answer."""
    service.post("anna", "/v1/reads", "key")
    monkeypatch.setattr(idempotency, "insert_if_absent", lambda *_: False)
    swept = service.post("anna", "/v1/reads", "another key")
    assert (swept.status_code, "retry-after" in swept.headers) == (503, True)


def test_an_erasure_forgets_the_answers_that_show_its_cases_and_no_others(service: Service) -> None:
    case = service.add_case("gone", cell_png(0), patient="p")
    service.upload("stays", cell_png(1), "stays", patient="q")
    before = kept(service)
    with service.context.database.write() as session:
        erase_patient_rows(session, service.context, "test", ErasureTarget("p"), "asked for")
    assert kept(service) == before - 1
    with service.context.database.read() as session:
        bodies: list[Any] = list(session.execute(select(IdempotencyRecord.body)).scalars())
        ids = list(session.execute(select(IdempotencyRecord.case_id)).scalars())
    assert not [body for body in bodies if isinstance(body, dict) and body.get("external_id") == "gone"]
    assert uuid.UUID(case["id"]) not in ids
