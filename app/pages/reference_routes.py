"""HTML routes of reference cells: by class for everybody who reads, and what admins decide on them."""

import uuid
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from pydantic import BaseModel

from app.accounts.permissions import GuardedRoute, Policy
from app.annotators.reference_cells import service
from app.annotators.reference_cells.selection import shown_case
from app.annotators.reference_cells.service import DefinitionIn, define
from app.cases.presenters import image_answer
from app.context import Parts
from app.database.engine import Reader, Writer
from app.http.models import PageText
from app.http.principal import Principal
from app.pages.forms import checked
from app.pages.reference_views import listed_classes, managed_class, shown_classes
from app.pages.render import go, page

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_People = Annotated[Principal, Depends(Policy("cases:read", "reads:own"))]
_Manager = Annotated[Principal, Depends(Policy("manage"))]
_Code = Annotated[PageText, Form(alias="class", max_length=100)]


class _CaseId(BaseModel):
    id: uuid.UUID


@router.get("/references")
def references(
    request: Request,
    context: Parts,
    principal: _People,
    session: Reader,
    codes: Annotated[list[PageText] | None, Query(alias="class", max_length=2)] = None,
) -> Response:
    """Every class; the cells of one; or those of two side by side. To annotators the same bytes, whoever asks.

    So it says nothing of who is signed in, and nothing of the case from which they come.
    """
    asked = codes or []
    manages = "manage" in principal.scopes
    if manages and len(asked) == 1:
        view = managed_class(session, context.keys.readers, asked[0])
        return page(request, "references_managed.html", principal, view=view)
    named = None if principal.blind else principal
    if not asked:
        return page(request, "references_list.html", named, classes=listed_classes(session), manages=manages)
    return page(request, "references.html", named, classes=shown_classes(session, asked), reads=principal.blind)


@router.get("/references/cells/{cell_id}/image")
def reference_image(cell_id: uuid.UUID, context: Parts, principal: _People, session: Reader) -> Response:
    """The pixels of a reference cell that is shown now, as PNG."""
    return image_answer(context, shown_case(session, cell_id).stored_sha256)


def _of_class(code: str) -> Response:
    return go("/references?" + urlencode({"class": code}) if code else "/references")


@router.post("/references/choice")
def choose(context: Parts, principal: _Manager, session: Writer, code: _Code = "") -> Response:
    """Choose the cells of a class, or of all, anew."""
    service.choose(session, context, principal, code or None)
    return _of_class(code)


@router.post("/references/decisions")
def decide(
    context: Parts,
    principal: _Manager,
    session: Writer,
    code: _Code = "",
    case_id: Annotated[PageText, Form(alias="case", max_length=40)] = "",
    kind: Annotated[PageText, Form(max_length=20)] = "",
    reason: Annotated[PageText, Form(max_length=200)] = "",
) -> Response:
    """Pin a cell, exclude it, or take either back; sending the form twice decides once."""
    body: service.CellIn = checked(service.CellIn, kind=kind, reason=reason or None)
    service.decide(session, context, principal, code, checked(_CaseId, id=case_id).id, body)
    return _of_class(code)


@router.post("/references/definitions")
def write_definition(
    context: Parts,
    principal: _Manager,
    session: Writer,
    code: _Code = "",
    text: Annotated[PageText, Form(max_length=2000)] = "",
) -> Response:
    """Write what the guidelines say of a class; earlier versions stay."""
    define(session, context, principal, code, checked(DefinitionIn, text=text))
    return _of_class(code)
