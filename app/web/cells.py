"""Pages of all cells, as a table and as a gallery by class, and what is done to several at once."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Form, Query, Response
from sqlalchemy.orm import Session

from app.accounts.service import GuardedRoute
from app.cases import service as cases
from app.database.tables import Case, time_of
from app.http.errors import InvalidValue, NotFound
from app.http.models import ClassOut, PageText
from app.labels.service import label_in_gallery, undo_in_gallery
from app.metrics.service import CohortQuery
from app.releases.service import class_names, reading_classes
from app.reports.service import doubt_triage, read_published_report
from app.triage.service import (
    assign_open_reads,
    cells_without_annotator,
    list_eligible_annotators,
    no_annotator_left,
    set_due_day,
)
from app.web.filters import csv_file
from app.web.forms import IdempotentForm, require_account
from app.web.page import Day, LeadPage, ManagerForm, Page
from app.web.render import redirect_to

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
#: Cells shown on one page, tiles on one where there is no script, and rows of a file of cells.
PAGE_LENGTH, _TILES, MOST_ROWS = 100, 60, 100_000
#: Cells of one page of the worklist.
WORKLIST_LENGTH = 120
_Text = Annotated[PageText, Query(max_length=200)]


@dataclass(frozen=True)
class CellQuery:
    """Which cells a list shows, in which order, from which page on; sorted by need it is the worklist."""

    search: str = ""
    state: cases.CaseState | Literal[""] = ""
    site: str = ""
    sort: cases.CaseSort = "stored"
    down: bool = True
    page: int = 1
    specimen: uuid.UUID | None = None

    @property
    def query(self) -> str:
        """The same as parameters of an address, empty for the newest of all cells."""
        return self.address("").removeprefix("?")

    def address(self, path: str = "/cells", **changes: object) -> str:
        """Address of the first page of the list, with some of it changed."""
        given, usual = vars(self) | {"page": 1} | changes, vars(CellQuery())
        query = {name: value for name, value in given.items() if name not in usual or value != usual[name]}
        return f"{path}?{urlencode(query)}" if query else path

    def sorted_by(self, column: cases.CaseSort) -> str:
        """Address of the list sorted by a column; the other way round if it is sorted by it already."""
        return self.address(sort=column, down=not self.down if column == self.sort else column in _DOWN_FIRST)

    def filter(self, session: Session) -> cases.CaseFilter:
        """The cells that match; a search of all cells covers the names of classes as well."""
        words = self.search.strip() or None
        names = class_names(session) if words and self.sort != "need" else {}
        classes = tuple(code for code, name in names.items() if (words or "").lower() in name.lower())
        state = "to_read" if self.sort == "need" else self.state or None
        among = cells_without_annotator(session) if state == "to_settle" else None
        among = cases.overdue_cells(time_of(session)) if state == "overdue" else among
        stuck = no_annotator_left(session, Case.id) if state in {"to_read", "overdue"} else None
        return cases.CaseFilter(
            search=words,
            searched_classes=classes,
            state=state,
            site=self.site or None,
            specimen=self.specimen,
            among=among,
            stuck=stuck,
        )


#: Columns of which the largest are looked for.
_DOWN_FIRST = ("stored", "disagreement", "labels")


def _query_of(
    search: _Text = "",
    state: Annotated[cases.CaseState | Literal[""], Query()] = "",
    site: _Text = "",
    sort: Annotated[cases.CaseSort, Query()] = "stored",
    down: Annotated[bool, Query()] = True,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
    specimen: uuid.UUID | None = None,
) -> CellQuery:
    return CellQuery(search, state, site, sort, down, page, specimen)


#: The list that an address names.
AskedCells = Annotated[CellQuery, Depends(_query_of)]


@dataclass(frozen=True)
class CellList:
    """A page of cells, their open reads, names of classes, how many match, sites and annotators to choose from."""

    items: list[cases.CaseOut]
    open_reads: dict[str, cases.RequestOut]
    names: dict[str, str]
    n_matching: int
    sites: list[str]
    annotators: list[tuple[uuid.UUID, str]]
    today: date

    @property
    def n_pages(self) -> int:
        """Number of pages."""
        return max(1, -(-self.n_matching // PAGE_LENGTH))


@router.get("/cells")
def show_cells(
    page: LeadPage,
    asked: AskedCells,
    changed: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    chosen: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    """Cells in every state; the search covers identifiers, patients, sites, annotators and labels."""
    session, matching = page.session, asked.filter(page.session)
    offset = (asked.page - 1) * PAGE_LENGTH
    ids = cases.sorted_case_ids(session, matching, asked.sort, down=asked.down, offset=offset, limit=PAGE_LENGTH)
    view = CellList(
        cases.list_cases_in_order(session, ids),
        cases.next_open_reads(session, ids),
        class_names(session),
        cases.count_cases(session, matching),
        cases.list_sites(session),
        [(one.id, one.name) for one in list_eligible_annotators(session)],
        page.context.clock().astimezone(page.zone).date(),
    )
    return page.render("cells.html", view=view, asked=asked, changed=changed, chosen=chosen)


@router.get("/cells.csv")
def export_cells(page: LeadPage, asked: AskedCells) -> Response:
    """The cells of a table as a file."""
    header = (
        *("id", "cell", "patient", "site", "partition", "class", "class_prob", "disagreement_prob"),
        *("labels", "outcome", "outcome_by", "due", "assigned_to", "stored"),
    )
    return csv_file("cells", header, _rows(page, asked))


def _rows(page: Page, asked: CellQuery) -> Iterator[tuple[object, ...]]:
    matching, session = asked.filter(page.session), page.session
    ids = cases.sorted_case_ids(session, matching, asked.sort, down=asked.down, offset=0, limit=MOST_ROWS)
    for start in range(0, len(ids), PAGE_LENGTH):
        part = ids[start : start + PAGE_LENGTH]
        reads = cases.next_open_reads(session, part)
        for case in cases.list_cases_in_order(session, part):
            probs = case.prediction.class_probs if case.prediction else {}
            leader = max(probs, key=lambda code: probs[code], default=None)
            read = reads.get(case.id)
            yield (
                *(case.id, case.external_id, case.patient, case.site, case.partition),
                *(leader, leader and probs[leader], case.prediction and case.prediction.disagreement_prob),
                *(case.n_labels, *cases.outcome_columns(case.outcome)),
                *(read and read.due_at, read and read.asked_of, case.created_at),
            )


@router.post("/cells/reads")
def change_reads(
    page: ManagerForm,
    asked: AskedCells,
    act: Annotated[Literal["assign", "due"], Form()],
    cell: Annotated[list[uuid.UUID], Form(max_length=PAGE_LENGTH)],
    annotator: Annotated[uuid.UUID | Literal[""], Form()] = "",
    due: Annotated[Day | Literal[""], Form()] = "",
) -> Response:
    """Assign the open reads of the chosen cells, or set when these are due."""
    keys = page.context.keys.audit
    if act == "assign":
        if not annotator:
            raise InvalidValue("choose an annotator")
        changed = assign_open_reads(page.session, keys, page.principal, cell, annotator)
    else:
        if not due:
            raise InvalidValue("choose a date")
        changed = set_due_day(page.session, keys, page.principal, cell, due, page.zone)
    n_cells = len({request.case_id for request in changed})
    return redirect_to(asked.address(page=asked.page, changed=n_cells, chosen=len(cell)))


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

    tiles: list[tuple[str, list[tuple[uuid.UUID, cases.TileOut]]]]
    names: dict[str, str]
    classes: list[ClassOut]
    n_matching: int
    sites: list[str]
    # longer side of most images, in µm or in pixels, which fills a tile
    extent: float
    in_microns: bool
    next_cursor: str | None


_Cursor = Annotated[PageText | None, Query(max_length=100)]


@router.get("/cells/gallery")
def show_gallery(page: LeadPage, asked: AskedCells, cursor: _Cursor = None, done: _Text = "") -> Response:
    """Cells by class, that of the outcome or the predicted one, to look at and to label together."""
    # a browser with scripts does not draw the tiles of the page; they are handed out, and so count as seen
    names, chosen = class_names(page.session), asked.filter(page.session)
    ids, next_cursor = cases.newest_cells(page.session, chosen, cursor, _TILES)
    tiles = cases.draw_tiles(page.context.database, page.session, page.principal, ids)
    groups: dict[str, list[tuple[uuid.UUID, cases.TileOut]]] = {}
    for case_id, tile in tiles.items():
        groups.setdefault(tile.group, []).append((case_id, tile))
    sizes = sorted(tile.extent for tile in tiles.values()) or [1.0]
    view = Gallery(
        [(code, groups[code]) for code in [*names, cases.SPLIT, ""] if code in groups],
        names,
        reading_classes(page.session),
        cases.count_cases(page.session, chosen),
        cases.list_sites(page.session),
        sizes[len(sizes) * 9 // 10],
        any(tile.microns_per_pixel for tile in tiles.values()),
        next_cursor,
    )
    return page.render("gallery.html", view=view, split=cases.SPLIT, asked=asked, done=done, form_key=uuid.uuid4().hex)


@router.get("/cells/gallery/index")
def show_gallery_index(page: LeadPage, asked: AskedCells, cursor: _Cursor = None) -> cases.GalleryIndexOut:
    """The cells by class, for a script that draws those in view."""
    return cases.gallery_index(page.session, asked.filter(page.session), cursor)


_Cells = Annotated[list[uuid.UUID], Form(max_length=cases.MOST_TILES)]


@router.post("/cells/gallery/tiles")
def draw_tiles(page: LeadPage, cell: _Cells) -> cases.TilesOut:
    """Tiles that come into view; that their person has seen them is stored first."""
    return cases.TilesOut(tiles=cases.draw_tiles(page.context.database, page.session, page.principal, cell))


@router.post("/cells/gallery/labels")
def label_tiles(
    page: ManagerForm,
    once: IdempotentForm,
    cell: _Cells | None = None,
    label: Annotated[PageText, Form(max_length=100)] = "",
    account: Annotated[PageText, Form(max_length=64)] = "",
    filters: Annotated[PageText, Form(max_length=1000)] = "",
) -> Response:
    """Give cells a class as their outcome, and a label under one's own name that is not blind."""
    require_account(page.keys, page.principal, account)
    if not cell or not label:
        raise InvalidValue("choose a class, and the cells that belong to it")
    answer = once(
        page.session,
        [*map(str, cell), label],
        lambda: (201, label_in_gallery(page.session, page.context, page.principal, cell, label)),
    )
    return _respond(page, answer, filters)


