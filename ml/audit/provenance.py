"""Provenance of an audit page: files, program versions and options."""

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from secondread import __version__

#: Packages whose arithmetic the numbers rest on.
_PACKAGES = ("numpy", "scipy", "pyarrow")


@dataclass(frozen=True)
class FileRecord:
    """A table as it was read.

    Attributes:
        role: LABELS, PREDICTIONS, or the predictions compared with.
        path: where it was.
        size: bytes.
        sha256: of its bytes.
    """

    role: str
    path: str
    size: int
    sha256: str

    @classmethod
    def of(cls, role: str, path: Path) -> "FileRecord":
        """Read a file once for its digest.

        Raises:
            OSError: it cannot be read.
        """
        with path.open("rb") as file:
            return cls(role, str(path), path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class ProvenanceRecord:
    """Provenance of a page: files, versions and options.

    Attributes:
        files: the tables.
        command: the command line that made it.
        made_at: when, UTC.
        versions: of this program, of Python and of packages, by name.
    """

    files: tuple[FileRecord, ...]
    command: str
    made_at: datetime
    versions: dict[str, str]

    @classmethod
    def now(cls, files: Sequence[FileRecord], command: str) -> "ProvenanceRecord":
        """Record this moment and this installation."""
        versions = {"secondread": __version__, "Python": platform.python_version()}
        versions |= {name: version(name) for name in _PACKAGES}
        return cls(tuple(files), command, datetime.now(UTC), versions)
