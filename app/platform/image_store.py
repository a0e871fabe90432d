"""Images by the SHA-256 of their files, in a folder or in a bucket."""

import hashlib
from collections.abc import Callable

from app.http.errors import NotFound, Unavailable
from app.platform.blob_store import BlobStore, Damaged, digest_of


class ImageStore:
    """Images by their SHA-256.

    Args:
        store: where they lie.
        prefix: of their keys, with a slash at its end; empty where the store contains nothing else.
    """

    def __init__(self, store: BlobStore, prefix: str = "") -> None:
        self.store, self.prefix = store, prefix

    def key(self, digest: str) -> str:
        """Key of an image.

        Raises:
            ValueError: not a SHA-256.
        """
        if digest != digest_of(digest):
            raise ValueError("not a SHA-256")
        return f"{self.prefix}{digest[:2]}/{digest}"

    def put(self, data: bytes) -> str:
        """Store bytes durably and return their SHA-256; a damaged image of this name is replaced."""
        return self.keep(data)[0]

    def keep(self, data: bytes) -> tuple[str, bool]:
        """The same, and whether they were written; else they were there, of somebody who may be erased."""
        digest = hashlib.sha256(data).hexdigest()
        return digest, self.store.put(self.key(digest), data)

    def get(self, digest: str) -> bytes:
        """Content of an image.

        Raises:
            NotFound: it is not there.
            Unavailable: it was damaged, or cannot be read.
        """
        try:
            return self.store.get(self.key(digest))
        except NotFound as exc:
            raise NotFound("the image is not in the store") from exc
        except Damaged as exc:
            raise Unavailable("the stored image is damaged; the same image, uploaded again, takes its place") from exc

    def find(self, digest: str) -> bytes | None:
        """Content of an image; None where it is missing or was damaged, or where it alone cannot be read.

        Raises:
            Unavailable: the store does not answer.
        """
        try:
            return self.store.get(self.key(digest))
        except (NotFound, Damaged):
            return None
        except Unavailable:
            self.store.check()
            return None

    def remove(self, digest: str) -> None:
        """Remove an image; one that is not there is removed already."""
        self.store.remove(self.key(digest))

    def intact(self, digest: str) -> bool:
        """Whether an image is there and unchanged."""
        return self.store.intact(self.key(digest))

    def sweep(self, used: Callable[[list[str]], set[str]], older_than: float) -> int:
        """Remove what interrupted writes left and images that no row names; see ``BlobStore.sweep``.

        Args:
            used: which of some digests a row names.
            older_than: age in seconds.

        Returns:
            Number of files removed.
        """
        return self.store.sweep(self.prefix, used, older_than)
