"""Database access of reference cells: the newest decision on each, and those that are shown."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from app.database.tables import SHOWN_KINDS, Case, CaseTwin, ReferenceCell
from app.http.errors import NotFound
from app.references.selecting import N_CELLS, Candidate


@dataclass(frozen=True)
class Cell:
    """A case with the decision that holds on it.

    Attributes:
        row: the decision.
        external_id: of the case.
        patient: whose cell it is.
    """

    row: ReferenceCell
    external_id: str
    patient: str | None

    @property
    def shown(self) -> bool:
        """Whether it may be shown."""
        return self.row.kind in SHOWN_KINDS

    def candidate(self) -> Candidate:
        """The cell as one that is kept."""
        row = self.row
        return Candidate(row.case_id, row.class_code, row.n_readers, row.n_same, self.patient, b"")


def cells_of(session: Session, codes: Iterable[str] | None = None) -> dict[str, list[Cell]]:
    """Every cell of some classes, all where left out, by class: pinned ones first, then those with most agreement."""
    place = func.row_number().over(
        partition_by=(ReferenceCell.class_code, ReferenceCell.case_id), order_by=ReferenceCell.number.desc()
    )
    ranked = select(ReferenceCell.id, place.label("place"))
    if codes is not None:
        ranked = ranked.where(ReferenceCell.class_code.in_(list(codes)))
    newest = ranked.subquery()
    statement = (
        select(ReferenceCell, Case.external_id, Case.patient)
        .join(newest, (newest.c.id == ReferenceCell.id) & (newest.c.place == 1))
        .join(Case, Case.id == ReferenceCell.case_id)
        .where(Case.erased_at.is_(None))
    )
    found: dict[str, list[Cell]] = {}
    for row, external_id, patient in session.execute(statement):
        found.setdefault(row.class_code, []).append(Cell(row, external_id, patient))
    for cells in found.values():
        cells.sort(key=_order)
    return found


def _order(cell: Cell) -> tuple[bool, float, bytes]:
    """Pinned ones, then those of which the next reader says the same most probably, then by random names."""
    row = cell.row
    return row.kind != "pinned", -cell.candidate().worth, row.id.bytes


def shown_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Those of a class that are shown."""
    return [cell for cell in cells if cell.shown][:N_CELLS]


def stands_for(session: Session, case_id: uuid.UUID) -> str | None:
    """The class for which a case, or a twin of it, was shown as a reference cell last; None where none ever was."""
    twins = select(CaseTwin.twin_id).where(CaseTwin.case_id == case_id)
    about = or_(ReferenceCell.case_id == case_id, ReferenceCell.case_id.in_(twins))
    newest = select(ReferenceCell.class_code).where(about, ReferenceCell.kind.in_(SHOWN_KINDS))
    return session.execute(newest.order_by(ReferenceCell.created_at.desc()).limit(1)).scalar_one_or_none()


def shown_case(session: Session, cell_id: uuid.UUID) -> Case:
    """The case of a cell that is shown now.

    Raises:
        NotFound: there is no such cell, or it is not shown any more.
    """
    row = session.get(ReferenceCell, cell_id)
    known = [] if row is None else cells_of(session, [row.class_code]).get(row.class_code, [])
    if row is None or row.case_id not in {cell.row.case_id for cell in shown_cells(known)}:
        raise NotFound("there is no such reference cell")
    return session.get_one(Case, row.case_id)
