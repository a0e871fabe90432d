"""Leases of reads: claim, extend, release and decline; and what an answer to a lease locks."""

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import BindParameter, Select, and_, bindparam, exists, func, select
from sqlalchemy.orm import Session

from app.accounts.service import account_sees_more, annotator_of_account, locked_annotator, read_own_annotator
from app.annotators.models.service import SWITCH_ROW_ID
from app.audit.chain import events
from app.audit.chain.covered_rows import update_columns, update_row
from app.cases.service import NamedLabel, advance_other_windows
from app.context import ServiceContext
from app.database.engine import Database
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
    Remark,
    Repeat,
    time_of,
)
from app.http.errors import Conflict, Forbidden, NotFound
from app.http.models import ClassOut
from app.http.principal import Principal
from app.labels import queries
from app.labels.queries import REQUEST_KINDS, AnyRequest
from app.labels.queue import next_request
from app.labels.repeats import maybe_schedule_repeat, some_hours_after
from app.labels.schemas import DeclineIn, ReadOut
from app.predictions.service import champion_first_order
from app.releases.service import cached_release_classes, reading_classes
from app.triage.service import current_policy, refresh_waiting, require_qualified
from ml.messages import Term


class AlreadyLabelled(Conflict):
    """An annotator labels a case twice."""

    code, title = "already-labelled", "Already labelled"


class LabelSuperseded(Conflict):
    """The label is no longer the last of its chain."""

    code, title = "superseded", "Label superseded"


class LeaseLost(Conflict):
    """The lease ended, and somebody else has the read or it is closed."""

    code, title = "lease-lost", "Assignment expired"


class LabelFinal(Conflict):
    """The time for blind corrections of an answer is over, or there is no answer."""

    code, title = "label-final", "Label final"


class TooManyLeases(Conflict):
    """An annotator leases more cases than they read just now and next."""

    code, title = "too-many-leases", "Too many assigned cells"


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


def _with_contexts(statement: Select[Any]) -> Select[Any]:
    """A statement about cases that selects their ``LockedCaseContext`` too, with every prediction of each."""
    newest = select(func.max(PolicyRow.version)).scalar_subquery()
    return (
        statement.add_columns(Case, CasePrediction, PolicyRow, ReaderModelInUse)
        .outerjoin(CasePrediction, CasePrediction.case_id == Case.id)
        .join(PolicyRow, PolicyRow.version == newest)
        .outerjoin(ReaderModelInUse, ReaderModelInUse.id == SWITCH_ROW_ID)
    )


def _with_context(statement: Select[Any]) -> Select[Any]:
    """A statement about one case that selects its ``LockedCaseContext`` too."""
    return _with_contexts(statement).order_by(*champion_first_order()).limit(1)


def _build_context(
    session: Session,
    case: Case,
    prediction: CasePrediction | None,
    policy: PolicyRow,
    reader_model: ReaderModelInUse | None,
) -> LockedCaseContext:
    if prediction is None:
        raise NotFound("the cell has no prediction")
    classes = [class_info.code for class_info in cached_release_classes(session, prediction.release_id)]
    return LockedCaseContext(case, prediction, classes, policy, reader_model)


@dataclass(frozen=True)
class LockedLease:
    """A read with what asked for it, both locked, its annotator, and the case if it was locked as well."""

    read: Read
    request: AnyRequest
    annotator: Annotator
    case: LockedCaseContext | None


@cache
def _lease_statement(requests: type[AnyRequest], *, case: bool) -> Select[Any]:
    request_id = dict(REQUEST_KINDS)[requests]
    statement: Select[Any] = (
        select()
        .add_columns(Read, requests, Annotator)
        .select_from(requests)
        .join(Read, request_id == requests.id)
        .join(Annotator, Annotator.id == Read.annotator_id)
        .where(Read.id == bindparam("read_id"))
        .execution_options(populate_existing=True)
    )
    # the read too: what waited for its request must see what became of both
    locked: list[type[BaseTable]] = [requests, Read]
    if case:
        # no case before a further request: an answer to a read that has run out may lock another one of it
        statement = _with_context(statement.join(Case, Case.id == Read.case_id).where(Read.state == LEASED))
        locked.append(Case)
    return statement.with_for_update(of=locked)