@router.post("/cells/gallery/undo")
def undo_tiles(
    page: ManagerForm,
    once: IdempotentForm,
    first: Annotated[uuid.UUID, Form()],
    filters: Annotated[PageText, Form(max_length=1000)] = "",
) -> Response:
    """Take back the labels and outcomes of one form."""
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


@dataclass(frozen=True)
class LeadsWorklist:
    """A page of the cases that wait for a read, their total number, and the available filters."""

    # ``doubt``: why disagreement probabilities are no reason yet to read one case before another, None if they are.
    # ``same_image``: by case the others with the same pixels, id and external id; ``names`` of the classes by code.

    page: cases.WorklistOut
    n_waiting: int
    sites: list[str]
    same_image: dict[str, list[tuple[uuid.UUID, str]]]
    names: dict[str, str]
    doubt: str | None


def load_leads_worklist(session: Session, chosen: cases.CaseFilter, cursor: str | None) -> LeadsWorklist:
    """Cases that wait for a read, most urgent first."""
    worklist_page = cases.get_worklist_page(session, cursor, WORKLIST_LENGTH, chosen)
    alike = cases.same_images(session, [uuid.UUID(item.case.id) for item in worklist_page.items])
    same_image = {str(case_id): others for case_id, others in alike.items()}
    names = class_names(session) if worklist_page.items else {}
    report = read_published_report(session, CohortQuery()).body
    return LeadsWorklist(
        worklist_page,
        cases.count_cases(session, chosen),
        cases.list_sites(session),
        same_image,
        names,
        doubt=doubt_triage(report.document) if report else None,
    )
