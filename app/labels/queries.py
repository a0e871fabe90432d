"""Database access of requests, leases and label chains."""

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Select, and_, bindparam, exists, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.audit.chain.covered_rows import update_columns
from app.cases.service import ResolvedCase, standing_outcomes
from app.database.tables import (
    LEASED,
    Alias,
    Annotator,
    Case,
    Label,
    Outcome,
    PolicyRow,
    Read,
    ReadRequest,
    Repeat,
    time_of,
)
from app.http.errors import NotFound
from app.http.principal import Principal
from app.triage.service import withdraw_adjudications

_SWEEP = 200

#: What asks an annotator for a visit to a case: to them a repeat is a request like any other.
AnyRequest: TypeAlias = ReadRequest | Repeat
#: Each kind with the column of reads that names it.
REQUEST_KINDS: tuple[tuple[type[AnyRequest], InstrumentedAttribute[uuid.UUID | None]], ...] = (
    (ReadRequest, Read.request_id),
    (Repeat, Read.repeat_id),
)


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


def _preconditions_statement() -> Select[Any]:
    overdue = [
        exists().where(requests.state == "leased", requests.lease_expires_at < bindparam("time"))
        for requests, _ in REQUEST_KINDS
    ]
    own = (Read.annotator_id == bindparam("annotator_id"), Read.state == LEASED)
    n_leases = select(func.count()).select_from(Read).where(*own).scalar_subquery()
    return (
        select(PolicyRow, Alias.release_id, or_(*overdue), n_leases)
        .outerjoin(Alias, Alias.name == "champion")
        .order_by(PolicyRow.version.desc())
        .limit(1)
    )


_PRECONDITIONS = _preconditions_statement()


def load_lease_preconditions(session: Session, annotator_id: uuid.UUID) -> LeasePreconditions:
    """Load the preconditions of a lease."""
    asking = {"time": time_of(session), "annotator_id": annotator_id}
    return LeasePreconditions(*session.execute(_PRECONDITIONS, asking).one())


def expire_overdue(session: Session, time: datetime) -> None:
    """Give back requests and repeats whose lease has run out, at the same moment: one that stayed would tell itself."""
    for requests, request_id in REQUEST_KINDS:
        overdue = (
            select(requests.id)
            .where(requests.state == "leased", requests.lease_expires_at < time)
            .order_by(requests.id)
            .limit(_SWEEP)
            .with_for_update(skip_locked=True)
        )
        ids = list(session.execute(overdue).scalars())
        if ids:
            leased = and_(request_id.in_(ids), Read.state == "leased")
            session.execute(update_columns(Read, state="expired", ended_at=time).where(leased))
            give_back(session, requests, ids)


def give_back(session: Session, requests: type[AnyRequest], ids: Collection[uuid.UUID]) -> None:
    """Open locked requests again; an adjudication whose cell was settled meanwhile is withdrawn."""
    back = update_columns(requests, state="open", lease_expires_at=None)
    session.execute(back.where(requests.id.in_(ids)))
    # for repeats too, which this does not find, so that the time of an answer does not tell them
    settled = standing_outcomes().where(Outcome.case_id == ReadRequest.case_id).exists()
    withdraw_adjudications(session, ReadRequest.id.in_(ids), settled)


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
        .execution_options(populate_existing=True)
    )
    return session.execute(statement).scalar_one_or_none()


def requests_of_case(session: Session, case_id: uuid.UUID) -> list[ReadRequest]:
    """Every request of a case, in order."""
    statement = select(ReadRequest).where(ReadRequest.case_id == case_id).order_by(ReadRequest.ordinal)
    return list(session.execute(statement).scalars())


def own_read(session: Session, account_id: uuid.UUID, read_id: uuid.UUID) -> tuple[Read, Annotator]:
    """A read of the annotator of an account, as it is now, with the annotator."""
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


def request_of_read(session: Session, read: Read) -> AnyRequest:
    """What asked for a read."""
    if read.repeat_id is not None:
        return session.get_one(Repeat, read.repeat_id)
    return session.get_one(ReadRequest, read.request_id)


@dataclass(frozen=True)
class AuthoredLabel:
    """A label, who gave it, and the repeat that it answers, if any."""

    label: Label
    annotator: Annotator
    repeat: Repeat | None


def authored_label(session: Session, label_id: uuid.UUID) -> AuthoredLabel | None:
    """A label with its author; None where there is no such label."""
    statement = (
        select(Label, Annotator, Repeat)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .outerjoin(Repeat, is_answered_by_label())
        .where(Label.id == label_id)
    )
    row = session.execute(statement).first()
    return None if row is None else AuthoredLabel(*row)


def is_answered_by_label() -> ColumnElement[bool]:
    """Condition on a repeat and a label: the one is answered by the other."""
    same = (Repeat.case_id == Label.case_id, Repeat.annotator_id == Label.annotator_id)
    return and_(Label.purpose == "repeat", *same)


def own_chain(session: Session, read: Read) -> list[Label]:
    """Labels by which the annotator of a read answered it, the first one first."""
    mine = (Label.case_id == read.case_id, Label.annotator_id == read.annotator_id, Label.purpose == read.purpose)
    return list(session.execute(select(Label).where(*mine).order_by(Label.position)).scalars())


def has_answered_late(session: Session, principal: Principal, case: ResolvedCase) -> bool:
    """Whether the caller's answer to a case came after their read had run out and its request had gone on."""
    statement = (
        select(Label.id)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Label.case_id == case.id, Label.purpose == case.purpose, Label.late.is_(True))
        .where(Annotator.account_id == principal.account_id)
    )
    return session.execute(statement.limit(1)).first() is not None


def find_later_read(session: Session, read: Read) -> Read | None:
    """Return a later read for the same purpose by the same annotator that is leased, labelled or declined."""
    # of one annotator a case has one repeat at most
    same = (Read.case_id == read.case_id, Read.repeat_id.is_not_distinct_from(read.repeat_id))
    ended = Read.state.in_(("leased", "committed", "declined"))
    statement = select(Read).where(*same, Read.annotator_id == read.annotator_id, Read.id != read.id, ended)
    return session.execute(statement.order_by(Read.created_at.desc(), Read.id).limit(1)).scalar_one_or_none()


def leases_of(session: Session, annotator_id: uuid.UUID) -> list[Read]:
    """Leases of an annotator, oldest first."""
    statement = select(Read).where(Read.annotator_id == annotator_id, Read.state == "leased")
    return list(session.execute(statement.order_by(Read.created_at, Read.id)).scalars())


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
