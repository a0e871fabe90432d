"""Local passwords: argon2id, a floor on their length, and a limit on how many are hashed at once."""

import threading
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from app.platform.errors import Overloaded

MIN_LENGTH, MAX_LENGTH = 15, 200
# hashing takes 64 MiB and a core for a while: a flood of sign-ins must not take the machine
_SLOTS = threading.BoundedSemaphore(2)
_WAIT_SECONDS = 10.0
_HASHER = PasswordHasher()


@cache
def _nobody() -> str:
    """Hash of no password: an unknown name takes as long as a known one."""
    return _HASHER.hash("an account that is not there")


def _slot() -> None:
    if not _SLOTS.acquire(timeout=_WAIT_SECONDS):
        raise Overloaded("too many people are signing in; try again shortly")


def check_new_password(password: str) -> None:
    """Refuse a password that is too easy or too long to hash.

    Raises:
        ValueError: what is wrong with it.
    """
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise ValueError(f"a password must have {MIN_LENGTH} to {MAX_LENGTH} characters")
    if len(set(password)) < 5:
        raise ValueError("a password must have at least five different characters")


def hash_password(password: str) -> str:
    """Argon2id hash with its parameters and salt.

    Raises:
        Overloaded: too many at once.
        ValueError: a password that is too easy.
    """
    check_new_password(password)
    _slot()
    try:
        return _HASHER.hash(password)
    finally:
        _SLOTS.release()


def verify_password(stored: str | None, password: str) -> bool:
    """Whether a password belongs to a hash; takes as long without one.

    Raises:
        Overloaded: too many at once.
    """
    _slot()
    try:
        return _HASHER.verify(stored or _nobody(), password[: MAX_LENGTH + 1]) and stored is not None
    except (VerificationError, InvalidHashError):
        return False
    finally:
        _SLOTS.release()
