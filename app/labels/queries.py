"""Database access of requests, leases and label chains."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, TypeVar

from sqlalchemy import ColumnElement, and_, bindparam, exists, func, or_, select
from sqlalchemy.orm import Session

from app.audit.chain.change_tracking import update_columns
from app.audit.chain.detached_rows import JoinedRows, build_detached_row, execute_past_session, list_columns
from app.database.sql.compiled_statements import PreparedStatement
from app.database.tables import (
    LEASED,
    Alias,
    Annotator,
    Case,
    Label,
    PolicyRow,
    Read,
    ReadRequest,
    Repeat,
    RepeatAnswer,
    RepeatRead,
    time_of,
)
from app.http.errors import NotFound
from app.http.principal import Principal

_SWEEP = 200

#: A visit of an annotator to a case, and what asked for it: to them a repeat is one like any other.
AnyRead: TypeAlias = Read | RepeatRead
AnyRequest: TypeAlias = ReadRequest | Repeat
_Read = TypeVar("_Read", bound=Read | RepeatRead)


def annotator_locked(session: Session, annotator_id: uuid.UUID) -> Annotator:
    """Annotator row, locked, so that one person's requests come one after the other."""
    return session.execute(select(Annotator).where(Annotator.id == annotator_id).with_for_update()).scalar_one()


@dataclass(frozen=True)
class LeasePreconditions:
    """Preconditions of a lease, from one statement."""

    policy: PolicyRow
    # of the release that is served; None where none is
    release_id: uuid.UUID | None
    # whether a lease of anybody has run out
    overdue: bool
    # that the annotator has, overdue ones too
    n_leases: int


def _has_overdue_lease(requests: type[ReadRequest | Repeat]) -> ColumnElement[bool]:
    return exists().where(requests.state == "leased", requests.lease_expires_at < bindparam("time"))


def _leases_in(reads: type[Read | RepeatRead]) -> ColumnElement[int]:
    held = (reads.annotator_id == bindparam("annotator_id"), reads.state == LEASED)
    return select(func.count()).select_from(reads).where(*held).scalar_subquery()


# statements that requests repeat all day are made once: to make one costs more than to execute it
_POLICY = JoinedRows(PolicyRow)
_BEFORE_LEASE = PreparedStatement(
    select(
        *_POLICY.columns,
        Alias.release_id,
        or_(_has_overdue_lease(ReadRequest), _has_overdue_lease(Repeat)),
        _leases_in(Read) + _leases_in(RepeatRead),
    )
    .select_from(PolicyRow)
    .outerjoin(Alias, Alias.name == "champion")
    .order_by(PolicyRow.version.desc())
    .limit(1)
)


def load_lease_preconditions(session: Session, annotator_id: uuid.UUID) -> LeasePreconditions:
    """Load the preconditions of a lease."""
    row = _BEFORE_LEASE.all(session, {"annotator_id": annotator_id, "time": time_of(session)})[0]
    (policy,), (release_id, overdue, n_leases) = _POLICY.rows(row), row[_POLICY.end :]
    return LeasePreconditions(policy, release_id, bool(overdue), int(n_leases))


def expire_overdue(session: Session, time: datetime) -> int:
    """Give back requests whose lease has run out."""
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
        session.execute(update_columns(Read, state="expired", ended_at=time).where(leased))
        back = update_columns(ReadRequest, state="open", lease_expires_at=None)
        session.execute(back.where(ReadRequest.id.in_(ids)))
    return len(ids)


def expire_repeats(session: Session, time: datetime) -> None:
    """Give back repeats whose lease has run out, at the same times as requests: one that stayed would tell itself."""
    overdue = select(Repeat).where(Repeat.state == "leased", Repeat.lease_expires_at < time).order_by(Repeat.id)
    for repeat in session.execute(overdue.limit(_SWEEP).with_for_update(skip_locked=True)).scalars().all():
        repeat.state, repeat.lease_expires_at = "open", None
        leased = (RepeatRead.request_id == repeat.id, RepeatRead.state == "leased")
        session.execute(update_columns(RepeatRead, state="expired", ended_at=time).where(*leased))


