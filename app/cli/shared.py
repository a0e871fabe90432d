"""What the service's commands share: the parts of the service that the environment describes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.context import Context


@contextmanager
def parts(*, direct: bool = False) -> Iterator["Context"]:
    """Parts of the service that the environment describes.

    Args:
        direct: for a worker, which needs the database itself and not a transaction pooler before it.
    """
    from app.context import build_context
    from app.settings import Settings

    settings = Settings()
    if direct and settings.database_direct_url is not None:
        settings.database_url = settings.database_direct_url
    settings.home.mkdir(parents=True, exist_ok=True)
    context = build_context(settings)
    try:
        yield context
    finally:
        context.database.engine.dispose()