_KIND_OF_OWN_READ = (
    select(Read.repeat_id)
    .join(Annotator, Annotator.id == Read.annotator_id)
    .where(Read.id == bindparam("read_id"), Annotator.account_id == bindparam("account_id"))
)


def lock_lease(session: Session, account_id: uuid.UUID, read_id: uuid.UUID, *, case: bool) -> LockedLease:
    """A read of an account's annotator as it is now, locked with its request, and with its case if it is leased."""
    # the same statements for reads and repeats, so that the time of an answer does not tell a repeat
    kind = session.execute(_KIND_OF_OWN_READ, {"read_id": read_id, "account_id": account_id}).first()
    if kind is None:
        raise NotFound("there is no such read")
    requests = ReadRequest if kind.repeat_id is None else Repeat
    row = session.execute(_lease_statement(requests, case=case), {"read_id": read_id}).first()
    if row is None and case:  # not leased any more
        return lock_lease(session, account_id, read_id, case=False)
    if row is None:
        raise NotFound("there is no such read")
    read, request, annotator, *context = row
    return LockedLease(read, request, annotator, _build_context(session, *context) if case else None)


_CASE_WITH_CONTEXT = (
    _with_context(select().select_from(Case).where(Case.id == bindparam("case_id")))
    .with_for_update(of=Case)
    .execution_options(populate_existing=True)
)


class LockedCases:
    """Cases locked together for labels of outside annotators, with their history, loaded by a few statements."""

    def __init__(self, session: Session, external_ids: Collection[str]) -> None:
        # in the order of everybody who locks several
        statement = _with_contexts(select().select_from(Case).where(Case.external_id.in_(external_ids)))
        locked = statement.order_by(Case.id, *champion_first_order()).with_for_update(of=Case)
        self._contexts: dict[str, tuple[Case, CasePrediction | None, PolicyRow, ReaderModelInUse | None]] = {}
        for row in session.execute(locked.execution_options(populate_existing=True)):
            self._contexts.setdefault(row[0].external_id, row)
        #: Outside annotators by the names of labels so far.
        self.annotators: dict[str, Annotator] = {}
        #: History of each case, to be continued with every label that is stored.
        self.history = _load_histories(session, [context[0].id for context in self._contexts.values()])

    def case(self, external_id: str) -> Case | None:
        """Find a case."""
        return self._contexts[external_id][0] if external_id in self._contexts else None

    def context(self, session: Session, case: Case) -> LockedCaseContext:
        """What the labels of a case are judged by."""
        return _build_context(session, *self._contexts[case.external_id])


def lock_case_context(session: Session, case_id: uuid.UUID) -> LockedCaseContext:
    """Lock a case against concurrent labels."""
    row = session.execute(_CASE_WITH_CONTEXT, {"case_id": case_id}).first()
    if row is None:
        raise NotFound("there is no such cell")
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


def _history_statement() -> Select[Any]:
    case_id: BindParameter[uuid.UUID] = bindparam("case_id")
    others = (ProvisionalLabel.annotator_id == bindparam("annotator_id"), ProvisionalLabel.case_id != case_id)
    unsettled = exists().where(ProvisionalLabel.case_id == case_id, ProvisionalLabel.purpose == "read")
    statement: Select[Any] = (
        select()
        .add_columns(ReadRequest, Label, Annotator.name, unsettled, exists().where(*others))
        .select_from(Case)
        # each label with each request: a case has few of both
        .outerjoin(ReadRequest, ReadRequest.case_id == Case.id)
        .outerjoin(Label, and_(Label.case_id == Case.id, Label.purpose == bindparam("purpose")))
        .outerjoin(Annotator, Annotator.id == Label.annotator_id)
        .where(Case.id == case_id)
        .order_by(ReadRequest.ordinal, Label.id)
        .execution_options(populate_existing=True)
    )
    return statement


_HISTORY = _history_statement()


