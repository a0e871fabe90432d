"""Database access of requests, leases and label chains."""

import uuid
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select, update
from sqlalchemy.orm import Session

from app.platform.errors import NotFound
from app.platform.keys import DerivedKey
from app.platform.principal import Principal
from app.predictions.queries import shown_first
from app.releases.queries import class_codes
from app.tables import (
    Annotator,
    Case,
    CasePrediction,
    CaseTwin,
    Exposure,
    Label,
    PolicyRow,
    Read,
    ReadRequest,
    ReleaseRow,
)

# cases that come next, among which each annotator has an order of their own
_NEXT_FEW = 4
_SWEEP = 200
_PRIME = 2**31 - 1


def annotator_locked(session: Session, annotator_id: uuid.UUID) -> Annotator:
    """Annotator row, locked, so that one person's requests come one after the other."""
    return session.execute(select(Annotator).where(Annotator.id == annotator_id).with_for_update()).scalar_one()


def expire_overdue(session: Session, time: datetime) -> int:
    """Give back requests whose lease has run out.

    Returns:
        How many.
    """
    overdue = (
        select(ReadRequest.id)
        .where(ReadRequest.state == "leased", ReadRequest.lease_expires_at < time)
        .order_by(ReadRequest.id)
        .limit(_SWEEP)
        .with_for_update(skip_locked=True)
    )
    ids = list(session.execute(overdue).scalars())
    if ids:
        leased = and_(Read.request_id.in_(ids), Read.state == "leased")
        session.execute(update(Read).where(leased).values(state="expired", ended_at=time))
        back = update(ReadRequest).where(ReadRequest.id.in_(ids))
        session.execute(back.values(state="open", lease_expires_at=None))
    return len(ids)


def _own_order(key: DerivedKey, annotator_id: uuid.UUID, place: int) -> int:
    """Place of a case by this annotator's own permutation of the places."""
    digest = key.digest(annotator_id.bytes)
    factor = int.from_bytes(digest[:4], "big") % (_PRIME - 1) + 1
    offset = int.from_bytes(digest[4:8], "big") % _PRIME
    return (place * factor + offset) % _PRIME


def _free_for(annotator_id: uuid.UUID) -> ColumnElement[bool]:
    """Whether a request waits for somebody, and neither its case nor a twin of it was ever with this annotator."""
    twin = CaseTwin.case_id == ReadRequest.case_id  # in statements of their own, which the indexes serve
    known = [
        condition
        for table, mine in (
            (Read, and_(Read.annotator_id == annotator_id, Read.state.in_(("leased", "committed", "declined")))),
            (Label, Label.annotator_id == annotator_id),
            (Exposure, Exposure.annotator_id == annotator_id),
        )
        for condition in (
            exists().where(table.case_id == ReadRequest.case_id, mine),
            exists().where(twin, table.case_id == CaseTwin.twin_id, mine),
        )
    ]
    return and_(ReadRequest.state == "open", ~or_(*known))


def count_waiting(session: Session, principal: Principal) -> int:
    """Cases that an annotator could be given, of the first thousand requests."""
    annotator = select(Annotator.id).where(Annotator.account_id == principal.account_id)
    annotator_id = session.execute(annotator).scalar_one_or_none() or uuid.UUID(int=0)
    waiting = select(ReadRequest.case_id).where(_free_for(annotator_id)).limit(1000).subquery()
    return session.execute(select(func.count(waiting.c.case_id.distinct()))).scalar_one()


def next_request(
    session: Session, key: DerivedKey, annotator_id: uuid.UUID, *, lock: bool = True
) -> ReadRequest | None:
    """The open request that this annotator reads next, locked; requests that others are taking are passed over.

    Everybody goes through the cases of a day in the same random order, and has an order of their own only among the
    next few. In an order of one's own for the whole day, the later a case's turn comes the more often others have taken
    its only request, so that late cases would tell that they are read twice, and have been read.

    Args:
        session: of the request.
        key: from which each annotator's own order follows.
        annotator_id: who.
        lock: False for a look ahead, which takes nothing.
    """
    queue = (
        select(ReadRequest)
        .where(_free_for(annotator_id))
        .order_by(ReadRequest.due_on, ReadRequest.shuffle, ReadRequest.ordinal)
    )
    lowest: dict[uuid.UUID, ReadRequest] = {}
    for request in session.execute(queue.limit(2 * _NEXT_FEW)).scalars():
        lowest.setdefault(request.case_id, request)
    few = list(lowest.values())[:_NEXT_FEW]
    few.sort(key=lambda request: (request.due_on, _own_order(key, annotator_id, request.shuffle)))
    if not lock:
        return few[0] if few else None
    for request in few:
        untaken = select(ReadRequest).where(ReadRequest.id == request.id, ReadRequest.state == "open")
        locked = session.execute(_passing_over(untaken)).scalar_one_or_none()
        if locked is not None:
            return locked
    return session.execute(_passing_over(queue.limit(1))).scalar_one_or_none() if few else None


def _passing_over(statement: Select[ReadRequest]) -> Select[ReadRequest]:
    """A statement that locks what it selects, as it is now, and leaves out what others have locked."""
    return statement.with_for_update(skip_locked=True, of=ReadRequest).execution_options(populate_existing=True)


