"""Of whom a planned read is asked: drawn at random, so that those who read are a sample of the annotators.

A draw is a keyed number like a case's coin: nobody can foresee it, and whoever has the key can check it later. It looks
at nothing but the case's identifier, the number of its read, and who is qualified.
"""

import uuid
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.audit.chain.keys import DerivedKey
from app.database.tables import (
    SHOWN_KINDS,
    CaseTwin,
    Exposure,
    Label,
    PracticeItem,
    Read,
    ReaderDraw,
    ReadRequest,
    ReferenceCell,
    time_of,
)
from app.triage.eligibility import who_may_read

#: Annotators among whom a read is drawn at most, so that each has a probability of a tenth or more.
PANEL = 10
#: Time after a read was due from which on anybody may take it.
GRACE = timedelta(days=2)


def panel(key: DerivedKey, at: datetime, annotators: Sequence[uuid.UUID]) -> list[uuid.UUID]:
    """Those among whom the reads of a week are drawn: all, or ten of more whom a keyed order of the week chooses.

    Args:
        key: of draws.
        at: a time of the ISO week, UTC.
        annotators: qualified.
    """
    year, week, _ = at.isocalendar()
    begun = f"week {year}-{week:02d} ".encode()
    return sorted(sorted(annotators, key=lambda one: key.digest(begun + one.bytes))[:PANEL])


def drawn(key: DerivedKey, case_id: uuid.UUID, ordinal: int, position: int, among: Sequence[str]) -> str:
    """The one of ``among`` on whom a draw falls: each with the same probability.

    Args:
        key: of draws.
        case_id: to be read.
        ordinal: number of the request among those of the case.
        position: number of the draw among those of the request.
        among: who is left, in order.
    """
    digest = key.digest(f"draw {case_id} {ordinal} {position}".encode())
    return among[int.from_bytes(digest[:7], "big") * len(among) >> 56]


def draw(
    key: DerivedKey, request: ReadRequest, position: int, left: Sequence[uuid.UUID], at: datetime
) -> ReaderDraw | None:
    """Draw of whom a request is asked, and write it on the request; None where nobody is left: anybody may take it.

    Args:
        key: of draws.
        request: with its identifier, stored or not.
        position: number of the draw.
        left: annotators of whom it can be asked, ordered.
        at: the time.
    """
    among = [str(annotator) for annotator in panel(key, at, left)]
    request.annotator_id = None
    if not among:
        return None
    request.annotator_id = uuid.UUID(drawn(key, request.case_id, request.ordinal, position, among))
    return ReaderDraw(
        request_id=request.id,
        case_id=request.case_id,
        position=position,
        annotator_id=request.annotator_id,
        probability=1 / len(among),
        among=among,
    )


def draw_planned(
    session: Session, key: DerivedKey, requests: Sequence[ReadRequest], twins: Collection[uuid.UUID]
) -> list[ReaderDraw]:
    """Draw of whom each planned read of a new case is asked, nobody twice.

    Args:
        session: writing session.
        key: of draws.
        requests: of the case, not stored yet.
        twins: cases with its image.
    """
    left, time = candidates(session, requests[0], twins), time_of(session)
    draws = []
    for request in requests:
        found = draw(key, request, 0, left, time)
        if found is not None:
            draws.append(found)
            left.remove(found.annotator_id)
    return draws


def draw_again(session: Session, key: DerivedKey, request: ReadRequest) -> None:
    """Draw a stored request among the rest, after the one who was drawn has declined or may not read any more."""
    left = candidates(session, request, twins_of_case(session, request.case_id))
    again = draw(key, request, next_position(session, request.id), left, time_of(session))
    if again is not None:
        session.add(again)
    session.flush()


def next_position(session: Session, request_id: uuid.UUID) -> int:
    """Number of the next draw of a request."""
    drawn_before = select(func.count()).select_from(ReaderDraw).where(ReaderDraw.request_id == request_id)
    return session.execute(drawn_before).scalar_one()


def twins_of_case(session: Session, case_id: uuid.UUID) -> list[uuid.UUID]:
    """Stored cases with the image of a stored case."""
    return list(session.execute(select(CaseTwin.twin_id).where(CaseTwin.case_id == case_id)).scalars())


def candidates(session: Session, request: ReadRequest, twins: Collection[uuid.UUID]) -> list[uuid.UUID]:
    """Annotators of whom a request can be asked, ordered: none to whom its case or a twin of it has come before.

    Nor any who is asked for another read of these. What is a reference cell is asked of nobody.
    """
    cases = [request.case_id, *twins]
    reference = (ReferenceCell.case_id.in_(cases), ReferenceCell.kind.in_(SHOWN_KINDS))
    if session.execute(select(ReferenceCell.id).where(*reference).limit(1)).first() is not None:
        return []
    asked = select(ReadRequest.annotator_id).where(
        ReadRequest.case_id.in_(cases), ReadRequest.id != request.id, ReadRequest.state.in_(("open", "leased"))
    )
    met: list[Select[uuid.UUID | None]] = [
        asked,
        select(Label.annotator_id).where(Label.case_id.in_(cases)),
        select(Exposure.annotator_id).where(Exposure.case_id.in_(cases)),
        select(PracticeItem.annotator_id).where(PracticeItem.case_id.in_(cases)),
        select(Read.annotator_id).where(Read.case_id.in_(cases), Read.state.in_(("leased", "committed", "declined"))),
    ]
    known = {annotator_id for statement in met for annotator_id in session.execute(statement).scalars()}
    return [annotator.id for annotator in who_may_read(session) if annotator.id not in known]
