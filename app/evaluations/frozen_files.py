"""Where frozen evaluations lie, and the digest of their tables."""

import hashlib
import uuid
from pathlib import Path

from app.storage.bundles import SharedFolders
from ml.files import file_sha256

EVALUATIONS, LABELS, PREDICTIONS = "evaluations", "labels.parquet", "predictions.parquet"


def folder_of(home: Path, evaluation_id: uuid.UUID) -> Path:
    """Folder of an evaluation's tables and reports, where HOME is the only place."""
    return home / EVALUATIONS / str(evaluation_id)


def frozen_name(folders: SharedFolders, evaluation_id: uuid.UUID, digest: str) -> str:
    """Name of that folder; in a bucket the digest is part of it, so that what a killed worker left is never taken.

    Args:
        folders: where it lies.
        evaluation_id: whose.
        digest: of its tables.
    """
    name = f"{EVALUATIONS}/{evaluation_id}"
    return name if folders.bucket is None else f"{name}/{digest}"


def snapshot_sha256(folder: Path) -> str:
    """Digest of the frozen tables."""
    digests = "".join(file_sha256(folder / name) for name in (LABELS, PREDICTIONS))
    return hashlib.sha256(digests.encode()).hexdigest()
