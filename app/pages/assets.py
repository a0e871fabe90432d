"""Style sheet, scripts and icon: under an address that changes with their content, so that browsers may keep them."""

import hashlib
import os
from functools import cache
from os import PathLike
from pathlib import Path

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

from app.reports.report import STYLE

FOLDER = Path(__file__).parent / "static"
#: What reports that open offline have inside.
_OF_REPORTS = STYLE.parent


@cache
def _version() -> str:
    """Digest of all of them: one for the folder, since scripts name each other by the place beside them."""
    digest = hashlib.sha256()
    files = [file for folder in (FOLDER, _OF_REPORTS) for file in folder.rglob("*") if file.is_file()]
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


@cache
def asset(name: str) -> str:
    """Address of a static file, with the digest of what all of them hold."""
    return f"/static/{_version()}/{name}"


class Assets(StaticFiles):
    """Static files: kept for a year under an address with a digest, revalidated without one."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)
        self.all_directories.append(_OF_REPORTS)

    def get_path(self, scope: Scope) -> str:
        """Path in the folder: what follows a digest, of these files or of those before them, in the address."""
        version, _, name = super().get_path(scope).partition(os.sep)
        return name or version

    def file_response(
        self, full_path: PathLike[str] | str, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file, with how long it may be kept."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        kept = super().get_path(scope).startswith(_version() + os.sep)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if kept else "no-cache"
        return response
