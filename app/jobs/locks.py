"""Locks of executors: the operating system (SQLite) or PostgreSQL takes a lock away when its process dies."""

import fcntl
import hashlib
import os
from collections.abc import Iterable

from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

# first key of every executor's advisory lock, to distinguish them from others
_LOCK_CLASS = 1_397_706_834
# how fast a connection to a machine that is gone is noticed, here and by the server
_KEEPALIVE = {
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15000,
    "connect_timeout": 5,
}
_SERVER = (
    "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=3 -c tcp_keepalives_count=3 -c tcp_user_timeout=15000 "
    "-c idle_session_timeout=0 -c statement_timeout=5000"
)


class _FileLock:
    """Lock on a file beside a SQLite database."""

    def __init__(self, url: str) -> None:
        self._url, self._handle = url, -1

    def acquire(self, executor_id: str) -> bool:
        handle = _lock_file(self._url, executor_id)
        if handle is not None:
            self._handle = handle
        return handle is not None

    def is_held(self) -> bool:
        return self._handle >= 0

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


class _AdvisoryLock:
    """Advisory lock of a session of PostgreSQL."""

    def __init__(self, url: str) -> None:
        import psycopg

        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = psycopg.connect(plain, autocommit=True, options=_SERVER, **_KEEPALIVE)  # type: ignore[arg-type]

    def acquire(self, executor_id: str) -> bool:
        keys = (_LOCK_CLASS, _lock_number(executor_id))
        row = self._connection.execute("SELECT pg_try_advisory_lock(%s, %s)", keys).fetchone()
        return row is not None and bool(row[0])

    def is_held(self) -> bool:
        import psycopg

        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def release(self) -> None:
        self._connection.close()


#: The lock of this process on the name of an executor.
ExecutorLock = _FileLock | _AdvisoryLock


def executor_lock(url: str) -> ExecutorLock:
    """A lock that is not acquired yet."""
    return _FileLock(url) if url.startswith("sqlite") else _AdvisoryLock(url)


def find_living_executors(session: Session, executor_ids: Iterable[str]) -> set[str]:
    """The executors among these whose process has its lock."""
    bind = session.get_bind()
    if bind.dialect.name == "sqlite":
        url = str(bind.engine.url)
        handles = {executor_id: _lock_file(url, executor_id, fcntl.LOCK_SH) for executor_id in executor_ids}
        for handle in handles.values():
            if handle is not None:
                os.close(handle)
        return {executor_id for executor_id, handle in handles.items() if handle is None}
    statement = (
        "SELECT CAST(objid AS bigint) FROM pg_locks WHERE locktype = 'advisory' AND classid = :class AND objsubid = 2 "
        "AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    numbers = set(session.execute(text(statement), {"class": _LOCK_CLASS}).scalars())
    return {executor_id for executor_id in executor_ids if _lock_number(executor_id) % 2**32 in numbers}


def _lock_file(url: str, executor_id: str, kind: int = fcntl.LOCK_EX) -> int | None:
    handle = os.open(f"{make_url(url).database}.{executor_id}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _lock_number(executor_id: str) -> int:
    return int.from_bytes(hashlib.sha256(executor_id.encode()).digest()[:4], "big", signed=True)
