"""Reading application that stays loaded between reads."""

import math
import uuid
from typing import Annotated

from fastapi import APIRouter, Form, Response

from app.accounts.service import GuardedRoute
from app.cases.service import case_handle, case_named, microns_per_pixel_of
from app.http.middleware import EVEN_TIME
from app.http.models import PageText, ResponseModel
from app.labels import service as label_service
from app.triage.service import current_policy
from app.web.forms import case_number, read_handle, read_of_handle, require_account
from app.web.page import AnnotatorForm, AnnotatorPage, Page


class CaseAheadOut(ResponseModel):
    """A case to be read, without the reason for asking and without anything of the model; ``answer`` names its read."""

    read: str
    answer: str
    case: str
    number: str
    image: str
    field: str | None
    mpp: float | None
    lease_seconds: float


class AheadOut(ResponseModel):
    """What is to be read next, oldest lease first, how far the day is, and whether one page reads on (``resident``)."""

    reads: list[CaseAheadOut]
    n_today: int
    n_waiting: int
    resident: bool


def cases_ahead(page: Page) -> AheadOut:
    """Lease until the caller holds as many cases as they may, and give all that they hold."""
    label_service.expire_overdue_leases(page.session)  # those of the caller too: what is given has its time
    n_held = len(label_service.list_leases(page.session, page.principal))
    while (
        n_held < label_service.MAX_LEASES
        and label_service.lease_next_read(page.session, page.context, page.principal) is not None
    ):
        n_held += 1
    keys, time, reads = page.keys, page.context.clock(), []
    day = label_service.get_day_progress(page.session, page.principal, page.zone)
    for held in label_service.list_leases(page.session, page.principal):
        named = uuid.UUID(held.case_id)
        handle = case_handle(keys, page.principal, named)
        reads.append(
            CaseAheadOut(
                read=held.id,
                answer=read_handle(keys, page.principal.account_id, uuid.UUID(held.id)),
                case=str(handle),
                number=case_number(handle),
                image=f"/v1/cases/{handle}/image",
                field=None if held.field is None else f"/v1/cases/{handle}/field",
                mpp=microns_per_pixel_of(page.session, case_named(page.session, named)),
                lease_seconds=max(0.0, math.floor((held.expires_at - time).total_seconds())),
            )
        )
    return AheadOut(
        reads=reads,
        n_today=day.n_today,
        n_waiting=day.n_waiting + day.n_held,
        resident=current_policy(page.session).reveal != "after_commit",
    )


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)


@router.post("/reads/ahead", dependencies=[EVEN_TIME])
def lease_cases_ahead(page: AnnotatorForm, account: Annotated[PageText, Form(max_length=64)] = "") -> AheadOut:
    """Lease the cases that come next, as many as one annotator may hold: nothing of them but pixels and handles."""
    require_account(page.keys, page.principal, account)
    return cases_ahead(page)


@router.post("/reads/{handle}/display")
def record_first_display(
    handle: str, page: AnnotatorPage, seconds_ago: Annotated[float, Form(ge=0, le=86400)] = 0.0
) -> Response:
    """Record that the case of a read was shown for the first time: since then it is being read."""
    read_id = read_of_handle(page.keys, page.principal, handle)
    label_service.show_own_read(page.session, page.principal, read_id)
    label_service.note_display(page.context.database, page.session, read_id, seconds_ago)
    return Response(status_code=204)
