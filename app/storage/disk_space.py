"""Reserves free disk space for labels: uploads are refused when little is left."""

import shutil
from pathlib import Path

from app.http.errors import StorageFull


def require_space(folder: Path, min_free_bytes: int, size: int = 0) -> None:
    """Refuse to store more where too little space is left."""
    if shutil.disk_usage(folder).free < max(min_free_bytes, size):
        raise StorageFull("too little disk space is left for uploads; labels are still accepted")
