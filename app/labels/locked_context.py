"""Load and lock everything that a label submission needs."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, bindparam, exists, func, or_, select
from sqlalchemy.orm import Session

from app.annotators.models.service import SWITCH_ROW_ID
from app.audit.chain.detached_rows import JoinedRows, table_of
from app.cases.service import NamedLabel
from app.database.sql.compiled_statements import PreparedStatement
from app.database.tables import (
    LEASED,
    Annotator,
    Case,
    CasePrediction,
    Label,
    PolicyRow,
    ProvisionalLabel,
    Read,
    ReaderModelInUse,
    ReadRequest,
    Repeat,
    RepeatRead,
    time_of,
)
from app.http.errors import NotFound
from app.labels.queries import AnyRead, AnyRequest
from app.predictions.service import champion_first_order
from app.releases.service import cached_release_classes


@dataclass(frozen=True)
class LockedCase:
    """A locked case with the classes that it can be given; plain rows."""

    # locked, so that its labels come one after the other
    case: Case
    # the one that is shown
    prediction: CasePrediction
    # K codes of the prediction's release
    classes: list[str]


@dataclass(frozen=True)
class LockedCaseContext(LockedCase):
    """A locked case with what its labels are judged by, resolved once."""

    policy: PolicyRow
    # which model of the annotators is in use; None while nobody has ever switched
    reader_model: ReaderModelInUse | None


_CASE_PARTS = JoinedRows(Case, CasePrediction)
_JUDGING_PARTS = JoinedRows(PolicyRow, ReaderModelInUse)


def _with_prediction(statement: Select[Any]) -> Select[Any]:
    """A statement about one case that selects what stands in ``LockedCase`` too."""
    return (
        statement.add_columns(*_CASE_PARTS.columns)
        .outerjoin(CasePrediction, CasePrediction.case_id == Case.id)
        .order_by(*champion_first_order())
        .limit(1)
    )


def _with_policy_and_model(statement: Select[Any]) -> Select[Any]:
    """A statement with what stands in ``LockedCase`` that selects the rest of ``LockedCaseContext``."""
    newest = select(func.max(PolicyRow.version)).scalar_subquery()
    return (
        statement.add_columns(*_JUDGING_PARTS.columns)
        .join(PolicyRow, PolicyRow.version == newest)
        .outerjoin(ReaderModelInUse, ReaderModelInUse.id == SWITCH_ROW_ID)
    )


def _locked_case_from_row(session: Session, columns: Sequence[Any]) -> LockedCase:
    """Build a locked case from the columns of ``_with_prediction``."""
    case, prediction = _CASE_PARTS.rows(columns)
    if prediction is None:
        raise NotFound("the case has no prediction")
    return LockedCase(
        case, prediction, [class_info.code for class_info in cached_release_classes(session, prediction.release_id)]
    )


def _context_from_row(session: Session, columns: Sequence[Any]) -> LockedCaseContext:
    """Build the context from these columns and those of ``_with_policy_and_model``."""
    locked = _locked_case_from_row(session, columns)
    policy, reader_model = _JUDGING_PARTS.rows(columns[_CASE_PARTS.end :])
    return LockedCaseContext(locked.case, locked.prediction, locked.classes, policy, reader_model)


@dataclass(frozen=True)
class LockedLease:
    """A read with its request, both locked, its annotator, and the case where it was locked as well; plain rows."""

    # Nothing is judged by the answer to a repeat: of that there is no ``LockedCaseContext``.

    read: AnyRead
    request: AnyRequest
    annotator: Annotator
    case: LockedCase | None


def _lease_statement(
    requests: type[ReadRequest | Repeat], reads: type[Read | RepeatRead], *, case: bool
) -> Select[Any]:
    statement: Select[Any] = (
        select(*JoinedRows(reads, requests, Annotator).columns)
        .select_from(requests)
        .join(reads, reads.request_id == requests.id)
        .join(Annotator, Annotator.id == reads.annotator_id)
        .where(reads.id == bindparam("read_id"), Annotator.account_id == bindparam("account_id"))
    )
    # the read too: what waited for its request must see what became of both
    locked = [table_of(requests), table_of(reads)]
    if case:
        # no case before a further request: an answer to a read that has run out may lock another one of it
        statement = _with_prediction(statement.join(Case, Case.id == reads.case_id).where(reads.state == LEASED))
        statement = _with_policy_and_model(statement) if reads is Read else statement
        locked.append(table_of(Case))
    return statement.with_for_update(of=locked)


_KINDS: tuple[tuple[type[ReadRequest | Repeat], type[Read | RepeatRead]], ...] = (
    (ReadRequest, Read),
    (Repeat, RepeatRead),
)
_LEASES = {case: [PreparedStatement(_lease_statement(*kind, case=case)) for kind in _KINDS] for case in (False, True)}
_LEASE_PARTS = [JoinedRows(reads, requests, Annotator) for requests, reads in _KINDS]


def lock_lease(session: Session, account_id: uuid.UUID, read_id: uuid.UUID, *, case: bool) -> LockedLease:
    """A read of the annotator of an account, as it is now, locked with its request."""
    # Both kinds are looked for, whichever it is: else the time of an answer would tell a repeat.
    which = {"read_id": read_id, "account_id": account_id}
    rows = [statement.first(session, which) for statement in _LEASES[case]]
    for row, parts in zip(rows, _LEASE_PARTS, strict=True):
        if row is not None:
            read, request, annotator = parts.rows(row)
            of_case = _context_from_row if isinstance(read, Read) else _locked_case_from_row
            return LockedLease(read, request, annotator, of_case(session, row[parts.end :]) if case else None)
    if case:
        return lock_lease(session, account_id, read_id, case=False)
    raise NotFound("there is no such read")


_CASE = PreparedStatement(
    _with_policy_and_model(
        _with_prediction(
            select().select_from(Case).where(Case.id == bindparam("case_id")).with_for_update(of=table_of(Case))
        )
    )
)


def lock_case_context(session: Session, case_id: uuid.UUID) -> LockedCaseContext:
    """Lock a case against concurrent labels."""
    row = _CASE.first(session, {"case_id": case_id})
    if row is None:
        raise NotFound("there is no such case")
    return _context_from_row(session, row)


@dataclass(frozen=True)
class CaseHistory:
    """History of a case that a new label and its consequences depend on, from one statement."""

    # every label row of the case, oldest first; plain rows, without their remarks
    history: list[NamedLabel]
    # of the case, in order; plain rows
    requests: list[ReadRequest]
    # whether somebody may still correct their label of the case
    unsettled: bool
    # whether the annotator has answers to other cases that come closer to their end by this one
    leaves_others: bool


_OTHERS = (
    exists().where(
        ProvisionalLabel.annotator_id == bindparam("annotator_id"), ProvisionalLabel.case_id != bindparam("case_id")
    ),
    # asked together, so that whether there is a repeat among one's answers is not told by the time of the next one
    exists().where(
        Repeat.annotator_id == bindparam("annotator_id"),
        Repeat.case_id != bindparam("case_id"),
        Repeat.final_at > bindparam("time"),
    ),
)
_FACT_PARTS = JoinedRows(ReadRequest, Label)
_FACTS = PreparedStatement(
    select(
        *_FACT_PARTS.columns,
        Annotator.name,
        exists().where(ProvisionalLabel.case_id == Case.id),
        or_(*_OTHERS),
    )
    .select_from(Case)
    # each label with each request: a case has few of both
    .outerjoin(ReadRequest, ReadRequest.case_id == Case.id)
    .outerjoin(Label, Label.case_id == Case.id)
    .outerjoin(Annotator, Annotator.id == Label.annotator_id)
    .where(Case.id == bindparam("case_id"))
    .order_by(ReadRequest.ordinal, Label.id)
)


def load_case_history(session: Session, case_id: uuid.UUID, annotator_id: uuid.UUID) -> CaseHistory:
    """Load what a new label and its consequences depend on; the case must be locked."""
    rows = _FACTS.all(session, {"case_id": case_id, "annotator_id": annotator_id, "time": time_of(session)})
    requests: dict[uuid.UUID, ReadRequest] = {}
    history: dict[uuid.UUID, NamedLabel] = {}
    for row in rows:
        request, label = _FACT_PARTS.rows(row)
        if request is not None:
            requests[request.id] = request
        if label is not None:
            history[label.id] = NamedLabel(label, row[_FACT_PARTS.end])
    unsettled, leaves_others = rows[0][_FACT_PARTS.end + 1 :]
    return CaseHistory([*history.values()], [*requests.values()], bool(unsettled), bool(leaves_others))
