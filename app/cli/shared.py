"""What the service's commands share: the parts of the service that the environment describes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.context import Context


@contextmanager
def parts() -> Iterator["Context"]:
    """Parts of the service that the environment describes."""
    from app.context import build_context
    from app.settings import Settings

    settings = Settings()
    settings.home.mkdir(parents=True, exist_ok=True)
    context = build_context(settings)
    try:
        yield context
    finally:
        context.database.engine.dispose()
