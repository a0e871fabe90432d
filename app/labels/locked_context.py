"""Load and lock everything that a label submission needs."""

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, exists, func, select
from sqlalchemy.orm import Session

from app.annotators.models.service import SWITCH_ROW_ID
from app.cases.service import NamedLabel
from app.database.tables import (
    LEASED,
    Annotator,
    BaseTable,
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
    """A locked case with what its labels are judged by, resolved once."""

    # locked, so that its labels come one after the other
    case: Case
    # the one that is shown
    prediction: CasePrediction
    # K codes of the prediction's release
    classes: list[str]
    policy: PolicyRow
    # which model of the annotators is in use; None while nobody has ever switched
    reader_model: ReaderModelInUse | None


def _with_context(statement: Select[Any]) -> Select[Any]:
    """A statement about one case that selects its ``LockedCaseContext`` too."""
    newest = select(func.max(PolicyRow.version)).scalar_subquery()
    return (
        statement.add_columns(Case, CasePrediction, PolicyRow, ReaderModelInUse)
        .outerjoin(CasePrediction, CasePrediction.case_id == Case.id)
        .join(PolicyRow, PolicyRow.version == newest)
        .outerjoin(ReaderModelInUse, ReaderModelInUse.id == SWITCH_ROW_ID)
        .order_by(*champion_first_order())
        .limit(1)
    )


def _build_context(
    session: Session,
    case: Case,
    prediction: CasePrediction | None,
    policy: PolicyRow,
    reader_model: ReaderModelInUse | None,
) -> LockedCaseContext:
    """Build the context from the entities of ``_with_context``."""
    if prediction is None:
        raise NotFound("the case has no prediction")
    classes = [class_info.code for class_info in cached_release_classes(session, prediction.release_id)]
    return LockedCaseContext(case, prediction, classes, policy, reader_model)


@dataclass(frozen=True)
class LockedLease:
    """A read with what asked for it, both locked, its annotator, and the case if it was locked as well."""

    read: Read
    request: AnyRequest
    annotator: Annotator
    case: LockedCaseContext | None


def _lease_statement(requests: type[AnyRequest], read_id: uuid.UUID, *, case: bool) -> Select[Any]:
    request_id = dict(REQUEST_KINDS)[requests]
    statement: Select[Any] = (
        select()
        .add_columns(Read, requests, Annotator)
        .select_from(requests)
        .join(Read, request_id == requests.id)
        .join(Annotator, Annotator.id == Read.annotator_id)
        .where(Read.id == read_id)
        .execution_options(populate_existing=True)
    )
    # the read too: what waited for its request must see what became of both
    locked: list[type[BaseTable]] = [requests, Read]
    if case:
        # no case before a further request: an answer to a read that has run out may lock another one of it
        statement = _with_context(statement.join(Case, Case.id == Read.case_id).where(Read.state == LEASED))
        locked.append(Case)
    return statement.with_for_update(of=locked)


def lock_lease(session: Session, account_id: uuid.UUID, read_id: uuid.UUID, *, case: bool) -> LockedLease:
    """A read of an account's annotator as it is now, locked with its request, and with its case if it is leased."""
    # the same statements for reads and repeats, so that the time of an answer does not tell a repeat
    own = select(Read.repeat_id).join(Annotator, Annotator.id == Read.annotator_id)
    kind = session.execute(own.where(Read.id == read_id, Annotator.account_id == account_id)).first()
    if kind is None:
        raise NotFound("there is no such read")
    requests = ReadRequest if kind.repeat_id is None else Repeat
    row = session.execute(_lease_statement(requests, read_id, case=case)).first()
    if row is None and case:  # not leased any more
        return lock_lease(session, account_id, read_id, case=False)
    if row is None:
        raise NotFound("there is no such read")
    read, request, annotator, *context = row
    return LockedLease(read, request, annotator, _build_context(session, *context) if case else None)


def lock_case_context(session: Session, case_id: uuid.UUID) -> LockedCaseContext:
    """Lock a case against concurrent labels."""
    statement = _with_context(select().select_from(Case).where(Case.id == case_id)).with_for_update(of=Case)
    row = session.execute(statement.execution_options(populate_existing=True)).first()
    if row is None:
        raise NotFound("there is no such case")
    return _build_context(session, *row)


@dataclass(frozen=True)
class CaseHistory:
    """History of a case that a new label and its consequences depend on, from one statement."""

    # every row of the case's labels for one purpose, oldest first
    history: list[NamedLabel]
    # of the case, in order
    requests: list[ReadRequest]
    # whether somebody may still correct their label of the case
    unsettled: bool
    # whether the annotator has answers to other cases that come closer to their end by this one
    leaves_others: bool


def load_case_history(
    session: Session, case_id: uuid.UUID, annotator_id: uuid.UUID, purpose: str = "read"
) -> CaseHistory:
    """Load what a new label for a purpose and its consequences depend on; the case must be locked."""
    others = (ProvisionalLabel.annotator_id == annotator_id, ProvisionalLabel.case_id != case_id)
    statement = (
        select(
            ReadRequest,
            Label,
            Annotator.name,
            exists().where(ProvisionalLabel.case_id == case_id, ProvisionalLabel.purpose == "read"),
            exists().where(*others),
        )
        .select_from(Case)
        # each label with each request: a case has few of both
        .outerjoin(ReadRequest, ReadRequest.case_id == Case.id)
        .outerjoin(Label, and_(Label.case_id == Case.id, Label.purpose == purpose))
        .outerjoin(Annotator, Annotator.id == Label.annotator_id)
        .where(Case.id == case_id)
        .order_by(ReadRequest.ordinal, Label.id)
        .execution_options(populate_existing=True)
    )
    rows = session.execute(statement).all()
    requests: dict[uuid.UUID, ReadRequest] = {}
    history: dict[uuid.UUID, NamedLabel] = {}
    for request, label, annotator, *_ in rows:
        if request is not None:
            requests[request.id] = request
        if label is not None:
            history[label.id] = NamedLabel(label, annotator)
    unsettled, leaves_others = rows[0][3:]
    return CaseHistory([*history.values()], [*requests.values()], unsettled, leaves_others)
