"""Sign-ins cannot stop the service, and wrong passwords lock nobody out but whoever sends them."""

import asyncio
import http.client
import threading
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from sqlalchemy import func, select

from app.accounts import people as auth
from app.accounts import sign_in
from app.accounts.sign_in import REMEMBERED, SignInThrottle
from app.database.tables import AuditEvent
from app.http.limiter import FREE_TRIES, PASSWORDS
from tests.app.test_people import GOOD, first_password
from tests.support.coroutines import run_async
from tests.support.process import Installation
from tests.support.sabotage import undone
from tests.support.service import Service
from tests.support.waiting import patient, wait_until

#: Hashing that does not end before the test says so.
_HELD = """
import time
from pathlib import Path
from app.accounts import passwords
real = passwords._check_password_hash
def held(stored, password):
    while not Path("let-go").exists():
        time.sleep(0.01)
    return real(stored, password)
passwords._check_password_hash = held
"""


@pytest.mark.slow
def test_sixty_sign_ins_at_once_keep_nobody_waiting(tmp_path: Path, tiny_release: Path) -> None:
    with Installation(tmp_path / "home") as made:
        keys = made.prepare(tiny_release, viewer="viewer")
        made.environment["SECONDREAD_WORKER"] = "false"
        made.server = made.spawn("serve", log="server.log", code=_HELD)
        wait_until(made._ready, 60, lambda: made.log)
        answers: list[int] = []
        senders = [threading.Thread(target=_sign_in, args=(made, i, answers)) for i in range(60)]
        for sender in senders:
            sender.start()
        served = (PASSWORDS.size or 0) + (PASSWORDS.queue or 0)
        refused = 60 - served
        wait_until(lambda: len(answers) >= refused, 60, lambda: f"{Counter(answers)}\n{made.log}")
        assert Counter(answers) == {429: refused}  # at once: not one password has been hashed yet
        for _ in range(20):
            with urllib.request.urlopen(f"{made.address}/healthz", timeout=patient(10)) as answer:
                assert answer.status == 200
            assert made.get("/v1/cases", keys["viewer"])["items"] == []
        assert Counter(answers) == {429: refused}  # and nobody waited for a sign-in
        (tmp_path / "let-go").touch()
        for sender in senders:
            sender.join(patient(60))
        assert Counter(answers) == {429: refused, 401: served}


def _sign_in(made: Installation, number: int, answers: list[int]) -> None:
    """From an address of its own, by its number: those of one address wait for each other."""
    data = urllib.parse.urlencode({"name": f"nobody {number}", "password": "wrong"})
    source = (f"127.0.1.{1 + number}", 0)
    asked = http.client.HTTPConnection("127.0.0.1", made.port, patient(120), source_address=source)
    asked.request("POST", "/login", data, {"Content-Type": "application/x-www-form-urlencoded"})
    with asked.getresponse() as answer:
        answers.append(answer.status)
    asked.close()


@pytest.mark.slow
def test_sign_ins_of_one_address_wait_outside_and_are_then_asked_to_come_back(
    tmp_path: Path, tiny_release: Path
) -> None:
    with Installation(tmp_path / "home") as made:
        made.prepare(tiny_release)
        made.environment |= {"SECONDREAD_WORKER": "false", "SECONDREAD_REQUESTS_AT_ONCE": "3"}
        patient_for_a_second = "from app.http import middleware as f; from dataclasses import replace"
        patient_for_a_second += "; f.CALLER_REQUESTS = replace(f.CALLER_REQUESTS, wait_seconds=1.0)"
        code = f"{patient_for_a_second}\n{_HELD}"
        made.server = made.spawn("serve", log="server.log", code=code)
        wait_until(made._ready, 60, lambda: made.log)
        statuses: list[int] = []

        senders = [threading.Thread(target=_sign_in, args=(made, 0, statuses)) for _ in range(12)]
        for sender in senders:
            sender.start()
        wait_until(lambda: len(statuses) == 9, 30, lambda: f"{Counter(statuses)}\n{made.log}")
        assert Counter(statuses) == {429: 9}
        (tmp_path / "let-go").touch()
        for sender in senders:
            sender.join(patient(60))
        assert Counter(statuses) == {429: 9, 401: 3}


