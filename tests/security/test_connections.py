"""Connections that cost before anybody is known: half-sent headers, endless ones, bodies that nobody reads."""

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.http.limiter import IN_ALL, MAX_HEADERS, PER_ADDRESS
from tests.support.process import Installation
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


def start(made: Installation, header_seconds: float) -> None:
    made.server = made.spawn("serve", log="server.log", code=_SHORT.format(header=header_seconds))
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


def send_on(opened: socket.socket, size: int) -> None:
    for _ in range(size // 4096):
        opened.sendall(b"x" * 4096)


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
    start(made, 600)
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
    start(made, 600)
    sources = [f"127.0.{1 + number // 200}.{1 + number % 200}" for number in range(600)]
    for number, source in enumerate(sources):
        connect(made, source, (b"", _HALF, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")[number % 3])
    assert [status(made, f"127.0.9.{last}") for last in range(1, 11)] == [200] * 10
    ended = [opened for opened in OPENED if opened.getblocking() and has_ended(opened)]
    assert len(OPENED) - IN_ALL <= len(ended) <= len(OPENED) - IN_ALL + 20  # no more than there was no room for


@pytest.mark.slow
def test_headers_have_a_deadline_and_a_size_and_so_has_what_nobody_reads(made: Installation) -> None:
    start(made, 1.5)
    for sent in (b"", _HALF, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):  # the last is idle afterwards
        opened = connect(made, "127.0.0.3", sent)
        if sent.endswith(b"\r\n\r\n"):
            assert b" 200 " in answer(opened)
            opened.sendall(_HALF)
        assert is_ended(opened)
    endless = connect(made, "127.0.0.3", _HALF)
    with pytest.raises(ConnectionError):
        send_on(endless, 200 * MAX_HEADERS)
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
