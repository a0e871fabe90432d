"""Waiting for an event: as long as it takes, up to a deadline that one factor stretches on a busy machine."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Factor on every deadline of the tests, from ``SECONDREAD_TEST_PATIENCE``.
PATIENCE = float(os.environ.get("SECONDREAD_TEST_PATIENCE", "1"))


def patient(seconds: float) -> float:
    """A deadline on this machine: what is given to threads, processes and requests as their time limit."""
    return seconds * PATIENCE


def wait_until(condition: Callable[[], T], seconds: float = 30.0, what: str | Callable[[], str] = "") -> T:
    """Ask until the answer is true; gives that answer."""
    deadline, pause = time.monotonic() + patient(seconds), 0.02
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {patient(seconds):.0f} s: {what() if callable(what) else what}")
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)


def stretch_database_deadlines() -> None:
    """Give PostgreSQL the same patience with the service in this process: a starved thread is no stuck transaction."""
    from app.database import engine

    for name, value in engine.POSTGRES_SETTINGS.items():
        if name.endswith("_timeout"):
            engine.POSTGRES_SETTINGS[name] = str(round(patient(int(value))))
