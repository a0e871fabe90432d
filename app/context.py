"""What the service is made of, built once at start-up and reached through the request."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from app.platform.database import Database
from app.platform.durable import JobQueue
from app.platform.image_store import ImageStore
from app.platform.keys import KeyRing, Keys, derive
from app.predictions.inference import Inference
from app.predictions.pictures import Pictures
from app.predictions.remote import Backend
from app.settings import Settings


@dataclass(frozen=True)
class Context:
    """Parts of a running service.

    Attributes:
        settings: what the environment decides.
        database: sessions.
        jobs: enqueues and cancels long work.
        images: image store.
        inference: the predictor port.
        pictures: decodes uploaded pictures.
        keys: of the installation, by purpose.
    """

    settings: Settings
    database: Database
    jobs: JobQueue
    images: ImageStore
    inference: Inference
    pictures: Pictures
    keys: Keys


def build_context(settings: Settings, ring: KeyRing | None = None) -> Context:
    """Parts of the service.

    Args:
        settings: what the environment decides.
        ring: the keys; those of the settings where left out.
    """
    keys = derive(ring or settings.key_ring())
    return Context(
        settings=settings,
        database=Database(settings.sqlalchemy_url, keys.audit),
        jobs=JobQueue(settings.sqlalchemy_url),
        images=ImageStore(settings.images_folder, settings.min_free_bytes),
        inference=Inference(
            settings.releases_folder, settings.inference_threads, settings.inference_queue, backend=_backend(settings)
        ),
        pictures=Pictures(settings.decode_memory),
        keys=keys,
    )


def _backend(settings: Settings) -> Backend | None:
    """Where networks run, None for this process."""
    if settings.inference_url is None:
        return None
    token = settings.inference_token
    return Backend(settings.inference_url, None if token is None else token.get_secret_value())


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


#: Parts of the running service, in a route.
Parts = Annotated[Context, Depends(_context)]
