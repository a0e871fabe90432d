"""Two processes with HOMEs of their own, one database and one bucket."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fastapi.testclient import TestClient

from app.context import build_context
from app.main import create_app
from app.platform.installation import claim
from app.releases.adding import add_release
from app.settings import Settings
from tests.support.service import Service, add_people, show_at_once


def settings_of(settings: Settings, home: Path, bucket: str | None, url: str | None = None) -> Settings:
    """Those of another process.

    Args:
        settings: of the first one.
        home: its own HOME.
        bucket: address; None for none.
        url: of another database.
    """
    changed = {"home": home, "storage_url": bucket, "database_url": url or settings.database_url}
    return settings.model_copy(update=changed)


@contextmanager
def process(settings: Settings, keys: dict[str, str]) -> Iterator[Service]:
    """A process with these settings, as far as a test needs one."""
    app = create_app(settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(client, app.state.context, keys)
        app.state.context.database.engine.dispose()


@contextmanager
def two_processes(settings: Settings, bucket: str, release: Path, folder: Path) -> Iterator[tuple[Service, Service]]:
    """Two processes with empty HOMEs; the first one was given the release."""
    context = build_context(settings_of(settings, folder / "one", bucket))
    show_at_once(context.database)
    claim(context.database, context.keys.audit)
    add_release(context.database, context.keys.audit, release, context.folders)
    keys = add_people(context)
    context.database.engine.dispose()
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(process(settings_of(settings, folder / name, bucket), keys)) for name in ("one", "two")
        )
        yield one, other
