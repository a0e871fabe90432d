"""What the service is made of, built once at start-up and reached through the request."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from app.audit.chain.keys import KeyRing, Keys, derive
from app.database.dbos_adapter import JobQueue
from app.database.engine import Database
from app.database.tables import Clock, now
from app.http.errors import Problem
from app.predictions.decoding import Pictures
from app.predictions.inference import Inference
from app.predictions.remote import Backend
from app.predictions.small_image_queue import Front
from app.settings import Settings
from app.storage.blobs import FolderStore, ImageStore
from app.storage.bucket import CachedBucket
from app.storage.bundles import SharedFolders
from ml.release.artifact import ReleaseError
from ml.util.cores import cores


@dataclass(frozen=True)
class Context:
    """Parts of a running service.

    Attributes:
        settings: what the environment decides.
        database: sessions.
        jobs: enqueues and cancels long work.
        bucket: what processes share; None where HOME is all there is.
        images: image store.
        folders: releases, evaluations and snapshots.
        inference: the predictor port.
        front: where small predictions wait for their turn.
        pictures: decodes uploaded pictures.
        keys: of the installation, by purpose.
    """

    settings: Settings
    database: Database
    jobs: JobQueue
    bucket: CachedBucket | None
    images: ImageStore
    folders: SharedFolders
    inference: Inference
    front: Front
    pictures: Pictures
    keys: Keys

    @property
    def clock(self) -> Clock:
        """The clock, which every session of the database has too."""
        return self.database.clock


def build_context(settings: Settings, ring: KeyRing | None = None, *, sharing: int = 1, clock: Clock = now) -> Context:
    """Parts of the service.

    Args:
        settings: what the environment decides.
        ring: the keys; those of the settings where left out.
        sharing: processes that share the cores of the machine.
        clock: by which everything is timed that is stored or decided.
    """
    keys = derive(ring or settings.key_ring())
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

    return Context(
        settings=settings,
        database=Database(settings.sqlalchemy_url, keys.audit, clock=clock),
        jobs=JobQueue(settings.sqlalchemy_url),
        bucket=bucket,
        images=images,
        folders=folders,
        inference=Inference(
            release,
            settings.inference_threads,
            settings.inference_queue,
            backend=_backend(settings),
            device=settings.device,
            sharing=sharing,
        ),
        front=Front(max(1, cores() // sharing), settings.inference_queue),
        pictures=Pictures(settings.decode_memory),
        keys=keys,
    )


def _backend(settings: Settings) -> Backend | None:
    """Where networks run, None for this process."""
    if settings.inference_url is None:
        return None
    token = settings.inference_token
    return Backend(settings.inference_url, None if token is None else token.get_secret_value())


async def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


#: Parts of the running service, in a route.
Parts = Annotated[Context, Depends(_context)]