def _load_histories(session: Session, case_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, "CaseHistory"]:
    labels = (
        select(Label, Annotator.name)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Label.case_id.in_(case_ids), Label.purpose == "read")
        .order_by(Label.id)
    )
    requests = select(ReadRequest).where(ReadRequest.case_id.in_(case_ids)).order_by(ReadRequest.ordinal)
    provisional = (ProvisionalLabel.case_id.in_(case_ids), ProvisionalLabel.purpose == "read")
    unsettled = set(session.execute(select(ProvisionalLabel.case_id).where(*provisional)).scalars())
    # an outside annotator leaves no answer to another case open
    histories = {case_id: CaseHistory([], [], case_id in unsettled, leaves_others=False) for case_id in case_ids}
    for label, annotator in session.execute(labels.execution_options(populate_existing=True)):
        histories[label.case_id].history.append(NamedLabel(label, annotator))
    for request in session.execute(requests.execution_options(populate_existing=True)).scalars():
        histories[request.case_id].requests.append(request)
    return histories


def load_case_history(
    session: Session, case_id: uuid.UUID, annotator_id: uuid.UUID, purpose: str = "read"
) -> CaseHistory:
    """Load what a new label for a purpose and its consequences depend on; the case must be locked."""
    asking = {"case_id": case_id, "annotator_id": annotator_id, "purpose": purpose}
    rows = session.execute(_HISTORY, asking).all()
    requests: dict[uuid.UUID, ReadRequest] = {}
    history: dict[uuid.UUID, NamedLabel] = {}
    for request, label, annotator, *_ in rows:
        if request is not None:
            requests[request.id] = request
        if label is not None:
            history[label.id] = NamedLabel(label, annotator)
    unsettled, leaves_others = rows[0][3:]
    return CaseHistory([*history.values()], [*requests.values()], unsettled, leaves_others)


def read_out(session: Session, read: Read, classes: list[ClassOut]) -> ReadOut:
    """A read as its annotator sees it: nothing of the reason for asking, nothing of the model."""
    has_field = session.get_one(Case, read.case_id).stored_field_sha256 is not None
    return _read_out(read, classes, has_field=has_field)


def _read_out(read: Read, classes: list[ClassOut], *, has_field: bool) -> ReadOut:
    return ReadOut(
        id=str(read.id),
        case_id=str(read.named),
        image=f"/v1/cases/{read.named}/image",
        field=f"/v1/cases/{read.named}/field" if has_field else None,
        classes=classes,
        state=read.state,
        leased_at=read.created_at,
        expires_at=read.expires_at,
    )


#: Cases that one annotator may lease at a time: the one they read, and two ahead.
MAX_LEASES = 3
#: Lease times after which a lease ends, whatever heartbeats come.
LONGEST_IN_LEASES = 6


def lease_next_read(session: Session, context: ServiceContext, principal: Principal) -> ReadOut | None:
    """Lease the next case for the caller; None when there is nothing to read."""
    annotator = _lock_reading_annotator(session, principal)
    before = queries.load_lease_preconditions(session, annotator.id)
    require_qualified(session, annotator, before.policy)
    n_leases = before.n_leases
    if before.overdue:
        expire_overdue_leases(session)
        n_leases = len(queries.leases_of(session, annotator.id))
    if n_leases >= MAX_LEASES:
        raise TooManyLeases(
            "{max_leases} cells are assigned to you; answer, skip or return one first", max_leases=MAX_LEASES
        )
    taken = next_request(session, context.keys.readers.order, annotator.id)
    if taken is None:
        return None
    read = lease_request(session, taken.request, annotator.id, before.policy.lease_seconds)
    maybe_schedule_repeat(session, annotator.id, before.policy)
    return _read_out(read, reading_classes(session), has_field=taken.has_field)


def _lock_reading_annotator(session: Session, principal: Principal) -> Annotator:
    """The caller as annotator, locked, so that one person's requests come one after the other."""
    annotator_row = locked_annotator(session, principal.account_id)
    if account_sees_more(session, principal.account_id) if annotator_row is None else annotator_row[1]:
        raise Forbidden("this account cannot read blinded: its role or one of its keys shows more than pixels")
    if annotator_row is not None:
        return annotator_row[0]
    return queries.annotator_locked(session, read_own_annotator(session, principal).id)


def expire_overdue_leases(session: Session) -> None:
    """Let go of every lease that has run out, whosever it was."""
    queries.expire_overdue(session, time_of(session))


