"""What costs before anybody is known: half-sent headers, sign-ins by the dozen, other sites and proxies."""

import asyncio
import http.client
import socket
import threading
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from sqlalchemy import func, select

from app.accounts import passwords, sign_in
from app.accounts import people as auth
from app.accounts.sign_in import REMEMBERED, SignInThrottle
from app.database.tables import AuditEvent
from app.http.limiter import FREE_TRIES, IN_ALL, MAX_HEADERS, PASSWORDS, PER_ADDRESS
from app.settings import Settings
from tests.app.test_people import GOOD, first_password
from tests.support.coroutines import run_async
from tests.support.process import Installation
from tests.support.sabotage import undone
from tests.support.service import Service
from tests.support.waiting import patient, wait_until

_HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
#: Sockets of a test, closed after it.
OPENED: list[socket.socket] = []
#: Deadlines that a test can wait for.
_SHORT = "import app.http.connection_limits as c; c.HEADER_SECONDS = {header}; c.LINGER_SECONDS = 1.0"


@pytest.fixture
def made(tmp_path: Path, tiny_release: Path) -> Iterator[Installation]:
    with Installation(tmp_path / "home") as made:
        made.prepare(tiny_release, viewer="viewer")
        made.environment |= {"SECONDREAD_WORKER": "false", "SECONDREAD_TRUSTED_PROXIES": '["127.0.0.1"]'}
        yield made
    while OPENED:
        OPENED.pop().close()


def start(made: Installation, code: str) -> None:
    made.server = made.spawn("serve", log="server.log", code=code)
    wait_until(made._ready, 60, lambda: made.log)


def connect(made: Installation, source: str, data: bytes = b"") -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", made.port), patient(20), source_address=(source, 0))
    OPENED.append(opened)
    opened.sendall(data)
    return opened


def is_ended(opened: socket.socket) -> bool:
    try:
        return opened.recv(65536) == b""
    except ConnectionError:
        return True


def has_ended(opened: socket.socket) -> bool:
    """Whether the server has ended a connection by now."""
    opened.setblocking(False)
    try:
        while received := opened.recv(65536):
            assert b" 200 " in received or b"}" in received
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def answer(opened: socket.socket) -> bytes:
    """An answer of one JSON object, which may arrive in pieces."""
    received = b""
    while b"}" not in received:
        received += opened.recv(65536)
    return received


def status(made: Installation, source: str) -> int:
    asked = http.client.HTTPConnection("127.0.0.1", made.port, patient(20), source_address=(source, 0))
    try:
        asked.request("GET", "/healthz")
        return asked.getresponse().status
    except ConnectionError:
        return 0
    finally:
        asked.close()


@pytest.mark.slow
def test_half_sent_headers_of_one_address_keep_nobody_else_out(made: Installation) -> None:
    start(made, _SHORT.format(header=600))
    silent = [connect(made, "127.0.0.3", _HALF) for _ in range(PER_ADDRESS)]
    assert is_ended(connect(made, "127.0.0.3", _HALF))
    assert status(made, "127.0.0.3") == 0
    assert [status(made, f"127.0.0.{last}") for last in (1, 4, 5)] == [200] * 3
    proxied = [connect(made, "127.0.0.1", _HALF) for _ in range(PER_ADDRESS + 20)]
    assert status(made, "127.0.0.1") == 200  # a trusted proxy speaks for many
    for opened in (*silent, *proxied):
        opened.close()
    wait_until(lambda: status(made, "127.0.0.3") == 200)


