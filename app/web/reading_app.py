"""Reading application that stays loaded between reads."""

import math
import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Response
from sqlalchemy.orm import Session

from app.accounts.permissions import GuardedRoute, Policy
from app.cases.ingest import microns_per_pixel_of
from app.cases.opaque_ids import case_handle
from app.context import Context, Parts
from app.database.engine import Reader, Writer
from app.http.errors import OtherAccount
from app.http.models import Out, PageText
from app.http.principal import Principal
from app.labels.annotator_day import progress
from app.labels.leases import MAX_LEASES, give_back_overdue, lease_next, list_leases, note_display, show
from app.triage.queries import current_policy
from app.web.forms import account_handle, read_handle, read_of_handle
from app.web.reading import case_number


class CaseAheadOut(Out):
    """A case to be read, without the reason for asking and without anything of the model.

    Attributes:
        read: of the lease.
        answer: names the read in the forms of its account's pages.
        case: its handle.
        number: its short number.
        image: address of its pixels.
        field: address of the wider field around the cell; None where there is none.
        mpp: µm per pixel; None where nobody said.
        lease_seconds: that are left.
    """

    read: str
    answer: str
    case: str
    number: str
    image: str
    field: str | None
    mpp: float | None
    lease_seconds: float


class AheadOut(Out):
    """What is to be read next, oldest lease first, and how far the day is.

    Attributes:
        reads: that the caller holds.
        n_today: cases done today.
        n_waiting: cases still to do.
        resident: whether one page reads on; under a policy that shows results after each answer it does not.
    """

    reads: list[CaseAheadOut]
    n_today: int
    n_waiting: int
    resident: bool


def cases_ahead(session: Session, context: Context, principal: Principal) -> AheadOut:
    """Lease until the caller holds as many cases as they may, and give all that they hold.

    Raises:
        Forbidden: the caller's account may see more of cases than their pixels.
        NotQualified: the caller has to be qualified first.
    """
    give_back_overdue(session)  # those of the caller too: what is given has its time
    n_held = len(list_leases(session, principal))
    while n_held < MAX_LEASES and lease_next(session, context, principal) is not None:
        n_held += 1
    keys, time, reads = context.keys.readers, context.clock(), []
    day = progress(session, principal, context.settings.zone)
    for held in list_leases(session, principal):
        named = uuid.UUID(held.case_id)
        handle = case_handle(keys, principal, named)
        reads.append(
            CaseAheadOut(
                read=held.id,
                answer=read_handle(keys, principal.account_id, uuid.UUID(held.id)),
                case=str(handle),
                number=case_number(handle),
                image=f"/v1/cases/{handle}/image",
                field=None if held.field is None else f"/v1/cases/{handle}/field",
                mpp=microns_per_pixel_of(session, named),
                lease_seconds=max(0.0, math.floor((held.expires_at - time).total_seconds())),
            )
        )
    return AheadOut(
        reads=reads,
        n_today=day.n_today,
        n_waiting=day.n_waiting + day.n_held,
        resident=current_policy(session).reveal != "after_commit",
    )


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
