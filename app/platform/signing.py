"""The chain's signature: Ed25519, so that whoever has the public key can check it and nobody else can make it."""

import hashlib
import hmac
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PURPOSE = b"signing key of the audit chain"


@lru_cache(maxsize=8)
def _private_key(secret: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hmac.new(secret, _PURPOSE, hashlib.sha256).digest())


@lru_cache(maxsize=8)
def public_key(secret: bytes) -> str:
    """Public key of an installation in hexadecimal."""
    return _private_key(secret).public_key().public_bytes_raw().hex()


def sign(secret: bytes, text: str) -> str:
    """Signature of a text in hexadecimal."""
    return _private_key(secret).sign(text.encode()).hex()


def is_signed(public: str, text: str, signature: str | None) -> bool:
    """Whether a signature of a text was made with the key of which this is the public one."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature or ""), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True
