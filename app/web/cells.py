"""Page of all cells: every state, one search, a thumbnail of each, and the way from one cell to the next."""

import uuid
from dataclasses import dataclass, replace
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Response
from sqlalchemy.orm import Session

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
class CellFilter:
    """What a list of cells was narrowed to, and its order."""

    search: str = ""
    state: cases.CaseState | Literal[""] = ""
    site: str = ""
    # empty: newest first; need: the worklist
    order: Literal["", "need"] = ""

    @property
    def query(self) -> str:
        """The same as parameters of an address, empty for all cells."""
        return urlencode({name: value for name, value in vars(self).items() if value})

    def chosen(self, session: Session) -> cases.CaseFilter:
        """Filter of the cells; a search of all cells covers the names of classes as well."""
        wanted, names = self.search.strip(), {} if self.order else class_names(session)
        classes = tuple(code for code, name in names.items() if wanted.lower() in name.lower()) if wanted else ()
        return cases.CaseFilter(
            search=wanted or None, searched_classes=classes, state=self.state or None, site=self.site or None
        )


def _cell_filter(
    search: Annotated[PageText, Query(max_length=200)] = "",
    state: Annotated[cases.CaseState | Literal[""], Query()] = "",
    site: Annotated[PageText, Query(max_length=200)] = "",
    order: Annotated[Literal["", "need"], Query()] = "",
) -> CellFilter:
    return CellFilter(search, state, site, order)


AskedCells = Annotated[CellFilter, Depends(_cell_filter)]


@dataclass(frozen=True)
class CellList:
    """A page of cells, the names of the classes, how many match, and the sites to choose from."""

    page: cases.CasesOut
    names: dict[str, str]
    n_matching: int
    sites: list[str]


@router.get("/cells")
def show_cells(
    page: LeadPage, asked: AskedCells, cursor: Annotated[PageText | None, Query(max_length=100)] = None
) -> Response:
    """Cells in every state, newest first; the search covers identifiers, patients, sites, annotators and labels."""
    asked = replace(asked, order="")
    chosen = asked.chosen(page.session)
    view = CellList(
        cases.list_cases(page.session, chosen, cursor, PAGE_LENGTH),
        class_names(page.session),
        cases.count_cases(page.session, chosen),
        cases.list_sites(page.session),
    )
    return page.render("cells.html", view=view, asked=asked)


@router.get("/cells/{case_id}/thumbnail")
def show_thumbnail(case_id: uuid.UUID, page: LeadPage) -> Response:
    """A small copy of the image of a cell."""
    case = cases.case_by_id(page.session, case_id)
    if case.erased_at is not None:
        raise NotFound("there is no such cell")
    return cases.thumbnail_response(page.context, case.stored_sha256)
