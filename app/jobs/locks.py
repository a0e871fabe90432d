"""Worker locks: a lock is released when its worker dies, so that dead workers are detected.

On PostgreSQL it is a session's advisory lock named by the worker, so it goes with the connection: a worker must connect
to the database itself, not through a transaction pooler. On SQLite it locks a file next to the database, and only
one worker can have it.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

# first key of every worker's advisory lock, to distinguish them from others
_LOCK_CLASS = 1_397_706_834
# how fast a connection to a machine that is gone is noticed, here and by the server
_KEEPALIVE = "keepalives_idle=5 keepalives_interval=3 keepalives_count=3 tcp_user_timeout=15000 connect_timeout=5"
_SERVER = (
    "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=3 -c tcp_keepalives_count=3 -c tcp_user_timeout=15000 "
    "-c idle_session_timeout=0 -c statement_timeout=5000"
)


class WorkerLock(Protocol):
    """The lock of this process."""

    def acquired(self) -> bool:
        """Try to acquire the lock; return whether it succeeded."""

    def kept(self) -> bool:
        """Whether it is still this process's."""

    def release(self) -> None:
        """Release the lock."""


class _FileLock:
    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._kept = False

    def acquired(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._kept = True
        return True

    def kept(self) -> bool:
        return self._kept

    def release(self) -> None:
        self._kept = False
        os.close(self._handle)


class _AdvisoryLock:
    def __init__(self, url: str, executor_id: str) -> None:
        import psycopg

        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        options = dict(part.split("=", 1) for part in _KEEPALIVE.split())
        self._connection = psycopg.connect(plain, autocommit=True, options=_SERVER, **options)  # type: ignore[arg-type]
        self._key = _lock_number(executor_id)

    def acquired(self) -> bool:
        row = self._connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (_LOCK_CLASS, self._key)).fetchone()
        return row is not None and bool(row[0])

    def kept(self) -> bool:
        import psycopg

        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def release(self) -> None:
        self._connection.close()


def worker_lock(url: str, executor_id: str) -> WorkerLock:
    """The lock of a worker, not yet taken."""
    return _FileLock(_lock_file_path(url)) if url.startswith("sqlite") else _AdvisoryLock(url, executor_id)


@contextmanager
def lock_dead_worker(session: Session, executor_id: str) -> Iterator[bool]:
    """Lock a worker that is dead, so that no other worker recovers it too."""
    if session.get_bind().dialect.name == "sqlite":
        yield True  # there is one worker, and it is the one that asks
        return
    keys = {"class": _LOCK_CLASS, "key": _lock_number(executor_id)}
    yield bool(session.execute(text("SELECT pg_try_advisory_xact_lock(:class, :key)"), keys).scalar_one())
    session.rollback()


def count_living_workers(session: Session) -> int:
    """Number of workers that live, commands that do their own job included."""
    bind = session.get_bind()
    if bind.dialect.name != "sqlite":
        statement = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = :class AND objsubid = 2 "
            "AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return int(session.execute(text(statement), {"class": _LOCK_CLASS}).scalar_one())
    try:
        handle = os.open(_lock_file_path(str(bind.engine.url)), os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return 1
    finally:
        os.close(handle)
    return 0


def _lock_file_path(url: str) -> Path:
    return Path(f"{make_url(url).database}.worker")


def _lock_number(executor_id: str) -> int:
    return int.from_bytes(hashlib.sha256(executor_id.encode()).digest()[:4], "big", signed=True)
