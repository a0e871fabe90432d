"""Service context: the parts of a running service, built once at start-up."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from app.accounts.service import RequireScope
from app.audit.chain.keys import AnnotatorKeys, InstallationKeys, KeyRing, derive_keys
from app.database.engine import Database, get_read_session, get_write_session
from app.database.tables import Clock, utc_now
from app.http.errors import Problem
from app.http.limiter import Limiter
from app.http.principal import Principal
from app.predictions.inference import ImageDecoder, InferenceEngine, SmallImageQueue
from app.predictions.remote import InferenceBackend
from app.settings import Settings
from app.storage.blobs import FolderStore, ImageStore
from app.storage.bucket import CachedBucket
from app.storage.bundles import SharedFolders
from ml.release.artifact import ReleaseError
from ml.util.files import cores


@dataclass(frozen=True)
class ServiceContext:
    """Parts of a running service."""

    # what the environment decides
    settings: Settings
    database: Database
    # what processes share; None where HOME is all there is
    bucket: CachedBucket | None
    images: ImageStore
    # releases, evaluations and snapshots
    folders: SharedFolders
    inference: InferenceEngine
    # where small predictions wait for their turn
    front: SmallImageQueue
    pictures: ImageDecoder
    # of the installation, by purpose
    keys: InstallationKeys

    @property
    def clock(self) -> Clock:
        """The clock, which every session of the database has too."""
        return self.database.clock

    def list_limiters(self) -> list[Limiter]:
        """List the limiters of the parts."""
        predictions = (
            [self.inference.elsewhere] if self.inference.backend else [self.inference.here, self.front.limiter]
        )
        writers = [] if self.database.writers is None else [self.database.writers]
        return [*predictions, self.pictures.cheap, self.pictures.large, *writers]


def build_context(
    settings: Settings, ring: KeyRing | None = None, *, sharing: int = 1, clock: Clock = utc_now
) -> ServiceContext:
    """Parts of the service."""
    keys = derive_keys(ring or settings.key_ring())
    bucket: CachedBucket | None = None
    if settings.bucket_url is None:
        images = ImageStore(FolderStore(settings.images_folder, settings.min_free_bytes))
    else:
        bucket = CachedBucket(settings.bucket_url, settings.home / "cache", settings.storage_cache)
        images = ImageStore(bucket, "images/")
    folders = SharedFolders(settings.home, bucket)

    def release(release_id: uuid.UUID) -> Path:
        try:
            return folders.path(f"releases/{release_id}")
        except Problem as exc:
            raise ReleaseError(exc.detail) from exc

    return ServiceContext(
        settings=settings,
        database=Database(settings.sqlalchemy_url, keys.audit, clock=clock),
        bucket=bucket,
        images=images,
        folders=folders,
        inference=InferenceEngine(
            release,
            settings.inference_threads,
            settings.inference_queue,
            backend=_build_backend(settings),
            device=settings.device,
            sharing=sharing,
        ),
        front=SmallImageQueue(max(1, cores() // sharing), settings.inference_queue),
        pictures=ImageDecoder(settings.decode_memory),
        keys=keys,
    )


def _build_backend(settings: Settings) -> InferenceBackend | None:
    if settings.inference_url is None:
        return None
    token = settings.inference_token
    return InferenceBackend(settings.inference_url, None if token is None else token.get_secret_value())


async def _get_context(request: Request) -> ServiceContext:
    context: ServiceContext = request.app.state.context
    return context


#: Parts of the running service, in a route.
AppContext = Annotated[ServiceContext, Depends(_get_context)]


@dataclass(frozen=True)
class Call:
    """A call of a route by a caller with one of the scopes that it requires."""

    request: Request
    context: ServiceContext
    principal: Principal
    session: Session

    @property
    def keys(self) -> AnnotatorKeys:
        """Keys of handles and orders."""
        return self.context.keys.readers


_Call = TypeVar("_Call", bound=Call)


def reading_call(*scopes: str, kind: type[Call] = Call) -> Any:
    """Dependency of a route that reads: makes the call, for a caller with one of the scopes."""
    return _depend_on_call(kind, get_read_session, scopes)


def writing_call(*scopes: str, kind: type[Call] = Call) -> Any:
    """Dependency of a route that writes, in one transaction."""
    return _depend_on_call(kind, get_write_session, scopes)


def _depend_on_call(
    kind: type[_Call], get_session: Callable[[Request], Iterator[Session]], scopes: tuple[str, ...]
) -> Any:
    guard = RequireScope(*scopes)

    async def make_call(
        request: Request,
        context: AppContext,
        principal: Annotated[Principal, Depends(guard)],
        session: Annotated[Session, Depends(get_session, scope="function")],
    ) -> _Call:
        return kind(request, context, principal, session)

    return Depends(make_call, scope="function")
