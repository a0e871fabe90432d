"""HTML routes of how annotators read: their own page, and that of each for admins."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from app.annotators.history import annotator_named, class_names
from app.annotators.service import ME, own_reading
from app.auth.annotators import annotator_of_account
from app.auth.policy import GuardedRoute, Policy
from app.pages.render import page
from app.platform.database import Reader
from app.platform.principal import Principal
from app.platform.values import Line

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@router.get("/me")
def my_reading(
    request: Request, principal: Annotated[Principal, Depends(Policy("reads:own"))], session: Reader
) -> Response:
    """How the caller reads."""
    known = annotator_of_account(session, principal.account_id) is not None
    view = own_reading(session, principal, ME) if known else None
    return page(request, "reading.html", principal, view=view, title="My reading", names=class_names(session))


@router.get("/annotators/{name}")
def reading_of(
    name: Line, request: Request, principal: Annotated[Principal, Depends(Policy("manage"))], session: Reader
) -> Response:
    """How an annotator reads, for admins."""
    view = None if annotator_named(session, name) is None else own_reading(session, principal, name)
    title = f"How {name} reads"
    return page(request, "reading.html", principal, view=view, title=title, names=class_names(session))
