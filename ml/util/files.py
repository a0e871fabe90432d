"""Files and cores: JSON documents, atomic writes, digests."""

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_bytes_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write a file atomically."""
    with temporary_path(path) as temporary:
        temporary.write_bytes(data)
        replace_file(temporary, path)


@contextmanager
def temporary_path(target: Path) -> Iterator[Path]:
    """Yield a unique temporary path next to a file, removed at the end."""
    path = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield path
    except OSError as exc:
        if exc.errno is None or exc.filename is not None:
            raise
        # a write that fails does not know the name of its file
        raise OSError(exc.errno, exc.strerror, str(target)) from exc
    finally:
        path.unlink(missing_ok=True)


def replace_file(path: Path, target: Path) -> None:
    """Move a written file into place, replacing any other."""
    sync_file(path)
    path.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make sure that what was renamed in a folder is there after a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Make sure that what was written to a file is there after a loss of power."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def write_json(path: Path, document: Any) -> None:
    """Write sorted, indented JSON: equal content gives equal bytes."""
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_bytes_atomically(path, (text + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        document = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise ValueError(f"{path}: cannot be read as JSON: {exc}") from exc
    if not isinstance(document, dict):
        raise ValueError(f"{path}: must hold a JSON object")
    return document


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
