"""Pages of reference cells."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from app.accounts.permissions import GuardedRoute, Policy
from app.annotators.reference_cells import service
from app.annotators.reference_cells.selection import (
    N_CELLS,
    Cell,
    candidates,
    cells_of,
    pair_at_stake,
    select_cells,
    shown_case,
    shown_cells,
)
from app.annotators.reference_cells.service import DefinitionIn, define, definitions, versions
from app.audit.chain.keys import ReaderKeys
from app.cases.presenters import image_answer
from app.context import Parts
from app.database.engine import Reader, Writer
from app.database.tables import ClassDefinition
from app.http.errors import NotFound
from app.http.models import ClassOut, PageText
from app.http.principal import Principal
from app.releases.queries import reading_classes
from app.web.forms import checked
from app.web.render import go, page

#: Candidates that an admin is shown.
_OFFERED = 2 * N_CELLS


@dataclass(frozen=True)
class ShownCell:
    """A reference cell: where its pixels are, how many annotators have read it, and how many said its class."""

    image: str
    n_readers: int
    n_same: int


@dataclass(frozen=True)
class ShownClass:
    """A class with its definition, empty for none, and its cells."""

    code: str
    name: str
    definition: str
    cells: list[ShownCell]


def shown_classes(session: Session, codes: Sequence[str]) -> list[ShownClass]:
    """Some classes as everybody sees them.

    Raises:
        NotFound: one of them is none.
    """
    names = {info.code: info.name for info in reading_classes(session)}
    if not names.keys() >= set(codes):
        raise NotFound("there is no such class")
    texts, known = definitions(session), cells_of(session, codes)
    return [
        ShownClass(code, names[code], texts.get(code, ""), [_shown(cell) for cell in shown_cells(known.get(code, []))])
        for code in dict.fromkeys(codes)
    ]


def _shown(cell: Cell) -> ShownCell:
    return ShownCell(f"/references/cells/{cell.row.id}/image", cell.row.n_readers, cell.row.n_same)


def classes_at_stake(
    session: Session, own: str | None, others: Sequence[str], probs: dict[str, float]
) -> list[ShownClass]:
    """The two classes that a settled case is between, where either has cells; else none.

    Args:
        session: for reading.
        own: class that whoever looks has given; None for others.
        others: class by each of the others.
        probs: probability of each class for the next answer; empty where there is no prediction.
    """
    known = {info.code for info in reading_classes(session)}
    said = Counter(code for code in others if code in known)
    pair = pair_at_stake(own if own in known else None, said, {code: p for code, p in probs.items() if code in known})
    shown = [] if pair is None else shown_classes(session, pair)
    return shown if any(one.cells for one in shown) else []


@dataclass(frozen=True)
class ListedClass:
    """A class in the list: how many cells it shows, and whether it has a definition."""

    info: ClassOut
    n_cells: int
    defined: bool


def listed_classes(session: Session) -> list[ListedClass]:
    """Every class of the reading task."""
    known, texts = cells_of(session), definitions(session)
    return [
        ListedClass(info, len(shown_cells(known.get(info.code, []))), info.code in texts)
        for info in reading_classes(session)
    ]


@dataclass(frozen=True)
class OfferedCell:
    """A case that an admin may take as a reference cell."""

    case_id: uuid.UUID
    n_readers: int
    n_same: int


@dataclass(frozen=True)
class ManagedClass:
    """A class as an admin sees it.

    Attributes:
        shown: as everybody sees it.
        cells: those that are shown, with the decision on each.
        others: dropped and excluded ones.
        offered: candidates that are neither, the worthiest first.
        versions: of the definition, newest first, with who wrote each.
    """

    shown: ShownClass
    cells: list[Cell]
    others: list[Cell]
    offered: list[OfferedCell]
    versions: list[tuple[ClassDefinition, str]]


def managed_class(session: Session, keys: ReaderKeys, code: str) -> ManagedClass:
    """A class with everything that may be decided on it.

    Raises:
        NotFound: there is no such class.
    """
    (shown,) = shown_classes(session, [code])
    known = cells_of(session, [code]).get(code, [])
    cells = shown_cells(known)
    met = {cell.row.case_id for cell in known}
    all_shown = {cell.row.case_id for of_class in cells_of(session).values() for cell in of_class if cell.shown}
    found = candidates(session, keys.order, all_shown).get(code, [])
    offered = select_cells([one for one in found if one.case_id not in met], n_cells=_OFFERED)
    return ManagedClass(
        shown=shown,
        cells=cells,
        others=[cell for cell in known if cell not in cells],
        offered=[OfferedCell(one.case_id, one.n_readers, one.n_same) for one in offered],
        versions=versions(session, code),
    )


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
