"""Database access of outcomes: the cells of a rule, and rows that are locked before a cell is settled."""

import uuid
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Select, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from app.database.tables import Case, CountedLabel, Outcome, ProvisionalLabel, ReadRequest
from app.outcomes.rules import MIN_OPINIONS

_WAITING = ("open", "leased")


def lock_cells(session: Session, case_ids: Collection[uuid.UUID]) -> list[Case]:
    """Lock the adjudications of cells, then the cells, each in order; erased cells are left out."""
    # requests before their cases, like everything that locks both
    statement = select(ReadRequest.id).where(ReadRequest.case_id.in_(case_ids), ReadRequest.round == "adjudication")
    session.execute(statement.where(ReadRequest.state.in_(_WAITING)).order_by(ReadRequest.id).with_for_update())
    cells = select(Case).where(Case.id.in_(case_ids), Case.erased_at.is_(None)).order_by(Case.id)
    return list(session.execute(cells.with_for_update().execution_options(populate_existing=True)).scalars())


def count_withdrawn(session: Session, case: Case, since: datetime) -> int:
    """Number of adjudications of a case that were withdrawn since a moment."""
    withdrawn = (ReadRequest.round == "adjudication", ReadRequest.state == "closed", ReadRequest.closed_at >= since)
    counted = select(func.count()).where(ReadRequest.case_id == case.id, ReadRequest.label_id.is_(None), *withdrawn)
    return session.execute(counted).scalar_one()


def newest_rows(session: Session, case_id: uuid.UUID) -> list[Outcome]:
    """The newest two rows of a case, the newest first."""
    rows = select(Outcome).where(Outcome.case_id == case_id).order_by(Outcome.number.desc())
    return list(session.execute(rows.limit(2)).scalars())


def _cells_for_rule() -> Select[uuid.UUID, bool]:
    """Cells that a rule may conclude, and whether an adjudication is open."""
    # No rule overrules a person: what was settled stays, and what was reopened waits for a new label.
    opinions = (CountedLabel.blind.is_(True), CountedLabel.kind != "retraction")
    several = select(CountedLabel.case_id).where(*opinions).group_by(CountedLabel.case_id)
    several = several.having(func.count(CountedLabel.annotator_id.distinct()) >= MIN_OPINIONS)
    later = aliased(Outcome)
    is_newest = ~exists().where(later.case_id == Outcome.case_id, later.number > Outcome.number)
    read_since = exists().where(
        CountedLabel.case_id == Outcome.case_id, CountedLabel.created_at > Outcome.created_at, *opinions
    )
    by_person = Outcome.account_id.is_not(None)
    stands = exists().where(
        Outcome.case_id == Case.id, is_newest, or_(Outcome.kind != "reopened", by_person & ~read_since)
    )
    planned = (ReadRequest.round == "planned", ReadRequest.state.in_(_WAITING))
    return select(Case.id, Case.waiting).where(
        Case.erased_at.is_(None),
        Case.id.in_(several),
        ~exists().where(ReadRequest.case_id == Case.id, *planned),
        ~exists().where(ProvisionalLabel.case_id == Case.id, ProvisionalLabel.purpose == "read"),
        ~stands,
    )


def cells_for_rule(session: Session, case_ids: Collection[uuid.UUID] | None = None) -> dict[uuid.UUID, bool]:
    """Cells, all or some, that a rule may conclude, and whether an adjudication of each is open."""
    cells = _cells_for_rule().order_by(Case.id)
    cells = cells if case_ids is None else cells.where(Case.id.in_(case_ids))
    return {row[0]: row[1] for row in session.execute(cells)}
