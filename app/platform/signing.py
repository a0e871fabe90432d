"""Checking the chain's signatures: Ed25519, for which the public key is enough (``app.platform.keys`` signs)."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def is_signed(public: str, text: str, signature: str | None) -> bool:
    """Whether a signature of a text was made with the key of which this is the public one."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature or ""), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True