def open_request_of_case(
    session: Session, case_id: uuid.UUID, rounds: tuple[str, ...] = ("planned", "adjudication")
) -> ReadRequest | None:
    """The first request of a case that nobody leases, locked; a plain row."""
    statement = (
        select(*list_columns(ReadRequest))
        .where(ReadRequest.case_id == case_id, ReadRequest.state == "open", ReadRequest.round.in_(rounds))
        .order_by(ReadRequest.ordinal)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    row = execute_past_session(session, statement).first()
    return None if row is None else build_detached_row(ReadRequest, row)


def requests_of_case(session: Session, case_id: uuid.UUID) -> list[ReadRequest]:
    """Every request of a case, in order."""
    statement = select(ReadRequest).where(ReadRequest.case_id == case_id).order_by(ReadRequest.ordinal)
    return list(session.execute(statement).scalars())


def own_read(session: Session, account_id: uuid.UUID, read_id: uuid.UUID) -> tuple[AnyRead, Annotator]:
    """A read of the annotator of an account, as it is now, with the annotator; plain rows."""
    read, repeat = (
        _own_read_row(session, Read, account_id, read_id),
        _own_read_row(session, RepeatRead, account_id, read_id),
    )
    row: tuple[AnyRead, Annotator] | None = read or repeat
    if row is None:
        raise NotFound("there is no such read")
    return row


def _own_read_row(
    session: Session, reads: type[_Read], account_id: uuid.UUID, read_id: uuid.UUID
) -> tuple[_Read, Annotator] | None:
    parts = JoinedRows(reads, Annotator)
    statement = (
        select(*parts.columns)
        .join(Annotator, Annotator.id == reads.annotator_id)
        .where(reads.id == read_id, Annotator.account_id == account_id)
    )
    row = execute_past_session(session, statement).first()
    if row is None:
        return None
    read, annotator = parts.rows(row)
    return read, annotator


def label_with_annotator(session: Session, label_id: uuid.UUID) -> tuple[Label, Annotator] | None:
    """A label and who gave it; None where there is no such label."""
    statement = select(Label, Annotator).join(Annotator, Annotator.id == Label.annotator_id)
    row = session.execute(statement.where(Label.id == label_id)).first()
    return None if row is None else (row[0], row[1])


def own_answer(session: Session, read: AnyRead) -> Label | RepeatAnswer | None:
    """The first answer that the annotator of a read gave its case; None where they gave none."""
    if isinstance(read, RepeatRead):
        to_repeat = (RepeatAnswer.repeat_id == read.request_id, RepeatAnswer.position == 0)
        return session.execute(select(RepeatAnswer).where(*to_repeat)).scalar_one_or_none()
    first = (Label.case_id == read.case_id, Label.annotator_id == read.annotator_id, Label.supersedes_id.is_(None))
    return session.execute(select(Label).where(*first)).scalar_one_or_none()


def has_answered_late(session: Session, principal: Principal, case_id: uuid.UUID) -> bool:
    """Whether the caller's answer to a case came after their read had run out and its request had gone on."""
    statement = (
        select(Label.id)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Label.case_id == case_id, Annotator.account_id == principal.account_id, Label.late.is_(True))
    )
    return session.execute(statement.limit(1)).first() is not None


def find_later_read(session: Session, read: _Read) -> _Read | None:
    """Return a later read of the case by the same annotator that is leased, labelled or declined."""
    reads = type(read)
    same = reads.case_id == read.case_id  # of one annotator a case has one repeat at most
    ended = reads.state.in_(("leased", "committed", "declined"))
    statement = select(reads).where(same, reads.annotator_id == read.annotator_id, reads.id != read.id, ended)
    return session.execute(statement.order_by(reads.created_at.desc(), reads.id).limit(1)).scalar_one_or_none()


def leases_of(session: Session, annotator_id: uuid.UUID) -> list[AnyRead]:
    """Leases of an annotator, oldest first."""
    leases: list[AnyRead] = [*_leases_of_kind(session, Read, annotator_id)]
    leases += _leases_of_kind(session, RepeatRead, annotator_id)
    return sorted(leases, key=lambda read: (read.created_at, read.id))


def _leases_of_kind(session: Session, reads: type[_Read], annotator_id: uuid.UUID) -> Sequence[_Read]:
    statement = select(reads).where(reads.annotator_id == annotator_id, reads.state == "leased")
    return session.execute(statement).scalars().all()


def own_mass(session: Session, case: Case) -> float | None:
    """Mass of a case's patient for a set after its label (``ml.conformal.Thresholds.at``); None without a plan."""
    if case.pi <= 0:
        return None
    cells: dict[uuid.UUID, tuple[float, set[int]]] = {case.id: (case.pi, set())}
    if case.patient is not None:
        answered = (ReadRequest.case_id == Case.id, ReadRequest.label_id.is_not(None), ReadRequest.round == "planned")
        statement = select(Case.id, Case.pi, ReadRequest.ordinal).join(ReadRequest, and_(*answered))
        for case_id, pi, ordinal in session.execute(statement.where(Case.patient == case.patient)):
            cells.setdefault(case_id, (pi, set()))[1].add(ordinal)
    others = [cell for case_id, cell in cells.items() if case_id != case.id and 1 in cell[1]]
    return (1 / case.pi + sum(1 / pi for pi, ordinals in others if 2 in ordinals)) / (1 + len(others))
