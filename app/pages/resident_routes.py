"""What the reading page asks for behind the image that is shown: cases ahead, and when one is first shown."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Response

from app.accounts.permissions import GuardedRoute, Policy
from app.context import Parts
from app.database.engine import Reader, Writer
from app.http.errors import OtherAccount
from app.http.models import PageText
from app.http.principal import Principal
from app.labels.leases import note_display, show
from app.pages.handles import account_handle, read_of_handle
from app.pages.resident_views import AheadOut, cases_ahead

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Annotator = Annotated[Principal, Depends(Policy("reads:own"))]


@router.post("/reads/ahead")
def ahead(
    context: Parts, principal: _Annotator, session: Writer, account: Annotated[PageText, Form(max_length=64)] = ""
) -> AheadOut:
    """Lease the cases that come next, as many as one annotator may hold: nothing of them but pixels and handles.

    Raises:
        OtherAccount: the page was made for somebody else, to whom these cases would be shown.
    """
    if account != account_handle(context.keys.readers, principal.account_id):
        raise OtherAccount("this page was opened by another person: they must sign in again to go on")
    return cases_ahead(session, context, principal)


@router.post("/reads/{handle}/display")
def display(
    handle: str,
    context: Parts,
    principal: _Annotator,
    session: Reader,
    seconds_ago: Annotated[float, Form(ge=0, le=86400)] = 0.0,
) -> Response:
    """Record that the case of a read was shown for the first time: since then it is being read."""
    read_id = read_of_handle(context.keys.readers, principal, handle)
    show(session, principal, read_id)
    note_display(context.database, session, read_id, seconds_ago)
    return Response(status_code=204)
