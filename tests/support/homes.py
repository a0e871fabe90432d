"""Processes with HOMEs of their own, one database and one bucket, as far as a test needs processes for that."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.context import build_context
from app.main import attach_context, create_app
from app.settings import Settings
from tests.support.clock import SettableClock
from tests.support.service import Service

#: Applications that no service uses now: to build one takes longer than most tests.
_IDLE: list[FastAPI] = []


def settings_of(settings: Settings, home: Path, bucket: str | None, url: str | None = None) -> Settings:
    """Those of another process."""
    changed = {"home": home, "storage_url": bucket, "database_url": url or settings.database_url}
    return settings.model_copy(update=changed)


@contextmanager
def process(settings: Settings, keys: dict[str, str]) -> Iterator[Service]:
    app = _IDLE.pop() if _IDLE else create_app(settings)
    attach_context(app, settings, clock=SettableClock())
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(client, app.state.context, keys)
    _IDLE.append(app)


@contextmanager
def two_processes(
    settings: Settings, bucket: str, served: Path, keys: dict[str, str], folder: Path
) -> Iterator[tuple[Service, Service]]:
    context = build_context(settings_of(settings, folder / "one", bucket))
    for release in (served / "releases").iterdir():
        context.folders.publish(f"releases/{release.name}", release)
    context.database.engine.dispose()
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(process(settings_of(settings, folder / name, bucket), keys)) for name in ("one", "two")
        )
        yield one, other
