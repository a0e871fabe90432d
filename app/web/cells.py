"""Page of all cells: every state, one search, and a thumbnail of each."""

import uuid
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from app.accounts.service import GuardedRoute
from app.cases import service as cases
from app.http.errors import NotFound
from app.http.models import PageText
from app.releases.service import class_names
from app.web.page import LeadPage

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
#: Cells shown on one page.
PAGE_LENGTH = 100


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