@pytest.mark.slow
def test_connections_of_six_hundred_addresses_keep_nobody_out(made: Installation) -> None:
    """Silent, half-sent and idle ones, of more addresses than there may be connections in all."""
    start(made, _SHORT.format(header=600))
    sources = [f"127.0.{1 + number // 200}.{1 + number % 200}" for number in range(600)]
    for number, source in enumerate(sources):
        connect(made, source, (b"", _HALF, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")[number % 3])
    assert [status(made, f"127.0.9.{last}") for last in range(1, 11)] == [200] * 10
    ended = [opened for opened in OPENED if opened.getblocking() and has_ended(opened)]
    assert len(OPENED) - IN_ALL <= len(ended) <= len(OPENED) - IN_ALL + 20  # no more than there was no room for


@pytest.mark.slow
def test_headers_have_a_deadline_and_a_size_and_so_has_what_nobody_reads(made: Installation) -> None:
    start(made, _SHORT.format(header=1.5))
    for sent in (b"", _HALF, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):  # the last is idle afterwards
        opened = connect(made, "127.0.0.3", sent)
        if sent.endswith(b"\r\n\r\n"):
            assert b" 200 " in answer(opened)
            opened.sendall(_HALF)
        assert is_ended(opened)
    endless = connect(made, "127.0.0.3", _HALF)
    with pytest.raises(ConnectionError):
        endless.sendall(200 * MAX_HEADERS * b"x")
    unread = connect(
        made, "127.0.0.3", b"POST /imports HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999\r\n\r\nabc"
    )
    assert b" 401 " in answer(unread)
    assert is_ended(unread)
    slow = connect(  # what is being read goes on: bodies have a deadline of their own
        made,
        "127.0.0.3",
        b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 999\r\n\r\nname=",
    )
    slow.settimeout(3)
    with pytest.raises(TimeoutError):
        slow.recv(65536)


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
        start(made, _HELD)
        answers: list[int] = []
        senders = _signing_in(made, range(60), answers)
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


def _signing_in(made: Installation, numbers: Iterable[int], answers: list[int]) -> list[threading.Thread]:
    senders = [threading.Thread(target=_sign_in, args=(made, number, answers)) for number in numbers]
    for sender in senders:
        sender.start()
    return senders


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
        patient_for_a_second = "from app.http import limiter as f; from dataclasses import replace"
        patient_for_a_second += "; f.CALLER_REQUESTS = replace(f.CALLER_REQUESTS, wait_seconds=1.0)"
        start(made, f"{patient_for_a_second}\n{_HELD}")
        statuses: list[int] = []
        senders = _signing_in(made, [0] * 12, statuses)
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
    events = select(func.count()).select_from(AuditEvent).where(AuditEvent.action == "account.throttle")
    assert service.one(events) == 1
    now[0] = 61
    assert attempt(service, "192.0.2.66", "anna", GOOD) == 303
    assert attempt(service, "192.0.2.66", "anna", "wrong") == 401
    assert attempt(service, "192.0.2.66", "anna", GOOD) == 303  # a success begins a new row


def test_a_password_that_must_wait_is_not_hashed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
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


PUBLIC = "https://reads.example.org"


def sign_in_once(service: Service, **headers: str) -> tuple[int, str]:
    data = {"name": "anna", "password": service.one_time_password("anna")}
    service.client.cookies.clear()
    answer = service.client.post("/login", data=data, headers=headers, follow_redirects=False)
    service.client.cookies.clear()
    return answer.status_code, answer.headers.get("set-cookie", "")


def test_a_public_address_with_tls_makes_cookies_secure_and_says_hsts(service: Service) -> None:
    status, cookie = sign_in_once(service)
    assert (status, cookie.startswith("sr_session="), "Secure" in cookie) == (303, True, False)
    assert "strict-transport-security" not in service.client.get("/healthz").headers
    service.context.settings.public_url = PUBLIC
    status, cookie = sign_in_once(service)
    assert (status, cookie.startswith("__Host-sr_session="), "; Secure" in cookie) == (303, True, True)
    assert "; Path=/;" in cookie
    assert "Domain" not in cookie
    assert service.client.get("/healthz").headers["strict-transport-security"] == "max-age=31536000"
    token = cookie.split(";")[0].split("=", 1)[1]
    for name, expected in (("__Host-sr_session", 200), ("sr_session", 401)):  # the second could come from elsewhere
        answer = service.client.get("/worklist", headers={"Cookie": f"{name}={token}"}, follow_redirects=False)
        assert answer.status_code == expected
    gone = service.client.post("/logout", headers={"Cookie": f"__Host-sr_session={token}"}, follow_redirects=False)
    ended = [value for value in gone.headers.get_list("set-cookie") if value.startswith("__Host-")]
    assert len(ended) == 1
    assert "Secure" in ended[0]


@pytest.mark.parametrize(
    ("public", "origin", "status"),
    [
        (None, "http://testserver", 303),
        (None, "HTTP://TestServer", 303),
        (None, "https://testserver", 403),
        (None, "http://testserver:8080", 403),
        (None, "null", 403),
        (PUBLIC, PUBLIC, 303),
        (PUBLIC + "/", PUBLIC, 303),
        (PUBLIC, "http://reads.example.org", 403),
        (PUBLIC, "https://elsewhere.example", 403),
        (None, PUBLIC, 403),
    ],
)
def test_the_origin_of_a_form_is_compared_with_its_scheme(
    service: Service, public: str | None, origin: str, status: int
) -> None:
    service.context.settings.public_url = public
    assert sign_in_once(service, Origin=origin)[0] == status


@pytest.mark.parametrize("wrong", ['["proxy"]', '["10.0.0.1/8"]', '["*"]'])
def test_a_proxy_is_named_by_its_address(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECONDREAD_TRUSTED_PROXIES", wrong)
    with pytest.raises(ValueError, match="trusted_proxies"):
        Settings()


def _post_login(made: Installation, source: str, name: str, password: str, **headers: str) -> tuple[int, str, bool]:
    """Sign in from a local address; status, cookie, and whether HSTS was said."""
    connection = http.client.HTTPConnection("127.0.0.1", made.port, source_address=(source, 0), timeout=60)
    body = urllib.parse.urlencode({"name": name, "password": password})
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/login", body, kind | {k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    cookie = answer.getheader("set-cookie") or ""
    return answer.status, cookie, answer.getheader("strict-transport-security") is not None


def _open_to_others(home: Path) -> list[str]:
    """What other users could read; a release is copied with the modes that it has, and lies in a closed folder."""
    paths = [home, *(path for path in home.rglob("*") if "releases" not in path.parts)]
    assert len(paths) > 3
    return [f"{path} {path.stat().st_mode:o}" for path in paths if path.stat().st_mode & 0o077]


@pytest.mark.slow
def test_only_a_trusted_proxy_is_believed_and_files_are_private(tmp_path: Path, tiny_release: Path) -> None:
    with Installation(tmp_path / "home") as made:
        made.environment |= {"SECONDREAD_TRUSTED_PROXIES": '["127.0.0.2"]', "SECONDREAD_WORKER": "false"}
        made.run("release", "add", tiny_release)
        made.run("user", "add", "anna", "--role", "annotator")
        assert _open_to_others(made.home) == []
        made.home.chmod(0o755)
        made.start()
        assert "other users of this machine can look into" in made.log
        https = {"X_Forwarded_Proto": "https"}
        status, cookie, hsts = _post_login(made, "127.0.0.3", "anna", made.one_time_password("anna"), **https)
        assert (status, cookie.startswith("sr_session="), "Secure" in cookie, hsts) == (303, True, False, False)
        password = made.one_time_password("anna")
        for _ in range(5):
            assert _post_login(made, "127.0.0.2", "anna", "wrong", X_Forwarded_For="203.0.113.66")[0] == 401
        assert _post_login(made, "127.0.0.2", "anna", password, X_Forwarded_For="203.0.113.66")[0] == 401
        here = https | {"X_Forwarded_For": "203.0.113.1"}
        status, cookie, hsts = _post_login(made, "127.0.0.2", "anna", password, **here)
        assert (status, cookie.startswith("__Host-sr_session="), "Secure" in cookie, hsts) == (303, True, True, True)
        made.home.chmod(0o700)
        assert _open_to_others(made.home) == []
