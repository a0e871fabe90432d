"""Database access of evaluations: the labels that may judge or fit, and what cases are called."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, exists, or_, select
from sqlalchemy.orm import Session, aliased

from app.cases.provisional import is_provisional
from app.tables import Annotator, Case, Label

# identifiers in one IN (…); SQLite takes 32,766 variables
_CHUNK = 10_000


@dataclass(frozen=True)
class LabelRow:
    """One label that counts."""

    case_id: uuid.UUID
    annotator: str
    class_code: str
    outside: bool


def blind_labels(rounds: tuple[str, ...] = ("planned",)) -> Select[*tuple[Any, ...]]:
    """Labels that may judge or fit: blind, final, in time, of the rounds, not retracted; of a chain the last blind one.

    Args:
        rounds: ``planned`` for evaluations; fits of the likelihood take adjudications too.
    """
    later = aliased(Label)
    overruled = exists().where(
        later.case_id == Label.case_id,
        later.annotator_id == Label.annotator_id,
        later.position > Label.position,
        or_(later.blind.is_(True), later.kind == "retraction"),
    )
    return (
        select(Label.case_id, Annotator.name, Label.class_code, Annotator.account_id.is_(None))
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(
            Label.blind.is_(True),
            Label.late.is_(False),
            Label.kind != "retraction",
            Label.round.in_(rounds),
            ~overruled,
            ~is_provisional(Label.case_id, Label.annotator_id),
        )
        .order_by(Label.case_id, Label.id)
    )


def label_rows(session: Session, wanted: Select[*tuple[Any, ...]], case_ids: list[uuid.UUID] | None) -> list[LabelRow]:
    """Rows of ``blind_labels`` of some cases, or of all."""
    return [LabelRow(*row) for row in _in_chunks(session, wanted, Label.case_id, case_ids)]


def _in_chunks(
    session: Session, wanted: Select[*tuple[Any, ...]], column: Any, ids: list[uuid.UUID] | None
) -> Iterable[Any]:
    if ids is None:
        yield from session.execute(wanted).yield_per(_CHUNK)
        return
    for start in range(0, len(ids), _CHUNK):
        yield from session.execute(wanted.where(column.in_(ids[start : start + _CHUNK])))


def external_ids(session: Session, case_ids: list[uuid.UUID]) -> dict[uuid.UUID, tuple[str, str | None, str | None]]:
    """External id, patient and site of cases."""
    wanted = select(Case.id, Case.external_id, Case.patient, Case.site)
    return {row[0]: (row[1], row[2], row[3]) for row in _in_chunks(session, wanted, Case.id, case_ids)}


def stored_images(session: Session, case_ids: list[uuid.UUID]) -> dict[uuid.UUID, str | None]:
    """Name in the image store of each case's image, None where the patient was erased."""
    wanted = select(Case.id, Case.stored_sha256, Case.erased_at)
    return {row[0]: row[1] if row[2] is None else None for row in _in_chunks(session, wanted, Case.id, case_ids)}
