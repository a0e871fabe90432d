"""Gallery of cells by class: their groups, and what a drawn tile shows."""

import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.accounts.service import annotator_of_account, read_own_annotator
from app.cases.ingest import microns_per_pixel
from app.cases.queries import CaseFilter, decode_cursor, encode_cursor, standing_outcomes
from app.database.engine import Database, insert_new
from app.database.tables import Case, CasePrediction, Exposure, Outcome
from app.http.models import ResponseModel
from app.http.principal import Principal
from app.predictions.service import champion_first_order
from app.releases.service import class_codes_of

#: Cells in one part of the index, and tiles that are drawn or labelled at once.
INDEX_LENGTH, MOST_TILES = 2000, 500
#: Group of the cells that were settled as split; no class has such a code.
SPLIT = "(split)"


class GalleryIndexOut(ResponseModel):
    """A part of the cells of a gallery by class, newest first, and in the first part the counts of all of them."""

    counts: dict[str, int] | None
    groups: dict[str, list[uuid.UUID]]
    next_cursor: str | None


class TileOut(ResponseModel):
    """A tile: the leading class of its cell, what the cell was settled as, and the size of its image."""

    external_id: str
    predicted: str
    settled: str | None
    width: int
    height: int
    microns_per_pixel: float | None

    @property
    def group(self) -> str:
        """Class under which it is drawn; empty if there is none."""
        return self.settled or self.predicted

    @property
    def extent(self) -> float:
        """The longer side of its image in µm, in pixels if nobody has told their size."""
        return max(self.width, self.height) * (self.microns_per_pixel or 1.0)


class TilesOut(ResponseModel):
    """Tiles by their cells."""

    tiles: dict[uuid.UUID, TileOut]


@dataclass(frozen=True)
class _Placement:
    """Leading class of a cell, and what it was settled as; empty or None if unknown."""

    predicted: str
    settled: str | None

    @property
    def group(self) -> str:
        """Class under which it is drawn; empty if there is none."""
        return self.settled or self.predicted


def _place(session: Session, ids: Select[uuid.UUID]) -> dict[uuid.UUID, _Placement]:
    """Where the cells of a statement stand in the gallery, newest first."""
    cells = ids.subquery()
    predictions = (
        select(cells.c.id, CasePrediction.release_id, CasePrediction.class_probs)
        .outerjoin(CasePrediction, CasePrediction.case_id == cells.c.id)
        .order_by(cells.c.id.desc(), *champion_first_order())
    )
    outcomes = standing_outcomes().where(Outcome.case_id.in_(select(cells.c.id)))
    settled = {one.case_id: one.class_code or SPLIT for one in session.execute(outcomes).scalars()}
    first: dict[uuid.UUID, tuple[uuid.UUID | None, list[float]]] = {}
    for case_id, release_id, probs in session.execute(predictions):
        first.setdefault(case_id, (release_id, probs))
    codes = class_codes_of(session, {release_id for release_id, _ in first.values() if release_id is not None})
    return {
        case_id: _Placement(
            "" if release_id is None else codes[release_id][probs.index(max(probs))], settled.get(case_id)
        )
        for case_id, (release_id, probs) in first.items()
    }


def _matching(chosen: CaseFilter, cursor: str | None) -> Select[uuid.UUID]:
    matching = select(Case.id).where(Case.erased_at.is_(None), *chosen.conditions()).order_by(Case.id.desc())
    return matching if cursor is None else matching.where(Case.id < decode_cursor(cursor))


def newest_cells(
    session: Session, chosen: CaseFilter, cursor: str | None, limit: int
) -> tuple[list[uuid.UUID], str | None]:
    """Some cells after a cursor, and the cursor after them; None after the last one."""
    ids = list(session.execute(_matching(chosen, cursor).limit(limit + 1)).scalars())
    return ids[:limit], encode_cursor(ids[limit - 1]) if len(ids) > limit else None


def gallery_index(session: Session, chosen: CaseFilter, cursor: str | None) -> GalleryIndexOut:
    """A part of the index of a gallery, after a cursor; the first part counts all cells by class."""
    matching = _matching(chosen, cursor)
    statement = matching if cursor is None else matching.limit(INDEX_LENGTH + 1)
    placed = [*_place(session, statement).items()]
    counts = Counter(place.group for _, place in placed) if cursor is None else None
    part = placed[:INDEX_LENGTH]
    groups: dict[str, list[uuid.UUID]] = {}
    for case_id, place in part:
        groups.setdefault(place.group, []).append(case_id)
    next_cursor = encode_cursor(part[-1][0]) if len(placed) > len(part) else None
    return GalleryIndexOut(counts=counts, groups=groups, next_cursor=next_cursor)


def draw_tiles(
    database: Database, session: Session, principal: Principal, case_ids: Collection[uuid.UUID]
) -> dict[uuid.UUID, TileOut]:
    """What the tiles of cells show, newest first: that a person sees it is stored before."""
    _note_exposures(database, session, principal, case_ids)
    statement = select(Case.id).where(Case.id.in_(case_ids), Case.erased_at.is_(None))
    placed = _place(session, statement)
    columns = (Case.id, Case.external_id, Case.width, Case.height, Case.case_metadata)
    rows = session.execute(select(*columns).where(Case.id.in_(placed)).order_by(Case.id.desc()))
    return {
        row.id: TileOut(
            external_id=row.external_id,
            predicted=placed[row.id].predicted,
            settled=placed[row.id].settled,
            width=row.width,
            height=row.height,
            microns_per_pixel=microns_per_pixel(row.case_metadata),
        )
        for row in rows
    }


def _note_exposures(
    database: Database, session: Session, principal: Principal, case_ids: Collection[uuid.UUID]
) -> None:
    """Store, before a read-only request answers, that it shows the leading classes of cases to a person."""
    # Who manages may label here, so that they are an annotator from their first look on. Any other account that may
    # look has none and needs none: no role ever changes, and none that sees more than pixels gives a label that counts
    # as blind (`was_exposed_to`).
    annotator = annotator_of_account(session, principal.account_id)
    if annotator is None and "manage" not in principal.scopes:
        return
    if annotator is not None and _unseen(session, annotator.id, case_ids) == set():
        return
    session.rollback()  # SQLite: the reading transaction must not wait for the writing one
    with database.write() as writing:
        annotator = read_own_annotator(writing, principal)
        unseen = _unseen(writing, annotator.id, case_ids)
        pairs = select(CasePrediction.case_id, CasePrediction.release_id).where(CasePrediction.case_id.in_(unseen))
        releases: dict[uuid.UUID, uuid.UUID] = {}
        for case_id, release_id in writing.execute(pairs.order_by(CasePrediction.case_id, *champion_first_order())):
            releases.setdefault(case_id, release_id)
        rows = [
            {"case_id": case_id, "annotator_id": annotator.id, "release_id": release_id}
            for case_id, release_id in releases.items()
        ]
        if rows:
            insert_new(writing, Exposure, rows)


def _unseen(session: Session, annotator_id: uuid.UUID, case_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
    """Cells with a prediction that was not shown to an annotator yet."""
    predicted = select(CasePrediction.case_id).where(CasePrediction.case_id.in_(case_ids))
    seen = select(Exposure.case_id).where(Exposure.annotator_id == annotator_id, Exposure.case_id.in_(case_ids))
    return set(session.execute(predicted).scalars()) - set(session.execute(seen).scalars())
