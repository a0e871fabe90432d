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

from app.http.errors import Overloaded
from ml.messages import Message

MIN_LENGTH, MAX_LENGTH = 15, 200
#: Passwords hashed at once, and how many may wait for that.
THREADS, QUEUE = 2, 8
_HASHER = PasswordHasher()
_POOL = ThreadPoolExecutor(THREADS, "passwords")
_PLACES = threading.BoundedSemaphore(THREADS + QUEUE)
_Result = TypeVar("_Result")


@cache
def _nobody() -> str:
    """Hash of no password: an unknown name takes as long as a known one."""
    return _HASHER.hash("an account that is not there")


def _begin(work: Callable[..., _Result], *arguments: object) -> "Future[_Result]":
    """Begin to hash, or wait for it in the queue.

    Raises:
        Overloaded: the queue is full.
    """
    if not _PLACES.acquire(blocking=False):
        raise Overloaded("too many people are signing in; try again shortly")
    try:
        future = _POOL.submit(work, *arguments)
    except BaseException:
        _PLACES.release()
        raise
    future.add_done_callback(lambda _: _PLACES.release())
    return future


def check_new_password(password: str) -> None:
    """Refuse a password that is too easy or too long to hash.

    Raises:
        ValueError: what is wrong with it.
    """
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
    """Argon2id hash with its parameters and salt.

    Raises:
        Overloaded: too many at once.
        ValueError: a password that is too easy.
    """
    check_new_password(password)
    return _begin(_HASHER.hash, password).result()


def verify_password(stored: str | None, password: str) -> bool:
    """Whether a password belongs to a hash; takes as long without one.

    Raises:
        Overloaded: too many at once.
    """
    return _begin(_verify, stored, password).result()


async def verified(stored: str | None, password: str) -> bool:
    """``verify_password`` while no thread that serves requests waits for it.

    Raises:
        Overloaded: too many at once.
    """
    return await asyncio.wrap_future(_begin(_verify, stored, password))


def _verify(stored: str | None, password: str) -> bool:
    try:
        return _HASHER.verify(stored or _nobody(), password[: MAX_LENGTH + 1]) and stored is not None
    except (VerificationError, InvalidHashError):
        return False
