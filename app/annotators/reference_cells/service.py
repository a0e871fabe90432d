"""Reference cells of each class, with its definition."""

import uuid
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.annotators.reference_cells.selection import (
    N_CELLS,
    CellCandidate,
    CellDecision,
    cells_of,
    list_reference_candidates,
    pair_at_stake,
    select_cells,
    shown_case,
    shown_cells,
    stands_for,
)
from app.audit.chain import events
from app.context import ServiceContext
from app.database.tables import SHOWN_KINDS, Account, ClassDefinition, ReferenceCell
from app.http.errors import NotFound
from app.http.models import Line, Paragraph, RequestModel
from app.http.principal import Principal
from app.releases.service import reading_classes


class DefinitionIn(RequestModel):
    """A new version of what the guidelines say of a class; empty takes the definition away."""

    text: Paragraph


def list_definitions(session: Session) -> dict[str, str]:
    """Return the current definition of each class that has one."""
    rows = session.execute(select(ClassDefinition).order_by(ClassDefinition.number)).scalars()
    newest = {row.class_code: row.text for row in rows}
    return {code: text for code, text in newest.items() if text}


def list_definition_versions(session: Session, code: str) -> list[tuple[ClassDefinition, str]]:
    """Every version of a class's definition with the name of who wrote it, newest first."""
    statement = (
        select(ClassDefinition, Account.name)
        .join(Account, Account.id == ClassDefinition.created_by)
        .where(ClassDefinition.class_code == code)
        .order_by(ClassDefinition.number.desc())
    )
    return [(row[0], row[1]) for row in session.execute(statement)]


def update_definition(
    session: Session, context: ServiceContext, principal: Principal, code: str, body: DefinitionIn
) -> uuid.UUID | None:
    """Write a new version of the definition of a class; those before it stay."""
    if code not in {info.code for info in reading_classes(session)}:
        raise NotFound("there is no such class")
    before, text = (
        list_definition_versions(session, code),
        "\n".join(line.strip() for line in body.text.strip().splitlines()),
    )
    if text == (before[0][0].text if before else ""):
        return None
    number = before[0][0].number + 1 if before else 1
    row = ClassDefinition(class_code=code, number=number, text=text, created_by=principal.account_id)
    session.add(row)
    session.flush()
    details = {"class": code, "number": number}
    events.record_event(
        session, context.keys.audit, actor=principal.name, action="definition.change", object_id=row.id, details=details
    )
    return row.id


class CellIn(RequestModel):
    """A decision on a cell: ``chosen`` takes it, and takes a pin or an exclusion back."""

    kind: Literal["chosen", "pinned", "excluded"]
    reason: Line | None = None


def choose_reference_cells(
    session: Session, context: ServiceContext, principal: Principal, code: str | None = None
) -> int:
    """Choose the cells of one class or all; pinned ones stay, excluded ones stay out."""
    codes = [info.code for info in reading_classes(session)]
    if code is not None and code not in codes:
        raise NotFound("there is no such class")
    cells_by_class = cells_of(session)
    shown_ids = {cell.row.case_id for cells in cells_by_class.values() for cell in cells if cell.shown}
    candidates_by_class = list_reference_candidates(session, context.keys.readers.order, shown_ids)
    n_chosen = n_dropped = 0
    for one in codes if code is None else [code]:
        chosen, dropped = _choose_class_cells(
            session, principal, cells_by_class.get(one, []), candidates_by_class.get(one, [])
        )
        n_chosen, n_dropped = n_chosen + chosen, n_dropped + dropped
    if n_chosen + n_dropped:
        details = {"class": code, "n_chosen": n_chosen, "n_dropped": n_dropped}
        events.record_event(
            session,
            context.keys.audit,
            actor=principal.name,
            action="reference.choose",
            object_id=code or "all classes",
            details=details,
        )
    return n_chosen + n_dropped


def _choose_class_cells(
    session: Session, principal: Principal, known: list[CellDecision], found: list[CellCandidate]
) -> tuple[int, int]:
    out = {cell.row.case_id for cell in known if cell.row.kind == "excluded"}
    pinned = [cell.candidate() for cell in known if cell.row.kind == "pinned"]
    chosen = select_cells([one for one in found if one.case_id not in out], pinned)
    ids, before = {one.case_id for one in chosen}, {cell.row.case_id for cell in known if cell.shown}
    dropped = [cell for cell in known if cell.row.kind == "chosen" and cell.row.case_id not in ids]
    fresh = [one for one in chosen if one.case_id not in before]
    for one in fresh:
        _add_cell_decision(session, principal, one, "chosen", None)
    for cell in dropped:
        _add_cell_decision(session, principal, cell.candidate(), "dropped", None)
    return len(fresh), len(dropped)


def _add_cell_decision(
    session: Session, principal: Principal, cell: CellCandidate, kind: str, reason: str | None
) -> ReferenceCell:
    of_cell = (ReferenceCell.class_code == cell.class_code, ReferenceCell.case_id == cell.case_id)
    newest = session.execute(select(func.max(ReferenceCell.number)).where(*of_cell)).scalar_one_or_none()
    row = ReferenceCell(
        class_code=cell.class_code,
        case_id=cell.case_id,
        number=(newest or 0) + 1,
        kind=kind,
        n_readers=cell.n_readers,
        n_same=cell.n_same,
        reason=reason,
        created_by=principal.account_id,
    )
    session.add(row)
    session.flush()
    return row


def decide_reference_cell(
    session: Session, context: ServiceContext, principal: Principal, code: str, case_id: uuid.UUID, body: CellIn
) -> uuid.UUID:
    """Pin or exclude a cell of a class, or undo either."""
    cell = next((one for one in cells_of(session, [code]).get(code, []) if one.row.case_id == case_id), None)
    if cell is not None and cell.row.kind == body.kind:
        return cell.row.id
    if cell is not None and (cell.shown or was_reference_cell(session, case_id)):
        candidate = cell.candidate()
    else:
        matches = list_reference_candidates(session, context.keys.readers.order, only=case_id).get(code, [])
        if not matches:
            raise NotFound("this cell cannot represent the class: it is not completed, or its annotators disagree")
        candidate = matches[0]
    reason = None if body.reason is None else body.reason.strip() or None
    row = _add_cell_decision(session, principal, candidate, body.kind, reason)
    events.record_event(
        session,
        context.keys.audit,
        actor=principal.name,
        action=f"reference.{body.kind}",
        object_id=row.id,
        details={"class": code, "case": str(case_id)},
        reason=reason,
    )
    return row.id


def was_reference_cell(session: Session, case_id: uuid.UUID) -> bool:
    """Whether a case was ever a reference cell that annotators could look at."""
    conditions = (ReferenceCell.case_id == case_id, ReferenceCell.kind.in_(SHOWN_KINDS))
    return session.execute(select(ReferenceCell.id).where(*conditions).limit(1)).first() is not None
