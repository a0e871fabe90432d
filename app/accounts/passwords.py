"""Local passwords: argon2id, a floor on their length, and threads of their own with a short queue.

Hashing takes 64 MiB and a core for a while. In the threads that serve requests a flood of sign-ins would make everybody
wait; here it fills a queue of its own, and whoever comes when it is full is asked to come back.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from app.http.errors import ServiceOverloaded
from ml.messages import Message

MIN_LENGTH, MAX_LENGTH = 15, 200
#: Passwords hashed at once, and how many may wait for that.
THREADS, QUEUE = 2, 8
_HASHER = PasswordHasher()
_POOL = ThreadPoolExecutor(THREADS, "passwords")
_PLACES = threading.BoundedSemaphore(THREADS + QUEUE)
_Result = TypeVar("_Result")


@cache
def _hash_dummy_password() -> str:
    """Hash of no password, so that an unknown name takes as long as a known one."""
    return _HASHER.hash("an account that is not there")


def _queue_hashing(work: Callable[..., _Result], *arguments: object) -> "Future[_Result]":
    """Begin to hash, or wait for it in the queue."""
    if not _PLACES.acquire(blocking=False):
        raise ServiceOverloaded("too many people are signing in; try again shortly")
    try:
        future = _POOL.submit(work, *arguments)
    except BaseException:
        _PLACES.release()
        raise
    future.add_done_callback(lambda _: _PLACES.release())
    return future


def check_new_password(password: str) -> None:
    """Refuse a password that is too easy or too long to hash."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise ValueError(
            Message(
                "a password must have {min_length} to {max_length} characters",
                min_length=MIN_LENGTH,
                max_length=MAX_LENGTH,
            )
        )
    if len(set(password)) < 5:
        raise ValueError(Message("a password must have at least five different characters"))


def hash_password(password: str) -> str:
    """Argon2id hash with its parameters and salt."""
    check_new_password(password)
    return _queue_hashing(_HASHER.hash, password).result()


def verify_password(stored: str | None, password: str) -> bool:
    """Whether a password belongs to a hash; takes as long without one."""
    return _queue_hashing(_check_password_hash, stored, password).result()


async def verify_password_async(stored: str | None, password: str) -> bool:
    """Verify a password without blocking a thread that serves requests."""
    return await asyncio.wrap_future(_queue_hashing(_check_password_hash, stored, password))


def _check_password_hash(stored: str | None, password: str) -> bool:
    try:
        return _HASHER.verify(stored or _hash_dummy_password(), password[: MAX_LENGTH + 1]) and stored is not None
    except (VerificationError, InvalidHashError):
        return False
