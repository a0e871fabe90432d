"""Pages of reference cells."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute
from app.annotators.reference_cells import service
from app.audit.chain.keys import AnnotatorKeys
from app.cases.service import image_response, microns_per_pixel
from app.database.tables import ClassDefinition
from app.http.errors import NotFound
from app.http.languages import class_name
from app.http.models import ClassOut, PageText
from app.releases.service import class_names, reading_classes
from app.web.forms import back_to, validate_form
from app.web.page import ManagerForm, Page, PeoplePage
from app.web.render import redirect_to, render_page

#: Candidates that an admin is shown.
_OFFERED = 2 * service.N_CELLS


@dataclass(frozen=True)
class ShownCell:
    """A cell to compare with: URL of its pixels, their size, number of annotators, and number who gave its class."""

    image: str
    width: int
    height: int
    # µm per pixel; None where nobody said
    mpp: float | None
    n_readers: int = 0
    n_same: int = 0


@dataclass(frozen=True)
class ShownClass:
    """A class with its definition, empty for none, and its cells."""

    code: str
    name: str
    definition: str
    cells: list[ShownCell]


def shown_classes(session: Session, codes: Sequence[str]) -> list[ShownClass]:
    """Some classes as everybody sees them."""
    names = class_names(session)
    if not names.keys() >= set(codes):
        raise NotFound("there is no such class")
    texts, cells_by_class = service.list_definitions(session), service.cells_of(session, codes)
    return [
        ShownClass(
            code,
            class_name(code, names),
            texts.get(code, ""),
            [
                ShownCell(
                    f"/references/cells/{cell.row.id}/image",
                    cell.case.width,
                    cell.case.height,
                    microns_per_pixel(cell.case.case_metadata),
                    cell.row.n_readers,
                    cell.row.n_same,
                )
                for cell in service.shown_cells(cells_by_class.get(code, []))
            ],
        )
        for code in dict.fromkeys(codes)
    ]


def classes_at_stake(
    session: Session, own: str | None, others: Sequence[str], probs: dict[str, float]
) -> list[ShownClass]:
    """The two classes that a closed case is between, where either has reference cells; else none."""
    known_codes = {info.code for info in reading_classes(session)}
    label_counts = Counter(code for code in others if code in known_codes)
    pair = service.pair_at_stake(
        own if own in known_codes else None, label_counts, {code: p for code, p in probs.items() if code in known_codes}
    )
    pair_classes = [] if pair is None else shown_classes(session, pair)
    return pair_classes if any(one.cells for one in pair_classes) else []


@dataclass(frozen=True)
class SameScale:
    """A cell and the reference cells of two classes, drawn as large as they are to each other."""

    own: ShownCell
    classes: list[ShownClass]

    @property
    def in_microns(self) -> bool:
        """Whether the size of a pixel is known of every image; else a pixel is as large as any other."""
        return all(cell.mpp for cell in [self.own, *(cell for one in self.classes for cell in one.cells)])

    def size(self, cell: ShownCell) -> tuple[float, float]:
        """Width and height of an image, in µm or in pixels."""
        unit = cell.mpp if self.in_microns and cell.mpp else 1.0
        return cell.width * unit, cell.height * unit

    @property
    def extent(self) -> float:
        """Side of the square in which each is drawn: the longer side of the cell, so that larger images are cut."""
        return max(self.size(self.own))


@dataclass(frozen=True)
class ListedClass:
    """A class in the list: how many cells it shows, and whether it has a definition."""

    info: ClassOut
    n_cells: int
    defined: bool


def listed_classes(session: Session) -> list[ListedClass]:
    """Every class of the reading task."""
    cells_by_class, texts = service.cells_of(session), service.list_definitions(session)
    return [
        ListedClass(info, len(service.shown_cells(cells_by_class.get(info.code, []))), info.code in texts)
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
    """A class as an admin sees it."""

    # as everybody sees it
    shown: ShownClass
    # those that are shown, with the decision on each
    cells: list[service.CellDecision]
    # dropped and excluded ones
    others: list[service.CellDecision]
    # candidates that are neither, the worthiest first
    offered: list[OfferedCell]
    # of the definition, newest first, with who wrote each
    versions: list[tuple[ClassDefinition, str]]


def managed_class(session: Session, keys: AnnotatorKeys, code: str) -> ManagedClass:
    """A class with everything that may be decided on it."""
    (public_view,) = shown_classes(session, [code])
    class_cells = service.cells_of(session, [code]).get(code, [])
    cells = service.shown_cells(class_cells)
    met = {cell.row.case_id for cell in class_cells}
    all_shown = {cell.row.case_id for of_class in service.cells_of(session).values() for cell in of_class if cell.shown}
    candidate_cells = service.list_reference_candidates(session, keys.order, all_shown).get(code, [])
    offered = service.select_cells([one for one in candidate_cells if one.case_id not in met], n_cells=_OFFERED)
    return ManagedClass(
        shown=public_view,
        cells=cells,
        others=[cell for cell in class_cells if cell not in cells],
        offered=[OfferedCell(one.case_id, one.n_readers, one.n_same) for one in offered],
        versions=service.list_definition_versions(session, code),
    )


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Code = Annotated[PageText, Form(alias="class", max_length=100)]


class _CaseId(BaseModel):
    id: uuid.UUID


@router.get("/references")
def show_references(
    page: PeoplePage, codes: Annotated[list[PageText] | None, Query(alias="class", max_length=2)] = None
) -> Response:
    """Every class; the cells of one; or those of two side by side. To annotators the same bytes, whoever asks.

    So it says nothing of who is signed in, and nothing of the case from which they come.
    """
    class_codes = codes or []
    manages = "manage" in page.principal.scopes
    if manages and len(class_codes) == 1:
        view = managed_class(page.session, page.keys, class_codes[0])
        return page.render("references_managed.html", view=view)
    named = None if page.principal.blind else page.principal
    if not class_codes:
        return render_page(
            page.request, "references_list.html", named, classes=listed_classes(page.session), manages=manages
        )
    return render_page(
        page.request,
        "references.html",
        named,
        classes=shown_classes(page.session, class_codes),
        reads=page.principal.blind,
    )


@router.get("/references/cells/{cell_id}/image")
def reference_image(cell_id: uuid.UUID, page: PeoplePage) -> Response:
    """The pixels of a reference cell that is shown now, as PNG."""
    return image_response(page.context, service.shown_case(page.session, cell_id).stored_sha256)


def _redirect_to_class(code: str) -> Response:
    return redirect_to("/references?" + urlencode({"class": code}) if code else "/references")


def _show_class_of_form(page: Page) -> Response:
    return show_references(page, [str(page.refused.value("class"))])


@router.post("/references/choice")
def choose_reference_cells(page: ManagerForm, code: _Code = "") -> Response:
    """Choose the cells of a class, or of all, anew."""
    service.choose_reference_cells(page.session, page.context, page.principal, code or None)
    return _redirect_to_class(code)


@router.post("/references/decisions")
@back_to(_show_class_of_form)
def decide_reference_cell(
    page: ManagerForm,
    code: _Code = "",
    case_id: Annotated[PageText, Form(alias="case", max_length=40)] = "",
    kind: Annotated[PageText, Form(max_length=20)] = "",
    reason: Annotated[PageText, Form(max_length=200)] = "",
) -> Response:
    """Pin a cell, exclude it, or take either back; sending the form twice decides once."""
    body: service.CellIn = validate_form(service.CellIn, kind=kind, reason=reason or None)
    service.decide_reference_cell(
        page.session, page.context, page.principal, code, validate_form(_CaseId, id=case_id).id, body
    )
    return _redirect_to_class(code)


@router.post("/references/definitions")
@back_to(_show_class_of_form)
def write_definition(
    page: ManagerForm, code: _Code = "", text: Annotated[PageText, Form(max_length=2000)] = ""
) -> Response:
    """Write what the guidelines say of a class; earlier versions stay."""
    service.update_definition(
        page.session, page.context, page.principal, code, validate_form(service.DefinitionIn, text=text)
    )
    return _redirect_to_class(code)
