"""HTML routes of an annotator's day, and of cases: lists, one case, labels, declines."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from pydantic import BaseModel

from app.accounts.permissions import GuardedRoute, Policy
from app.cases.blindness import hidden_because, note_exposure
from app.cases.opaque_ids import CaseInPath, case_handle
from app.cases.queries import CaseFilter, has_field
from app.context import Parts
from app.database.engine import Reader, Writer
from app.http.errors import Invalid
from app.http.models import PageText
from app.http.principal import Principal
from app.labels.annotator_day import progress
from app.labels.answers import answer_read, retract, revise
from app.labels.corrections import correct_once
from app.labels.leases import decline, lease_next, list_leases, note_display, release
from app.labels.queries import answered_late
from app.labels.schemas import DeclineIn, OwnLabelIn, RetractionIn, RevisionIn
from app.pages import reader_views
from app.pages.first_steps import first_steps
from app.pages.forms import IdempotentForm, checked
from app.pages.handles import answer_of_handle, read_of_handle
from app.pages.render import go, page

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_People = Annotated[Principal, Depends(Policy("cases:read", "reads:own"))]
_Annotator = Annotated[Principal, Depends(Policy("reads:own"))]
_Text = Annotated[PageText, Form(max_length=2000)]


class _CaseId(BaseModel):
    id: uuid.UUID


@router.get("/worklist")
def worklist(
    request: Request,
    context: Parts,
    principal: _People,
    session: Reader,
    site: Annotated[PageText, Query(max_length=200)] = "",
    search: Annotated[PageText, Query(max_length=200)] = "",
    cursor: Annotated[PageText | None, Query(max_length=100)] = None,
) -> Response:
    """Cases by need; to annotators, in an order of their own that reveals nothing."""
    if principal.blind:
        back = reader_views.page_back(session, context.keys.readers, principal)
        view = reader_views.blind_worklist(session, context.keys.readers, principal, context.settings.zone)
        return page(request, "to_read.html", principal, view=view, back=back)
    steps = first_steps(session) if "manage" in principal.scopes else None
    if steps is not None:
        return page(request, "first_steps.html", principal, view=steps)
    chosen = CaseFilter(site=site or None, search=search.strip() or None)
    cases = reader_views.worklist(session, chosen, cursor)
    return page(request, "worklist.html", principal, view=cases, site=site, search=search)


@router.get("/cases/{case_id}")
def show_case(
    asked: CaseInPath,
    request: Request,
    context: Parts,
    principal: _People,
    session: Reader,
    annotators: Annotated[Literal["named", "alike"], Query()] = "named",
) -> Response:
    """A case: to read, or in full once that is allowed."""
    case = asked.found(session)
    blind = reader_views.case_to_read(session, context.keys.readers, principal, case, context.settings.zone)
    if blind is not None:
        if blind.read is not None:
            note_display(context.database, session, uuid.UUID(blind.read.id))
        return page(request, "read.html", principal, view=blind)
    hidden = hidden_because(session, principal, case)
    if hidden is not None:
        handle = case_handle(context.keys.readers, principal, case.named)
        return page(
            request,
            "committed.html",
            principal,
            number=reader_views.case_number(handle),
            case_id=handle,
            field=has_field(session, case.named),
            hidden=hidden,
            late=answered_late(session, principal, case.id) and case.repeat is None,
            progress=progress(session, principal, context.settings.zone),
            back=reader_views.page_back(session, context.keys.readers, principal),
        )
    by_name = annotators == "named"
    shown = reader_views.case_view(
        session, context.keys.readers, principal, case.id, context.settings.zone, by_name=by_name
    )
    note_exposure(context.database, session, principal, case.id)
    return page(request, "case.html", principal, view=shown)


@router.post("/reads/next")
def read_next(context: Parts, principal: _Annotator, session: Writer) -> Response:
    """Continue with the open read, or lease the next one."""
    held = list_leases(session, principal)
    read = held[0] if held else lease_next(session, context, principal)
    if read is None:
        return go("/worklist")
    return go(f"/cases/{case_handle(context.keys.readers, principal, uuid.UUID(read.case_id))}")


@router.get("/reads/upcoming")
def upcoming(context: Parts, principal: _Annotator, session: Reader) -> Response:
    """The image that probably comes next, for the browser to fetch ahead: nothing but pixels."""
    handle = reader_views.upcoming_case(session, context.keys.readers, principal)
    if handle is None:
        return Response(status_code=204)
    return go(f"/v1/cases/{handle}/image")


def _done(request: Request, path: str) -> Response:
    """Send a browser on after a form; a script that sent it gets 204, which no proxy or portal answers by chance."""
    return go(path) if "text/html" in request.headers.get("accept", "") else Response(status_code=204)


@router.post("/reads/{handle}/label")
def answer(
    handle: str,
    request: Request,
    context: Parts,
    principal: _Annotator,
    session: Writer,
    label: Annotated[PageText, Form(max_length=200)] = "",
    note: _Text = "",
    confidence: Annotated[PageText, Form(max_length=8)] = "",
    second_choice: Annotated[PageText, Form(max_length=200)] = "",
    flag: Annotated[PageText, Form(max_length=8)] = "",
) -> Response:
    """Commit a label, or a correction of one, then continue; sending the form twice stores it once.

    Raises:
        Invalid: no class was chosen.
    """
    read_id, position = answer_of_handle(context.keys.readers, principal, handle)
    if not label:
        raise Invalid("choose a class")
    more = {"second_choice": second_choice or None, "flag": bool(flag)}
    body: OwnLabelIn = checked(OwnLabelIn, label=label, note=note or None, confidence=confidence or None, **more)
    if position is not None:
        correct_once(session, context, principal, read_id, position, body)
        return _done(request, "/worklist")
    case_id = answer_read(session, context, principal, read_id, body)
    return _done(request, f"/cases/{case_handle(context.keys.readers, principal, case_id)}")


@router.get("/reads/{handle}/correction")
def correction(handle: str, request: Request, context: Parts, principal: _Annotator, session: Reader) -> Response:
    """A case that this annotator has answered, once more and still blind, while the answer may be corrected."""
    read_id = read_of_handle(context.keys.readers, principal, handle)
    view = reader_views.case_to_correct(session, context.keys.readers, principal, read_id, context.settings.zone)
    return go("/worklist") if view is None else page(request, "read.html", principal, view=view)


@router.post("/reads/{handle}/decline")
def decline_read(
    handle: str,
    request: Request,
    context: Parts,
    principal: _Annotator,
    once: IdempotentForm,
    session: Writer,
    reason: Annotated[PageText, Form(max_length=40)] = "",
    note: _Text = "",
) -> Response:
    """Decline a read, with a reason, and continue."""
    read_id = read_of_handle(context.keys.readers, principal, handle)
    body: DeclineIn = checked(DeclineIn, reason=reason, note=note or None)
    once(session, body, lambda: decline(session, context, principal, read_id, body))
    return _done(request, "/worklist")


@router.post("/reads/{handle}/release")
def release_read(handle: str, context: Parts, principal: _Annotator, session: Writer) -> Response:
    """Give a read back: it may come again."""
    release(session, principal, read_of_handle(context.keys.readers, principal, handle))
    return go("/worklist")


@router.post("/labels/{label_id}/revise")
def revise_label(
    label_id: uuid.UUID,
    context: Parts,
    principal: _Annotator,
    once: IdempotentForm,
    session: Writer,
    label: Annotated[PageText, Form(max_length=200)] = "",
    reason: _Text = "",
    case_id: Annotated[PageText, Form(max_length=40)] = "",
) -> Response:
    """Correct one's own label: both stay."""
    body: RevisionIn = checked(RevisionIn, label=label, reason=reason)
    once(session, body, lambda: revise(session, context, principal, label_id, body))
    return go(f"/cases/{checked(_CaseId, id=case_id).id}")


@router.post("/labels/{label_id}/retract")
def retract_label(
    label_id: uuid.UUID,
    context: Parts,
    principal: _Annotator,
    once: IdempotentForm,
    session: Writer,
    reason: _Text = "",
) -> Response:
    """Take one's own label back: both stay."""
    body: RetractionIn = checked(RetractionIn, reason=reason)
    once(session, body, lambda: retract(session, context, principal, label_id, body))
    return go("/worklist")