def open_request_of_case(
    session: Session, case_id: uuid.UUID, rounds: tuple[str, ...] = ("planned", "adjudication")
) -> ReadRequest | None:
    """The first request of a case that nobody leases, locked."""
    statement = (
        select(ReadRequest)
        .where(ReadRequest.case_id == case_id, ReadRequest.state == "open", ReadRequest.round.in_(rounds))
        .order_by(ReadRequest.ordinal)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    return session.execute(statement).scalar_one_or_none()


def requests_of_case(session: Session, case_id: uuid.UUID) -> list[ReadRequest]:
    """Every request of a case, in order."""
    statement = select(ReadRequest).where(ReadRequest.case_id == case_id).order_by(ReadRequest.ordinal)
    return list(session.execute(statement).scalars())


def locked_request_of(session: Session, read_id: uuid.UUID) -> ReadRequest | None:
    """The request that a read answers, locked; None where there is no such read."""
    request_id = select(Read.request_id).where(Read.id == read_id).scalar_subquery()
    statement = select(ReadRequest).where(ReadRequest.id == request_id).with_for_update()
    return session.execute(statement.execution_options(populate_existing=True)).scalar_one_or_none()


def own_read(session: Session, account_id: uuid.UUID, read_id: uuid.UUID) -> tuple[Read, Annotator]:
    """A read of the annotator of an account, as it is now, with the annotator.

    Raises:
        NotFound: there is none of this id, or it is somebody else's.
    """
    statement = (
        select(Read, Annotator)
        .join(Annotator, Annotator.id == Read.annotator_id)
        .where(Read.id == read_id, Annotator.account_id == account_id)
        .execution_options(populate_existing=True)
    )
    row = session.execute(statement).first()
    if row is None:
        raise NotFound("there is no such read")
    return row[0], row[1]


@dataclass(frozen=True)
class CaseAtHand:
    """A locked case with what its labels are judged by, resolved once.

    Attributes:
        case: locked, so that its labels come one after the other.
        prediction: the one that is shown.
        classes: K codes of the prediction's release.
        policy: in force.
    """

    case: Case
    prediction: CasePrediction
    classes: list[str]
    policy: PolicyRow


def case_at_hand(session: Session, case_id: uuid.UUID) -> CaseAtHand:
    """Lock a case against concurrent labels.

    Raises:
        NotFound: there is no such case, or it has no prediction.
    """
    newest = select(func.max(PolicyRow.version)).scalar_subquery()
    statement = (
        select(Case, CasePrediction, ReleaseRow, PolicyRow)
        .select_from(Case)
        .join(PolicyRow, PolicyRow.version == newest)
        .outerjoin(CasePrediction, CasePrediction.case_id == Case.id)
        .outerjoin(ReleaseRow, ReleaseRow.id == CasePrediction.release_id)
        .where(Case.id == case_id)
        .order_by(*shown_first())
        .limit(1)
        .with_for_update(of=Case)
        .execution_options(populate_existing=True)
    )
    row = session.execute(statement).first()
    if row is None:
        raise NotFound("there is no such case")
    case, prediction, release, policy = row
    if prediction is None:
        raise NotFound("the case has no prediction")
    return CaseAtHand(case, prediction, class_codes(release), policy)


def label_with_annotator(session: Session, label_id: uuid.UUID) -> tuple[Label, Annotator] | None:
    """A label and who gave it; None where there is no such label."""
    statement = select(Label, Annotator).join(Annotator, Annotator.id == Label.annotator_id)
    row = session.execute(statement.where(Label.id == label_id)).first()
    return None if row is None else (row[0], row[1])


def own_answer(session: Session, read: Read) -> Label | None:
    """The first label that the annotator of a read gave its case; None where they gave none."""
    first = (Label.case_id == read.case_id, Label.annotator_id == read.annotator_id, Label.supersedes_id.is_(None))
    return session.execute(select(Label).where(*first)).scalar_one_or_none()


def answered_late(session: Session, principal: Principal, case_id: uuid.UUID) -> bool:
    """Whether the caller's answer to a case came after their read had run out and its request had gone on."""
    statement = (
        select(Label.id)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Label.case_id == case_id, Annotator.account_id == principal.account_id, Label.late.is_(True))
    )
    return session.execute(statement.limit(1)).first() is not None


def read_since(session: Session, read: Read) -> Read | None:
    """The read in which the annotator of another one has the case now, has labelled it or has declined it."""
    statement = select(Read).where(
        Read.case_id == read.case_id,
        Read.annotator_id == read.annotator_id,
        Read.id != read.id,
        Read.state.in_(("leased", "committed", "declined")),
    )
    return session.execute(statement.order_by(Read.created_at.desc(), Read.id).limit(1)).scalar_one_or_none()


def leases_of(session: Session, annotator_id: uuid.UUID) -> list[Read]:
    """Leases of an annotator, oldest first."""
    statement = select(Read).where(Read.annotator_id == annotator_id, Read.state == "leased")
    return list(session.execute(statement.order_by(Read.created_at, Read.id)).scalars())
