"""What the service is made of, built once at start-up and reached through the request."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from app.database import Database
from app.settings import Settings
from app.storage import ImageStore

if TYPE_CHECKING:
    from app.inference import LocalInference


@dataclass(frozen=True)
class Context:
    """Parts of a running service.

    Attributes:
        settings: what the environment decides.
        database: sessions.
        images: image store.
        inference: the predictor port.
        secret: key of the audit chain and of the partition of patients.
    """

    settings: Settings
    database: Database
    images: ImageStore
    inference: "LocalInference"
    secret: bytes


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


#: Parts of the running service, in a route.
Parts = Annotated[Context, Depends(_context)]
