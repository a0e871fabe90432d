"""The installation's keys: a ring of secrets, and for each purpose a key of its own that is good for nothing else.

The newest secret signs the audit chain and cookies. What rows were made from never moves, and so follows from the first
secret for ever: coins, partitions, sets, handles, and the digests of columns that name a person.
"""

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
    """HMAC-SHA256 under a secret, of messages that begin with one label: with it nothing else can be computed.

    Args:
        secret: at least 32 bytes.
        label: what it is for; no label is the beginning of another one.
    """

    def __init__(self, secret: bytes, label: bytes) -> None:
        self._begun = hmac.new(secret, label, hashlib.sha256)

    def digest(self, message: bytes) -> bytes:
        """The 32 bytes of HMAC-SHA256(secret, label ‖ message)."""
        mac = self._begun.copy()
        mac.update(message)
        return mac.digest()


class Signer:
    """The key with which one secret of the ring signs: Ed25519, so that anybody can check and nobody else can sign.

    Attributes:
        public: its public key, in hexadecimal.
        check: check value of the secret, from which neither it nor the key can be computed.
    """

    def __init__(self, secret: bytes) -> None:
        seed = DerivedKey(secret, b"signing key of the audit chain").digest(b"")
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._private.public_key().public_bytes_raw().hex()
        self.check = DerivedKey(secret, b"check value of the installation's key").digest(b"").hex()

    def sign(self, text: str) -> str:
        """Signature of a text in hexadecimal."""
        return self._private.sign(text.encode()).hex()


@dataclass(frozen=True)
class Secret:
    """One secret of the ring.

    Attributes:
        value: at least 32 bytes.
        made_at: seconds since 1970; 0 for the first one.
    """

    value: bytes = field(repr=False)
    made_at: int = 0


@dataclass(frozen=True)
class KeyRing:
    """Secrets of an installation, the first one first.

    As text it is ``secondread-keys`` and, newest first, ``seconds:hexadecimal`` for each; one secret alone is written
    as it is.
    """

    secrets: tuple[Secret, ...]

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Read what a file or a setting contains.

        Raises:
            ValueError: a secret is short or known, or the ring cannot be read.
        """
        if content.split(None, 1)[:1] != [_RING]:
            return cls((Secret(_strong(content)),))
        ring = []
        for entry in reversed(content.decode(errors="replace").split()[1:]):
            made_at, _, value = entry.partition(":")
            try:
                ring.append(Secret(bytes.fromhex(value), int(made_at)))
            except ValueError as exc:
                raise ValueError("ring must consist of entries `seconds:hexadecimal`, the newest first") from exc
            _strong(ring[-1].value)
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
        return cls((Secret(_new_value()),))

    def rotated(self) -> Self:
        """The ring with one new secret more."""
        return type(self)((*self.secrets, Secret(_new_value(), int(time.time()))))


def _new_value() -> bytes:
    return secrets.token_hex(MIN_SECRET_BYTES).encode()


def _strong(value: bytes) -> bytes:
    """Refuse a secret that is short or known.

    Raises:
        ValueError: it is.
    """
    if len(value) < MIN_SECRET_BYTES or value.lower().strip(b"0123456789").decode(errors="replace") in _KNOWN_SECRETS:
        raise ValueError(f"must be at least {MIN_SECRET_BYTES} bytes and not a known default")
    return value


@dataclass(frozen=True)
class AuditKeys:
    """What writing and checking the audit needs.

    Attributes:
        signers: one per secret of the ring, the first one first; the last one signs.
        rows: for the digests of columns that name a person or open a door.
    """

    signers: tuple[Signer, ...]
    rows: DerivedKey

    @property
    def public_key(self) -> str:
        """Public key of whoever signs now, in hexadecimal."""
        return self.signers[-1].public

    def sign(self, text: str) -> str:
        """Signature of a text by the newest key, in hexadecimal."""
        return self.signers[-1].sign(text)


@dataclass(frozen=True)
class ReaderKeys:
    """What annotators get in place of identifiers, and their own order of cases.

    Attributes:
        cases: for handles of cases.
        pages: for handles of accounts and reads in pages.
        order: for an annotator's order among the next cases.
    """

    cases: DerivedKey
    pages: DerivedKey
    order: DerivedKey


@dataclass(frozen=True)
class CookieKey:
    """A key that signs the cookies of a sign-in, as long as no newer one has replaced it.

    Attributes:
        value: 32 bytes.
        replaced_at: when the next key was made, in seconds since 1970; None for the newest one.
    """

    value: bytes = field(repr=False)
    replaced_at: int | None


@dataclass(frozen=True)
class Keys:
    """Everything that follows from the ring, by purpose.

    Attributes:
        audit: for the audit chain and the digests of rows.
        coin: for the coins u of cases; never moves.
        partition: for the partition of patients; never moves.
        sets: for the patients of the calibration partition who are kept for answer sets; never moves.
        draws: for drawing who is asked for a read; never moves.
        readers: for handles and orders.
        cookies: for cookies of sign-ins, the oldest first.
        erasures: for the list of erasures; never moves, so that any backup's keys can check it.
        training: for digests of patients in exports and releases; never moves, so that old releases stay comparable.
    """

    audit: AuditKeys
    coin: DerivedKey
    partition: DerivedKey
    sets: DerivedKey
    draws: DerivedKey
    readers: ReaderKeys
    cookies: tuple[CookieKey, ...]
    erasures: DerivedKey
    training: DerivedKey


def derive(ring: KeyRing) -> Keys:
    """Keys of a ring."""
    first, values = ring.secrets[0].value, [secret.value for secret in ring.secrets]
    replaced = [*(secret.made_at for secret in ring.secrets[1:]), None]
    cookies = [DerivedKey(value, b"signing key of cookies").digest(b"") for value in values]
    rows = DerivedKey(first, b"private columns of covered rows").digest(b"")
    return Keys(
        audit=AuditKeys(tuple(map(Signer, values)), DerivedKey(rows, b"")),
        coin=DerivedKey(first, b"coin:"),
        partition=DerivedKey(first, b"partition:"),
        sets=DerivedKey(first, b"answer sets:"),
        draws=DerivedKey(first, b"drawn annotators:"),
        readers=ReaderKeys(
            DerivedKey(first, b"case handle:"), DerivedKey(first, b"page handle:"), DerivedKey(first, b"order:")
        ),
        cookies=tuple(map(CookieKey, cookies, replaced)),
        erasures=DerivedKey(first, b"erasure list:"),
        training=DerivedKey(first, b"training patients:"),
    )
