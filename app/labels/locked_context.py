"""Load and lock everything that a label submission needs."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, bindparam, exists, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

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
)
from app.http.errors import NotFound
from app.labels.queries import REQUEST_KINDS, AnyRequest
from app.predictions.service import champion_first_order
from app.releases.service import cached_release_classes


@dataclass(frozen=True)
class LockedCaseContext:
    """A locked case with what its labels are judged by, resolved once; plain rows."""

    # locked, so that its labels come one after the other
    case: Case
    # the one that is shown
    prediction: CasePrediction
    # K codes of the prediction's release
    classes: list[str]
    policy: PolicyRow
    # which model of the annotators is in use; None while nobody has ever switched
    reader_model: ReaderModelInUse | None


_CONTEXT_PARTS = JoinedRows(Case, CasePrediction, PolicyRow, ReaderModelInUse)


def _with_context(statement: Select[Any]) -> Select[Any]:
    """A statement about one case that selects its ``LockedCaseContext`` too."""
    newest = select(func.max(PolicyRow.version)).scalar_subquery()
    return (
        statement.add_columns(*_CONTEXT_PARTS.columns)
        .outerjoin(CasePrediction, CasePrediction.case_id == Case.id)
        .join(PolicyRow, PolicyRow.version == newest)
        .outerjoin(ReaderModelInUse, ReaderModelInUse.id == SWITCH_ROW_ID)
        .order_by(*champion_first_order())
        .limit(1)
    )


def _context_from_row(session: Session, columns: Sequence[Any]) -> LockedCaseContext:
    """Build the context from the columns of ``_with_context``."""
    case, prediction, policy, reader_model = _CONTEXT_PARTS.rows(columns)
    if prediction is None:
        raise NotFound("the case has no prediction")
    classes = [class_info.code for class_info in cached_release_classes(session, prediction.release_id)]
    return LockedCaseContext(case, prediction, classes, policy, reader_model)


@dataclass(frozen=True)
class LockedLease:
    """A read with what asked for it, both locked, its annotator, and the case if it was locked as well; plain rows."""

    read: Read
    request: AnyRequest
    annotator: Annotator
    case: LockedCaseContext | None


# the same for reads and repeats, so that the time of an answer does not tell a repeat
_KIND_OF_READ = PreparedStatement(
    select(Read.repeat_id)
    .join(Annotator, Annotator.id == Read.annotator_id)
    .where(Read.id == bindparam("read_id"), Annotator.account_id == bindparam("account_id"))
)


def _lease_statement(
    requests: type[AnyRequest], request_id: InstrumentedAttribute[uuid.UUID | None], *, case: bool
) -> Select[Any]:
    statement: Select[Any] = (
        select(*_LEASE_PARTS[requests].columns)
        .select_from(requests)
        .join(Read, request_id == requests.id)
        .join(Annotator, Annotator.id == Read.annotator_id)
        .where(Read.id == bindparam("read_id"))
    )
    # the read too: what waited for its request must see what became of both
    locked = [table_of(requests), table_of(Read)]
    if case:
        # no case before a further request: an answer to a read that has run out may lock another one of it
        statement = _with_context(statement.join(Case, Case.id == Read.case_id).where(Read.state == LEASED))
        locked.append(table_of(Case))
    return statement.with_for_update(of=locked)


_LEASE_PARTS = {requests: JoinedRows(Read, requests, Annotator) for requests, _ in REQUEST_KINDS}
_LEASES = {
    (requests, case): PreparedStatement(_lease_statement(requests, request_id, case=case))
    for requests, request_id in REQUEST_KINDS
    for case in (False, True)
}


def lock_lease(session: Session, account_id: uuid.UUID, read_id: uuid.UUID, *, case: bool) -> LockedLease:
    """A read of an account's annotator as it is now, locked with its request, and with its case if it is leased."""
    kind = _KIND_OF_READ.first(session, {"read_id": read_id, "account_id": account_id})
    if kind is None:
        raise NotFound("there is no such read")
    requests = ReadRequest if kind[0] is None else Repeat
    row = _LEASES[requests, case].first(session, {"read_id": read_id})
    if row is None and case:  # not leased any more
        case, row = False, _LEASES[requests, False].first(session, {"read_id": read_id})
    if row is None:
        raise NotFound("there is no such read")
    parts = _LEASE_PARTS[requests]
    read, request, annotator = parts.rows(row)
    return LockedLease(read, request, annotator, _context_from_row(session, row[parts.end :]) if case else None)


_CASE = PreparedStatement(
    _with_context(select().select_from(Case).where(Case.id == bindparam("case_id")).with_for_update(of=table_of(Case)))
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

    # every row of the case's labels for one purpose, oldest first; plain rows, without their remarks
    history: list[NamedLabel]
    # of the case, in order; plain rows
    requests: list[ReadRequest]
    # whether somebody may still correct their label of the case
    unsettled: bool
    # whether the annotator has answers to other cases that come closer to their end by this one
    leaves_others: bool


_FACT_PARTS = JoinedRows(ReadRequest, Label)
_FACTS = PreparedStatement(
    select(
        *_FACT_PARTS.columns,
        Annotator.name,
        exists().where(ProvisionalLabel.case_id == Case.id, ProvisionalLabel.purpose == "read"),
        exists().where(
            ProvisionalLabel.annotator_id == bindparam("annotator_id"), ProvisionalLabel.case_id != bindparam("case_id")
        ),
    )
    .select_from(Case)
    # each label with each request: a case has few of both
    .outerjoin(ReadRequest, ReadRequest.case_id == Case.id)
    .outerjoin(Label, and_(Label.case_id == Case.id, Label.purpose == bindparam("purpose")))
    .outerjoin(Annotator, Annotator.id == Label.annotator_id)
    .where(Case.id == bindparam("case_id"))
    .order_by(ReadRequest.ordinal, Label.id)
)


def load_case_history(
    session: Session, case_id: uuid.UUID, annotator_id: uuid.UUID, purpose: str = "read"
) -> CaseHistory:
    """Load what a new label for a purpose and its consequences depend on; the case must be locked."""
    rows = _FACTS.all(session, {"case_id": case_id, "annotator_id": annotator_id, "purpose": purpose})
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
