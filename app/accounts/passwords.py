"""Local passwords: argon2id, a floor on their length, and a limit on how many are hashed at once."""

from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from starlette.concurrency import run_in_threadpool

from app.http.limiter import PASSWORDS, Limiter, LimitPlace
from ml.messages import Message

MIN_LENGTH, MAX_LENGTH = 15, 200
HASHING = Limiter(PASSWORDS)
_HASHER = PasswordHasher()


@cache
def _hash_dummy_password() -> str:
    """Hash of no password, so that an unknown name takes as long as a known one."""
    return _HASHER.hash("an account that is not there")


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
    with LimitPlace(HASHING):
        return _HASHER.hash(password)


def verify_password(stored: str | None, password: str) -> bool:
    """Whether a password belongs to a hash; takes as long without one."""
    with LimitPlace(HASHING):
        return _check_password_hash(stored, password)


async def verify_password_async(stored: str | None, password: str) -> bool:
    """Verify a password, and wait for its turn without a thread."""
    async with LimitPlace(HASHING):
        return await run_in_threadpool(_check_password_hash, stored, password)


def _check_password_hash(stored: str | None, password: str) -> bool:
    try:
        return _HASHER.verify(stored or _hash_dummy_password(), password[: MAX_LENGTH + 1]) and stored is not None
    except (VerificationError, InvalidHashError):
        return False
