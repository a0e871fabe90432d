"""What the service's commands share: groups of commands, and the parts of the service."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from ml.cli import app

if TYPE_CHECKING:
    from app.context import Context


def group(name: str, text: str) -> typer.Typer:
    """A group of commands, ``secondread NAME …``."""
    made = typer.Typer(no_args_is_help=True, help=text)
    app.add_typer(made, name=name)
    return made


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