def lease_request(session: Session, request: AnyRequest, annotator_id: uuid.UUID, seconds: int) -> Read:
    """Lease an open request to an annotator for some seconds."""
    time = time_of(session)
    expires = time + timedelta(seconds=seconds)
    read = Read(case_id=request.case_id, annotator_id=annotator_id, expires_at=expires)
    lease = {"state": "leased", "lease_expires_at": expires}
    if isinstance(request, Repeat):
        lease |= {"back_at": request.back_at or some_hours_after(time)}
        read.repeat_id = request.id
    else:
        read.request_id = request.id
    update_row(session, request, **lease)
    session.add(read)
    session.flush()
    return read


def get_own_lease(session: Session, principal: Principal, read_id: uuid.UUID, *, case: bool = False) -> LockedLease:
    """A lease that is still the caller's."""
    lease = lock_lease(session, principal.account_id, read_id, case=case)
    read, request = lease.read, lease.request
    if read.state == "expired" and request.state == "open" and queries.find_later_read(session, read) is None:
        # nobody else took it meanwhile
        read.state, read.ended_at, request.state = "leased", None, "leased"
    if read.state != "leased":
        raise LeaseLost("this read is {state}; request the next one", state=Term(read.state))
    return lease


def extend_lease(session: Session, principal: Principal, read_id: uuid.UUID) -> ReadOut:
    """Extend a lease from now on, up to its longest time."""
    lease = get_own_lease(session, principal, read_id)
    once = timedelta(seconds=current_policy(session).lease_seconds)
    until = min(time_of(session) + once, lease.read.created_at + LONGEST_IN_LEASES * once)
    lease.read.expires_at = lease.request.lease_expires_at = until
    return read_out(session, lease.read, reading_classes(session))


def note_display(database: Database, session: Session, read_id: uuid.UUID, seconds_ago: float = 0.0) -> None:
    """Record when a page first shows the case of a read, before it does: from then on it is being read."""
    read = session.get_one(Read, read_id)
    if read.displayed_at is not None:
        return
    displayed_at = max(read.created_at, time_of(session) - timedelta(seconds=seconds_ago))
    session.rollback()  # SQLite: the reading transaction must not wait for the writing one
    with database.write() as writing:
        first = update_columns(Read, displayed_at=displayed_at)
        writing.execute(first.where(Read.id == read_id, Read.displayed_at.is_(None)))


def release_lease(session: Session, principal: Principal, read_id: uuid.UUID) -> None:
    """Give a lease back; the case may come to this annotator again."""
    lease = get_own_lease(session, principal, read_id)
    lease.read.state, lease.read.ended_at = "released", time_of(session)
    queries.give_back(session, type(lease.request), [lease.request.id])


def record_decline(
    session: Session, context: ServiceContext, principal: Principal, read_id: uuid.UUID, body: DeclineIn
) -> tuple[int, ReadOut]:
    """Decline a read: a record, never a label. ``cannot_tell`` closes the request, else somebody else may read it."""
    lease, time = get_own_lease(session, principal, read_id), context.clock()
    read, request = lease.read, lease.request
    read.state, read.ended_at, read.decline_reason = "declined", time, body.reason
    if body.note is not None:
        session.add(Remark(id=read.id, case_id=read.case_id, note=body.note))
    if body.reason == "cannot_tell" or isinstance(request, Repeat):
        request.state, request.closed_at, request.lease_expires_at = "closed", time, None
    else:
        queries.give_back(session, type(request), [request.id])
    case = session.get_one(Case, read.case_id, with_for_update=True)
    refresh_waiting(session, case)  # a repeat changes nothing, and takes as long
    advance_other_windows(session, lease.annotator.id, read.case_id)
    events.record_event(
        session,
        context.keys.audit,
        actor=principal.name,
        action=f"{read.purpose}.decline",
        object_id=read.id,
        details={"case": str(read.case_id), "reason": body.reason},
        cases=[read.case_id],
    )
    return 200, read_out(session, read, reading_classes(session))


def show_own_read(session: Session, principal: Principal, read_id: uuid.UUID) -> ReadOut:
    """One of the caller's own reads."""
    read, _ = queries.own_read(session, principal.account_id, read_id)
    return read_out(session, read, reading_classes(session))


def list_leases(session: Session, principal: Principal) -> list[ReadOut]:
    """The caller's leases, oldest first."""
    annotator = annotator_of_account(session, principal.account_id)
    reads = [] if annotator is None else queries.leases_of(session, annotator.id)
    classes = reading_classes(session) if reads else []
    return [read_out(session, read, classes) for read in reads]
