"""Style sheet, script and icon: each under an address that changes with its content, so that browsers may keep it."""

import hashlib
import os
from functools import cache
from os import PathLike
from pathlib import Path

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

FOLDER = Path(__file__).parent / "static"


@cache
def asset(name: str) -> str:
    """Address of a static file, with the digest of its content."""
    return f"/static/{name}?v={hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:12]}"


class Assets(StaticFiles):
    """Static files: kept for a year under an address with a digest, revalidated without one."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    def file_response(
        self, full_path: PathLike[str] | str, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file, with how long it may be kept."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        current = asset(Path(full_path).name).partition("?")[2].encode()
        kept = scope["query_string"] == current
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if kept else "no-cache"
        return response
