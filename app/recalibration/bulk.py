"""Many predictions of old cases, stored and placed by few statements."""

import json
import math
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import case, func, select, text, update
from sqlalchemy.orm import Session

from app.audit.chain.change_tracking import note_rows
from app.database.engine import insert_new
from app.database.tables import Case, CasePrediction
from app.predictions.stored import PredictionValues

_COLUMNS = ", ".join(column.name for column in CasePrediction.__table__.columns)
# one parameter for all rows: a statement with one for each value is written, and parsed, anew for every chunk
_INSERTION = text(
    f"INSERT INTO predictions ({_COLUMNS}) SELECT {_COLUMNS} "  # noqa: S608  names of columns
    "FROM json_populate_recordset(CAST(NULL AS predictions), CAST(:rows AS json)) ON CONFLICT DO NOTHING RETURNING id"
)


def insert_predictions(session: Session, rows: Sequence[PredictionValues]) -> set[uuid.UUID]:
    """Insert predictions that nobody else has inserted meanwhile, and note them; waits for whoever is about to.

    Args:
        session: for writing. On SQLite it is the only one, and has looked which rows are not there.
        rows: all columns of each.

    Returns:
        Identifiers of those that are new.
    """
    if session.get_bind().dialect.name != "postgresql":
        return insert_new(session, CasePrediction, rows)
    document = json.dumps([{name: _as_text(value) for name, value in row.items()} for row in rows])
    new = {uuid.UUID(str(row[0])) for row in session.execute(_INSERTION, {"rows": document})}
    note_rows(session, CasePrediction, [row for row in rows if row["id"] in new])
    return new


def _as_text(value: Any) -> Any:
    """A value as JSON, or as text that PostgreSQL reads back to the same value of the column."""
    write = _TEXTS.get(type(value))
    return value if write is None else write(value)


_TEXTS: dict[type, Callable[[Any], Any]] = {
    float: lambda value: value if math.isfinite(value) else str(value),
    uuid.UUID: str,
    datetime: datetime.isoformat,
    bytes: lambda value: "\\x" + value.hex(),
}


def place_cases(session: Session, release_id: uuid.UUID, first: uuid.UUID, last: uuid.UUID) -> None:
    """Set the places of waiting cases in the worklist by the predictions of a release.

    Args:
        session: for writing.
        release_id: of the release that is served.
        first: lowest case.
        last: highest case.
    """
    here = Case.id.between(first, last)
    # in one order: two jobs that place the same cases must not wait for each other
    session.execute(select(func.count()).select_from(_locked(first, last)))
    # below 0: a near-duplicate of an earlier case, which comes after all that are none
    need = CasePrediction.disagreement_prob - case((Case.need < 0, 1.0), else_=0.0)
    of_release = (CasePrediction.case_id == Case.id) & (CasePrediction.release_id == release_id)
    moved = update(Case).where(here, Case.waiting, of_release, Case.need != need).values(need=need)
    session.execute(moved.execution_options(synchronize_session=False))


def _locked(first: uuid.UUID, last: uuid.UUID) -> Any:
    rows = select(Case.id).where(Case.id.between(first, last), Case.waiting).order_by(Case.id)
    return rows.with_for_update(key_share=True).subquery()
