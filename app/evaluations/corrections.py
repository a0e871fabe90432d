"""How often annotators correct a slip, in which direction, and how soon."""

import uuid
from collections import Counter
from collections.abc import Collection
from statistics import median

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from app.cases.correction_window import is_provisional
from app.database.tables import Annotator, Label
from app.evaluations.schemas import CorrectionsOut, DirectionOut


def corrections_of(session: Session, case_ids: Collection[uuid.UUID]) -> CorrectionsOut:
    """Corrections of the class among the final planned answers of some cases by people with accounts.

    Args:
        session: for reading.
        case_ids: the cases.
    """
    final = ~is_provisional(Label.case_id, Label.annotator_id)
    wanted, before = set(case_ids), aliased(Label)
    first = (
        select(Label.case_id)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Label.kind == "label", Label.round == "planned", Annotator.account_id.is_not(None), final)
    )
    n_labels = sum(case_id in wanted for case_id in session.execute(first).scalars())
    steps = (
        select(
            Label.case_id, Label.annotator_id, before.class_code, Label.class_code, before.created_at, Label.created_at
        )
        .join(before, before.id == Label.supersedes_id)
        .where(Label.kind == "correction", Label.round == "planned", final)
    )
    rows = [row for row in session.execute(steps) if row[0] in wanted and row[2] != row[3]]
    directions = Counter((row[2], row[3]) for row in rows)
    n_corrected = len({(row[0], row[1]) for row in rows})
    return CorrectionsOut(
        n_labels=n_labels,
        n_corrected=n_corrected,
        rate=n_corrected / n_labels if n_labels else None,
        median_seconds=median((row[5] - row[4]).total_seconds() for row in rows) if rows else None,
        directions=[
            DirectionOut(before=old, after=new, count=count)
            for (old, new), count in sorted(directions.items(), key=lambda item: (-item[1], item[0]))
        ],
    )
