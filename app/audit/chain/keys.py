"""Installation keys: a ring of secrets, and one derived key per purpose."""

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MIN_SECRET_BYTES = 32
_KNOWN_SECRETS = {"secret", "changeme", "password", "default"}
# begins a ring: one key alone is any text, with spaces and ends of lines of its own
_RING = b"secondread-keys"


class DerivedKey:
    """HMAC-SHA256 under a secret, of messages that begin with one label: with it nothing else can be computed."""

    def __init__(self, secret: bytes, label: bytes) -> None:
        self._begun = hmac.new(secret, label, hashlib.sha256)

    def digest(self, message: bytes) -> bytes:
        """The 32 bytes of HMAC-SHA256(secret, label ‖ message)."""
        mac = self._begun.copy()
        mac.update(message)
        return mac.digest()


class EventSigner:
    """Ed25519 signing key of one secret of the ring."""

    # Ed25519, so that anybody can check and nobody else can sign.

    def __init__(self, secret: bytes) -> None:
        seed = DerivedKey(secret, b"signing key of the audit chain").digest(b"")
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._private.public_key().public_bytes_raw().hex()
        self.check = DerivedKey(secret, b"check value of the installation's key").digest(b"").hex()

    def sign(self, text: str) -> str:
        """Signature of a text in hexadecimal."""
        return self._private.sign(text.encode()).hex()


@dataclass(frozen=True)
class RingSecret:
    """One secret of the ring."""

    # at least 32 bytes
    value: bytes = field(repr=False)
    # seconds since 1970; 0 for the first one
    made_at: int = 0


@dataclass(frozen=True)
class KeyRing:
    """Secrets of an installation, the first one first."""

    # As text it is ``secondread-keys`` and, newest first, ``seconds:hexadecimal`` for each; one secret alone is written
    # as it is.

    secrets: tuple[RingSecret, ...]

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Read what a file or a setting contains."""
        if content.split(None, 1)[:1] != [_RING]:
            return cls((RingSecret(_require_strong_secret(content)),))
        ring = []
        for entry in reversed(content.decode(errors="replace").split()[1:]):
            made_at, _, value = entry.partition(":")
            try:
                ring.append(RingSecret(bytes.fromhex(value), int(made_at)))
            except ValueError as exc:
                raise ValueError("ring must consist of entries `seconds:hexadecimal`, the newest first") from exc
            _require_strong_secret(ring[-1].value)
        if not ring:
            raise ValueError("ring must contain a key")
        return cls(tuple(ring))

    def to_bytes(self) -> bytes:
        """As it is written to a file."""
        if len(self.secrets) == 1:
            return self.secrets[0].value
        entries = [f"{secret.made_at}:{secret.value.hex()}".encode() for secret in reversed(self.secrets)]
        return b"\n".join([_RING, *entries, b""])

    def oldest(self, n_keys: int) -> Self:
        """The ring as it was with its first ``n_keys`` secrets."""
        return type(self)(self.secrets[:n_keys])

    @classmethod
    def new(cls) -> Self:
        """A ring of one new secret."""
        return cls((RingSecret(_new_value()),))

    def rotated(self) -> Self:
        """The ring with one new secret more."""
        return type(self)((*self.secrets, RingSecret(_new_value(), int(time.time()))))


def _new_value() -> bytes:
    return secrets.token_hex(MIN_SECRET_BYTES).encode()


def _require_strong_secret(value: bytes) -> bytes:
    if len(value) < MIN_SECRET_BYTES or value.lower().strip(b"0123456789").decode(errors="replace") in _KNOWN_SECRETS:
        raise ValueError(f"must be at least {MIN_SECRET_BYTES} bytes and not a known default")
    return value


@dataclass(frozen=True)
class AuditKeys:
    """Keys to write and check the audit."""

    # one per secret of the ring, the first one first; the last one signs
    signers: tuple[EventSigner, ...]
    # for the digests of columns that name a person or open a door
    rows: DerivedKey

    @property
    def public_key(self) -> str:
        """Public key of whoever signs now, in hexadecimal."""
        return self.signers[-1].public

    def sign(self, text: str) -> str:
        """Signature of a text by the newest key, in hexadecimal."""
        return self.signers[-1].sign(text)


@dataclass(frozen=True)
class AnnotatorKeys:
    """Keys of the annotators' opaque identifiers and case order."""

    # for handles of cases
    cases: DerivedKey
    # for handles of accounts and reads in pages
    pages: DerivedKey
    # for an annotator's order among the next cases
    order: DerivedKey


@dataclass(frozen=True)
class CookieKey:
    """A key that signs the cookies of a sign-in, as long as no newer one has replaced it."""

    value: bytes = field(repr=False)
    # when the next key was made, in seconds since 1970; None for the newest one
    replaced_at: int | None


@dataclass(frozen=True)
class InstallationKeys:
    """All keys of the installation, by purpose."""

    # for the audit chain and the digests of rows
    audit: AuditKeys
    # for the coins u of cases; never moves
    coin: DerivedKey
    # for the partition of patients; never moves
    partition: DerivedKey
    # for the patients of the calibration partition who are kept for answer sets; never moves
    sets: DerivedKey
    # for drawing who is asked for a read; never moves
    draws: DerivedKey
    # for handles and orders
    readers: AnnotatorKeys
    # for cookies of sign-ins, the oldest first
    cookies: tuple[CookieKey, ...]
    # for the list of erasures; never moves, so that any backup's keys can check it
    erasures: DerivedKey
    # for digests of patients in exports and releases; never moves, so that old releases stay comparable
    training: DerivedKey
    # for links of invitations; never moves
    invitations: DerivedKey


def derive_keys(ring: KeyRing) -> InstallationKeys:
    """Derive the keys of a ring."""
    first, values = ring.secrets[0].value, [secret.value for secret in ring.secrets]
    replaced = [*(secret.made_at for secret in ring.secrets[1:]), None]
    cookies = [DerivedKey(value, b"signing key of cookies").digest(b"") for value in values]
    rows = DerivedKey(first, b"private columns of covered rows").digest(b"")
    return InstallationKeys(
        audit=AuditKeys(tuple(map(EventSigner, values)), DerivedKey(rows, b"")),
        coin=DerivedKey(first, b"coin:"),
        partition=DerivedKey(first, b"partition:"),
        sets=DerivedKey(first, b"answer sets:"),
        draws=DerivedKey(first, b"drawn annotators:"),
        readers=AnnotatorKeys(
            DerivedKey(first, b"case handle:"), DerivedKey(first, b"page handle:"), DerivedKey(first, b"order:")
        ),
        cookies=tuple(map(CookieKey, cookies, replaced)),
        erasures=DerivedKey(first, b"erasure list:"),
        training=DerivedKey(first, b"training patients:"),
        invitations=DerivedKey(first, b"invitations:"),
    )
