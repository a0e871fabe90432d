"""Database queries of evaluations: labels that may judge or fit, and case names."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from sqlalchemy import ARRAY, ColumnElement, Select, Uuid, and_, exists, func, literal, or_, select
from sqlalchemy.orm import Session, aliased

from app.cases.service import is_provisional
from app.database.tables import Annotator, Case, CountedLabel, ReadRequest
from app.metrics.cohort import Cohort, cluster_name

# identifiers in one IN (…); SQLite takes 32,766 variables
_CHUNK = 10_000


@dataclass(frozen=True)
class LabelRow:
    """One label that counts."""

    case_id: uuid.UUID
    # name of who labelled it
    annotator: str
    # what they called it
    class_code: str
    # they are known to an outside system only
    outside: bool
    # number of the request of the case that the label's chain answers, 1 for the first; None for a label that nobody
    # asked for
    ordinal: int | None
    round: str
    # when the label's chain began
    answered_at: datetime
    # when an outside annotator gave it; None where that is not known
    given_at: datetime | None = None


def blind_labels(rounds: tuple[str, ...] = ("planned",)) -> Select[*tuple[Any, ...]]:
    """Select labels that may judge or fit: blind, final, in time, not retracted, the last of a chain."""
    # What an annotator did after they had been shown anything of the case changes nothing: neither a revision nor a
    # retraction. Else those who disagree with the prediction could leave, and take their disagreement with them.
    later, first = aliased(CountedLabel), aliased(CountedLabel)
    overruled = exists().where(
        later.case_id == CountedLabel.case_id,
        later.annotator_id == CountedLabel.annotator_id,
        later.position > CountedLabel.position,
        later.post_reveal.is_(False),
        or_(later.blind.is_(True), later.kind == "retraction"),
    )
    begins_chain = and_(
        first.case_id == CountedLabel.case_id,
        first.annotator_id == CountedLabel.annotator_id,
        first.supersedes_id.is_(None),
    )
    outside = Annotator.account_id.is_(None)
    return (
        select(
            CountedLabel.case_id,
            Annotator.name,
            CountedLabel.class_code,
            outside,
            ReadRequest.ordinal,
            CountedLabel.round,
            first.created_at,
            CountedLabel.given_at,
        )
        .join(Annotator, Annotator.id == CountedLabel.annotator_id)
        .join(first, begins_chain)
        .outerjoin(ReadRequest, ReadRequest.label_id == first.id)
        .where(
            CountedLabel.blind.is_(True),
            CountedLabel.late.is_(False),
            CountedLabel.kind != "retraction",
            CountedLabel.round.in_(rounds),
            ~overruled,
            ~is_provisional(CountedLabel.case_id, CountedLabel.annotator_id),
        )
        .order_by(CountedLabel.case_id, CountedLabel.id)
    )


def label_rows(session: Session, wanted: Select[*tuple[Any, ...]], case_ids: list[uuid.UUID] | None) -> list[LabelRow]:
    """Rows of ``blind_labels`` of some cases, or of all."""
    return [LabelRow(*row) for row in _in_chunks(session, wanted, CountedLabel.case_id, case_ids)]


def used_by(cohort: Cohort) -> Callable[[LabelRow], bool]:
    """Whether estimates of a cohort use a label: weighted, those of a case of order 2, else a first read's answer."""
    first, second, ids = cohort.weight, cohort.weight2, cohort.columns.ids()
    if first is None or second is None:
        every = set(ids)
        return lambda label: label.case_id in every
    one, two = ({ids[row] for row in np.flatnonzero(weight > 0)} for weight in (first, second))
    return lambda label: label.case_id in two or (label.case_id in one and label.ordinal == 1 and not label.outside)


def _in_chunks(
    session: Session, wanted: Select[*tuple[Any, ...]], column: Any, ids: list[uuid.UUID] | None
) -> Iterable[Any]:
    if ids is None:
        yield from session.execute(wanted).yield_per(_CHUNK)
        return
    for start in range(0, len(ids), _CHUNK):
        yield from session.execute(wanted.where(match_any_id(session, column, ids[start : start + _CHUNK])))


def match_any_id(session: Session, column: Any, ids: list[uuid.UUID]) -> ColumnElement[bool]:
    """SQL condition that a column has one of these identifiers, as one array parameter where possible."""
    as_array = session.get_bind().dialect.name == "postgresql"
    condition: ColumnElement[bool] = column == func.any(literal(ids, ARRAY(Uuid))) if as_array else column.in_(ids)
    return condition


@dataclass(frozen=True)
class CaseName:
    """External id, patient, cluster name and site of a case; the site is empty if not recorded."""

    external_id: str
    patient: str | None
    cluster: str
    site: str


def case_names(session: Session, case_ids: list[uuid.UUID]) -> dict[uuid.UUID, CaseName]:
    """Read the names of cases."""
    first = aliased(Case)
    query = select(Case.id, Case.external_id, Case.site, Case.patient, first.id, first.patient).outerjoin(
        first, first.id == Case.same_image_as
    )
    return {
        case_id: CaseName(external_id, patient, cluster_name(case_id, patient, first_id, first_patient), site or "")
        for case_id, external_id, site, patient, first_id, first_patient in _in_chunks(
            session, query, Case.id, case_ids
        )
    }


def stored_images(session: Session, case_ids: list[uuid.UUID]) -> dict[uuid.UUID, tuple[str | None, str | None]]:
    """Names in the image store of each case's image and field, None where there is none or the patient was erased."""
    query = select(Case.id, Case.stored_sha256, Case.stored_field_sha256, Case.erased_at)
    rows = _in_chunks(session, query, Case.id, case_ids)
    return {row[0]: (row[1], row[2]) if row[3] is None else (None, None) for row in rows}
