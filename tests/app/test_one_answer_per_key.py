"""A key gives one answer: of its account, for its request, in the transaction of what it stores."""

import json
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi import Request, Response
from pydantic import BaseModel
from sqlalchemy import func, select

from app.database import idempotency
from app.database.engine import Database
from app.database.idempotency import (
    KeyMissing,
    KeyReused,
    Once,
    delete_case_answers,
    delete_expired_answers,
    once_by_header,
    request_digest,
)
from app.database.tables import Account, IdempotencyRecord, utc_now
from app.http.errors import ServiceUnavailable
from app.http.principal import Principal
from tests.support.coroutines import run_async
from tests.support.sabotage import undone
from tests.support.waiting import patient

pytestmark = pytest.mark.both_databases


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


def test_a_key_is_required_and_not_empty() -> None:
    who = Principal(uuid.uuid4(), "a", "admin", frozenset())
    request = Request({"type": "http", "method": "POST", "path": "/v1/things", "state": {"caller": who}})
    assert run_async(once_by_header(request, "k")) == once(who, "k")
    for missing in (None, ""):
        with pytest.raises(KeyMissing) as refused:
            run_async(once_by_header(request, missing))
        assert str(refused.value) == (
            "send a header Idempotency-Key with a new value for each new request, and the same on retry"
        )


def test_the_digest_is_of_the_content_and_not_of_its_order() -> None:
    assert request_digest({"a": 1, "b": 2}) == request_digest({"b": 2, "a": 1})
    assert len({request_digest(*parts) for parts in ((1,), (2,), (1, 2), ("1",), ([1, 2],), ())}) == 6
    assert request_digest(Stored(number=1)) == request_digest({"number": 1})
    identifier = uuid.uuid4()
    assert request_digest(identifier) == request_digest(str(identifier))


@undone("F16", "a retry stores nothing twice", idempotency, "insert_if_absent", lambda *_: True)
def test_the_first_answer_is_given_again_and_says_so(database: Database, people: list[Principal]) -> None:
    action = Counter()
    first = send(database, people[0], "k", "d", action)
    again = send(database, people[0], "k", "d", action)
    assert action.done == 1
    assert (first.status_code, json.loads(first.body)) == (201, {"number": 1})
    assert (again.status_code, again.body) == (201, first.body)
    assert (again.headers["Idempotent-Replayed"], "Idempotent-Replayed" in first.headers) == ("true", False)


@undone("F16", "a key is of one request", idempotency, "request_digest", lambda *_: "")
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


def test_an_answer_that_is_swept_in_between_is_asked_for_again(
    database: Database, people: list[Principal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "insert_if_absent", lambda *_: False)  # the row was there, and is gone when read
    words = r"^the answer to this Idempotency-Key has just expired; send the request again$"
    with pytest.raises(ServiceUnavailable, match=words):
        send(database, people[0], "k", "d", Counter())


def test_whether_a_key_was_answered_is_known_before_the_work(database: Database, people: list[Principal]) -> None:
    send(database, people[0], "k", "d", Counter())
    with database.read() as session:
        known = [once(who, key).answered(session) for who in people for key in ("k", "l")]
    assert known == [True, False, False, False]


def test_the_record_keeps_what_was_asked_and_answered(database: Database, people: list[Principal]) -> None:
    before = utc_now()
    send(database, people[0], "k", "d", Counter())
    with database.read() as session:
        record = session.execute(select(IdempotencyRecord)).scalar_one()
    assert (record.account_id, record.key) == (people[0].account_id, "k")
    assert record.request_sha256 == request_digest("POST /v1/things", "d")
    assert (record.status, record.body) == (201, {"number": 1})
    assert before <= record.created_at <= utc_now()


def test_an_action_that_fails_leaves_its_key_free(database: Database, people: list[Principal]) -> None:
    def fails() -> tuple[int, Stored]:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"), database.write() as session:
        once(people[0], "k")(session, "d", fails)
    assert json.loads(send(database, people[0], "k", "d", Counter()).body) == {"number": 1}


def test_an_answer_without_a_body_is_not_remembered(database: Database, people: list[Principal]) -> None:
    def nothing() -> tuple[int, Stored | None]:
        return 204, None

    for _ in range(2):
        with database.write() as session:
            answer = once(people[0], "k")(session, "d", nothing)
        assert (answer.status_code, answer.body, "Idempotent-Replayed" in answer.headers) == (204, b"", False)
    send(database, people[0], "other", "d", Counter())
    with database.write() as session:
        once(people[0], "k")(session, "d", nothing)
    assert [key for key, _ in records(database)] == ["other"]


def records(database: Database) -> list[tuple[str, uuid.UUID | None]]:
    """Key and case of each remembered answer."""
    with database.read() as session:
        rows = session.execute(select(IdempotencyRecord.key, IdempotencyRecord.case_id)).all()
    return sorted((row[0], row[1]) for row in rows)


def test_answers_that_show_a_case_are_forgotten_with_it(database: Database, people: list[Principal]) -> None:
    gone, stays = uuid.uuid4(), uuid.uuid4()
    for key, case_id in (("gone", gone), ("stays", stays)):
        with database.write() as session:
            once(people[0], key)(session, "d", Counter(), case_id_of=lambda _, shown=case_id: shown)
    send(database, people[0], "none", "d", Counter())
    assert records(database) == [("gone", gone), ("none", None), ("stays", stays)]
    with database.write() as session:
        delete_case_answers(session, [gone])
    assert records(database) == [("none", None), ("stays", stays)]


def test_old_answers_are_swept_in_portions(
    database: Database, people: list[Principal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "SWEEP_ROWS", 2)
    for number in range(3):
        send(database, people[0], f"old {number}", "d", Counter())
    time = utc_now()
    send(database, people[0], "young", "d", Counter())
    with database.write() as session:
        assert delete_expired_answers(session, time) == 0
        assert delete_expired_answers(session, time + idempotency.KEPT - timedelta(hours=1)) == 0
        later = session.execute(select(func.max(IdempotencyRecord.created_at)).where(IdempotencyRecord.key != "young"))
        bound = later.scalar_one() + idempotency.KEPT  # of the last: it is not older than what is kept
        assert [delete_expired_answers(session, bound) for _ in range(2)] == [2, 0]
        assert [delete_expired_answers(session, bound + timedelta(microseconds=1)) for _ in range(2)] == [1, 0]
    assert [key for key, _ in records(database)] == ["young"]


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
