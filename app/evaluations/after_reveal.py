"""What annotators changed after they had been shown the case: how often, and whether towards the prediction.

None of it enters an evaluation or a fit. It tells how much the reveal moves people, and which way.
"""

from itertools import groupby

import numpy as np
from sqlalchemy import exists, select
from sqlalchemy.orm import Session, aliased

from app.cases.correction_window import is_provisional
from app.database.tables import Label
from app.evaluations.columns import Columns
from app.evaluations.schemas import AfterRevealOut


def changes_after_reveal(session: Session, columns: Columns) -> AfterRevealOut:
    """Revisions and retractions of blind planned labels, made after their annotator had been shown the case.

    Args:
        session: for reading.
        columns: of the cases, with the predictions whose leading classes they are compared with.
    """
    row_of = {case_id: row for row, case_id in enumerate(columns.ids())}
    shown = aliased(Label)
    changed = exists().where(
        shown.case_id == Label.case_id, shown.annotator_id == Label.annotator_id, shown.post_reveal.is_(True)
    )
    chains = (
        select(Label.case_id, Label.annotator_id, Label.kind, Label.class_code, Label.blind, Label.post_reveal)
        .where(Label.round == "planned", changed, ~is_provisional(Label.case_id, Label.annotator_id))
        .order_by(Label.case_id, Label.annotator_id, Label.position)
    )
    revised = retracted = towards = away = 0
    for (case_id, _), rows in groupby(session.execute(chains), key=lambda row: (row.case_id, row.annotator_id)):
        chain = list(rows)
        before = [row.class_code for row in chain if row.blind and row.kind != "retraction"]
        if case_id not in row_of or not before or not chain[-1].post_reveal:
            continue
        leading, after = _leading(columns, row_of[case_id]), chain[-1].class_code
        retracted += after is None
        revised += after is not None
        towards += before[-1] != leading and after in {None, leading}
        away += before[-1] == leading and after != leading
    return AfterRevealOut(
        n_labels=int(columns.n_labels.sum()),
        n_revised=revised,
        n_retracted=retracted,
        towards_prediction=towards,
        away_from_prediction=away,
    )


def _leading(columns: Columns, row: int) -> str:
    """The most probable class of a case."""
    return columns.classes[int(np.argmax(columns.class_probs[row]))]
