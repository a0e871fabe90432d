"""Pages of all cells, as a table and as a gallery by class: every state, one search, and a thumbnail of each."""

import json
import uuid
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Form, Query, Response

from app.accounts.service import GuardedRoute
from app.cases import service as cases
from app.http.errors import InvalidValue, NotFound
from app.http.models import ClassOut, PageText
from app.labels.service import label_in_gallery, undo_in_gallery
from app.releases.service import class_names, reading_classes
from app.web.forms import IdempotentForm
from app.web.page import LeadPage, ManagerForm, Page
from app.web.render import redirect_to

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
#: Cells shown on one page, and tiles where there is no script.
PAGE_LENGTH, _TILES = 100, 60


@dataclass(frozen=True)
class CellList:
    """A page of cells, the names of the classes, how many match, and the sites to choose from."""

    page: cases.CasesOut
    names: dict[str, str]
    n_matching: int
    sites: list[str]


@router.get("/cells")
def show_cells(
    page: LeadPage,
    search: Annotated[PageText, Query(max_length=200)] = "",
    state: Annotated[cases.CaseState | Literal[""], Query()] = "",
    site: Annotated[PageText, Query(max_length=200)] = "",
    cursor: Annotated[PageText | None, Query(max_length=100)] = None,
) -> Response:
    """Cells in every state, newest first; the search covers identifiers, patients, sites, annotators and labels."""
    names, wanted = class_names(page.session), search.strip()
    classes = tuple(code for code, name in names.items() if wanted.lower() in name.lower()) if wanted else ()
    chosen = cases.CaseFilter(search=wanted or None, searched_classes=classes, state=state or None, site=site or None)
    view = CellList(
        cases.list_cases(page.session, chosen, cursor, PAGE_LENGTH),
        names,
        cases.count_cases(page.session, chosen),
        cases.list_sites(page.session),
    )
    return page.render("cells.html", view=view, search=search, state=state, site=site)


@router.get("/cells/{case_id}/thumbnail")
def show_thumbnail(case_id: uuid.UUID, page: LeadPage) -> Response:
    """A small copy of the image of a cell."""
    case = cases.case_by_id(page.session, case_id)
    if case.erased_at is not None:
        raise NotFound("there is no such cell")
    return cases.thumbnail_response(page.context, case.stored_sha256)


@dataclass(frozen=True)
class Gallery:
    """Gallery of the cells that match: the newest tiles by class, for browsers without scripts."""

    tiles: list[tuple[str, list[tuple[str, cases.TileOut]]]]
    names: dict[str, str]
    classes: list[ClassOut]
    n_matching: int
    sites: list[str]
    # longer side of most images, in µm or in pixels, which fills a tile
    extent: float
    in_microns: bool
    filters: str
    next_cursor: str | None


def _chosen_cells(names: dict[str, str], search: str, state: cases.CaseState | None, site: str) -> cases.CaseFilter:
    wanted = search.strip()
    classes = tuple(code for code, name in names.items() if wanted.lower() in name.lower()) if wanted else ()
    return cases.CaseFilter(search=wanted or None, searched_classes=classes, state=state, site=site or None)


_Search = Annotated[PageText, Query(max_length=200)]
_State = Annotated[cases.CaseState | Literal[""], Query()]
_Cursor = Annotated[PageText | None, Query(max_length=100)]


@router.get("/cells/gallery")
def show_gallery(
    page: LeadPage,
    search: _Search = "",
    state: _State = "",
    site: _Search = "",
    cursor: _Cursor = None,
    done: _Search = "",
) -> Response:
    """Cells by class, the predicted one or the one that the caller gave last, to look at and to label together."""
    # a browser with scripts does not draw the tiles of the page; they are handed out, and so count as seen
    names = class_names(page.session)
    chosen = _chosen_cells(names, search, state or None, site)
    ids, next_cursor = cases.newest_cells(page.session, chosen, cursor, _TILES)
    tiles = cases.draw_tiles(page.context.database, page.session, page.keys, page.principal, ids)
    groups: dict[str, list[tuple[str, cases.TileOut]]] = {}
    for name, tile in tiles.items():
        groups.setdefault(tile.group, []).append((name, tile))
    sizes = sorted(tile.extent for tile in tiles.values()) or [1.0]
    view = Gallery(
        [(code, groups[code]) for code in [*names, ""] if code in groups],
        names,
        reading_classes(page.session),
        cases.count_cases(page.session, chosen),
        cases.list_sites(page.session),
        sizes[len(sizes) * 9 // 10],
        any(tile.microns_per_pixel for tile in tiles.values()),
        urlencode({"search": search, "state": state, "site": site}),
        next_cursor,
    )
    key = uuid.uuid4().hex
    return page.render("gallery.html", view=view, search=search, state=state, site=site, done=done, form_key=key)


@router.get("/cells/gallery/index")
def show_gallery_index(
    page: LeadPage, search: _Search = "", state: _State = "", site: _Search = "", cursor: _Cursor = None
) -> cases.GalleryIndexOut:
    """Names of the cells by class, which tell nothing of any cell until its tile is asked for."""
    chosen = _chosen_cells(class_names(page.session), search, state or None, site)
    return cases.gallery_index(page.context.database, page.session, page.keys, page.principal, chosen, cursor)


_Cells = Annotated[list[PageText], Form(max_length=cases.MOST_TILES)]


@router.post("/cells/gallery/tiles")
def draw_tiles(page: LeadPage, cell: _Cells) -> cases.TilesOut:
    """Tiles that come into view; that their person has seen them is stored first."""
    ids = cases.cases_of_tiles(page.keys, page.principal.account_id, cell)
    return cases.TilesOut(tiles=cases.draw_tiles(page.context.database, page.session, page.keys, page.principal, ids))


@router.post("/cells/gallery/labels")
def label_tiles(
    page: ManagerForm,
    once: IdempotentForm,
    cell: _Cells | None = None,
    label: Annotated[PageText, Form(max_length=100)] = "",
    filters: Annotated[PageText, Form(max_length=1000)] = "",
) -> Response:
    """Give cells a class, under one's own name and not blind."""
    if not cell or not label:
        raise InvalidValue("choose a class, and the cells that belong to it")
    ids = cases.cases_of_tiles(page.keys, page.principal.account_id, cell)
    answer = once(
        page.session,
        [cell, label],
        lambda: (201, label_in_gallery(page.session, page.context, page.principal, ids, label)),
    )
    return _respond(page, answer, filters)


@router.post("/cells/gallery/undo")
def undo_tiles(
    page: ManagerForm,
    once: IdempotentForm,
    first: Annotated[uuid.UUID, Form()],
    filters: Annotated[PageText, Form(max_length=1000)] = "",
) -> Response:
    """Take back the labels of one form."""
    answer = once(
        page.session, str(first), lambda: (201, undo_in_gallery(page.session, page.context, page.principal, first))
    )
    return _respond(page, answer, filters)


def _respond(page: Page, answer: Response, filters: str) -> Response:
    """What a script asked for, or the gallery again with the label from which on its last change can be undone."""
    if "text/html" not in page.request.headers.get("accept", ""):
        return answer
    done = json.loads(bytes(answer.body))["first"] or ""
    return redirect_to(f"/cells/gallery?{urlencode({**dict(parse_qsl(filters)), 'done': done})}")