def test_healthz_needs_no_thread(service: Service) -> None:
    async def ask() -> int:
        threads = anyio.to_thread.current_default_thread_limiter()
        for _ in range(int(threads.total_tokens)):
            threads.acquire_on_behalf_of_nowait(object())
        transport = httpx2.ASGITransport(service.client.app)  # type: ignore[arg-type]
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as client:
            waiting = asyncio.create_task(client.get("/login"))
            await asyncio.sleep(0.1)
            status = (await client.get("/healthz")).status_code
            assert not waiting.done()  # every thread is taken indeed
            waiting.cancel()
        return status

    assert run_async(ask()) == 200


def attempt(service: Service, address: str, name: str, password: str) -> int:
    transport = httpx2.ASGITransport(service.client.app, client=(address, 1))  # type: ignore[arg-type]

    async def send() -> int:
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as client:
            return int((await client.post("/login", data={"name": name, "password": password})).status_code)

    return run_async(send())


@undone("T24", "wrong passwords keep out those who send them, not the account", sign_in, "network_of", lambda _: "")
@pytest.mark.slow
def test_wrong_passwords_keep_out_whoever_sends_them_and_nobody_else(service: Service) -> None:
    now = [0.0]
    app: Any = service.client.app
    app.state.sign_in_throttle = SignInThrottle(lambda: now[0])
    first_password(service, "anna")
    assert [attempt(service, "192.0.2.66", " anna", "wrong") for _ in range(FREE_TRIES)] == [401] * FREE_TRIES
    assert attempt(service, "192.0.2.66", "anna", GOOD) == 401  # here not even the right one
    assert attempt(service, "192.0.2.1", "anna", GOOD) == 303
    for _ in range(6):  # as in the review: a few wrong ones every minute kept the only admin out for ever
        attempt(service, "192.0.2.66", "anna", "wrong")
        assert attempt(service, "192.0.2.1", "anna", GOOD) == 303
    with service.context.database.read() as session:
        events = select(func.count()).select_from(AuditEvent).where(AuditEvent.action == "account.throttle")
        assert session.execute(events).scalar_one() == 1
    now[0] = 61
    assert attempt(service, "192.0.2.66", "anna", GOOD) == 303
    assert attempt(service, "192.0.2.66", "anna", "wrong") == 401
    assert attempt(service, "192.0.2.66", "anna", GOOD) == 303  # a success begins a new row


def test_a_password_that_must_wait_is_not_hashed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.accounts import passwords

    hashed: list[str] = []
    real = passwords._check_password_hash
    monkeypatch.setattr(
        passwords, "_check_password_hash", lambda stored, given: (hashed.append(given), real(stored, given))[1]
    )
    for _ in range(30):
        attempt(service, "2001:db8::1", "nobody", "wrong")
    assert len(hashed) == FREE_TRIES
    assert attempt(service, "2001:db8::2", "nobody", "wrong") == 401  # the same subscriber
    assert len(hashed) == FREE_TRIES
    attempt(service, "2001:db8:0:1::1", "nobody", "wrong")
    assert len(hashed) == FREE_TRIES + 1


def test_each_wait_is_twice_the_last_and_at_most_an_hour() -> None:
    now = [0.0]
    throttle = SignInThrottle(lambda: now[0])
    begun = [throttle.failed("a", "x") for _ in range(FREE_TRIES)]
    assert begun == [False] * (FREE_TRIES - 1) + [True]
    waits = []
    for _ in range(9):
        start = now[0]
        while throttle.must_wait("a", "x"):
            now[0] += 1
        waits.append(now[0] - start)
        assert not throttle.failed("a", "x")
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_what_is_remembered_of_wrong_passwords_is_bounded() -> None:
    throttle = SignInThrottle()
    for number in range(REMEMBERED + 100):
        throttle.failed("a", f"name {number}")
    assert len(throttle._pairs) == REMEMBERED


def test_choosing_a_password_locks_nothing_while_it_is_hashed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite one open transaction that writes stops every label."""
    cookie = first_password(service, "anna")
    from app.accounts import passwords

    real, written = passwords._HASHER.hash, []

    def meanwhile(password: str) -> str:
        with service.context.database.write() as session:
            auth.add_account(session, service.context.keys.audit, f"person {len(written)}", "viewer")
        written.append(password)
        return real(password)

    class Hasher:
        hash, verify = staticmethod(meanwhile), passwords._HASHER.verify

    monkeypatch.setattr(passwords, "_HASHER", Hasher)
    data = {"present": GOOD, "wanted": "quite another one"}
    assert service.client.post("/account", data=data, headers=cookie).status_code == 200
    assert written == ["quite another one"]
