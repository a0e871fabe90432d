"""HTML routes of how annotators read: their own page, and that of each for admins."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from app.accounts.annotators import annotator_of_account
from app.accounts.permissions import GuardedRoute, Policy
from app.annotators.history import annotator_named, class_names
from app.annotators.service import ME, own_reading
from app.cases.blindness import note_exposure
from app.cases.queries import flagged_labels
from app.context import Parts
from app.database.engine import Reader
from app.database.tables import Case
from app.http.languages import gettext
from app.http.models import Line
from app.http.principal import Principal
from app.pages.render import page
from app.pages.settled_views import MOST, settled_since

#: Flags shown at once.
_FLAGGED = 200

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@router.get("/me")
def my_reading(
    request: Request, principal: Annotated[Principal, Depends(Policy("reads:own"))], session: Reader
) -> Response:
    """How the caller reads."""
    known = annotator_of_account(session, principal.account_id) is not None
    view = own_reading(session, principal, ME) if known else None
    return page(request, "reading.html", principal, view=view, title=gettext("My reading"), names=class_names(session))


@router.get("/settled")
def settled(
    request: Request, context: Parts, principal: Annotated[Principal, Depends(Policy("reads:own"))], session: Reader
) -> Response:
    """Where the caller stood with the others in cases that were settled since they last looked; recorded as shown."""
    cases = settled_since(session, context.keys.readers, principal)
    for case in cases:
        note_exposure(context.database, session, principal, case.id)
    return page(request, "settled.html", principal, cases=cases, most=MOST)


@router.get("/flagged")
def flagged(request: Request, principal: Annotated[Principal, Depends(Policy("manage"))], session: Reader) -> Response:
    """Cases that annotators want an admin to look at, newest first."""
    rows = [(session.get_one(Case, row.label.case_id), row) for row in flagged_labels(session, _FLAGGED)]
    return page(request, "flagged.html", principal, rows=rows, most=_FLAGGED, names=class_names(session))


@router.get("/annotators/{name}")
def reading_of(
    name: Line, request: Request, principal: Annotated[Principal, Depends(Policy("manage"))], session: Reader
) -> Response:
    """How an annotator reads, for admins."""
    view = None if annotator_named(session, name) is None else own_reading(session, principal, name)
    title = gettext("How %(name)s reads", name=name)
    return page(request, "reading.html", principal, view=view, title=title, names=class_names(session))
