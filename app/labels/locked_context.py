"""What an answer needs of its read and its case: read and locked in a few statements, which are made once."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, bindparam, exists, func, or_, select
from sqlalchemy.orm import Session

from app.annotators.models.queries import ONLY
from app.audit.chain.detached_rows import Joined, table_of
from app.cases.queries import NamedLabel
from app.database.sql.compiled_statements import Prepared
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
from app.predictions.stored import shown_first
from app.releases.queries import known_classes


@dataclass(frozen=True)
class LockedCase:
    """A locked case with the classes that it can be given; plain rows.

    Attributes:
        case: locked, so that its labels come one after the other.
        prediction: the one that is shown.
        classes: K codes of the prediction's release.
    """

    case: Case
    prediction: CasePrediction
    classes: list[str]


@dataclass(frozen=True)
class CaseAtHand(LockedCase):
    """A locked case with what its labels are judged by, resolved once.

    Attributes:
        policy: in force.
        reader_model: which model of the annotators is in use; None while nobody has ever switched.
    """

    policy: PolicyRow
    reader_model: ReaderModelInUse | None


_CASE_PARTS = Joined(Case, CasePrediction)
_JUDGING_PARTS = Joined(PolicyRow, ReaderModelInUse)


def _with_prediction(statement: Select[Any]) -> Select[Any]:
    """A statement about one case that selects what stands in ``LockedCase`` too."""
    return (
        statement.add_columns(*_CASE_PARTS.columns)
        .outerjoin(CasePrediction, CasePrediction.case_id == Case.id)
        .order_by(*shown_first())
        .limit(1)
    )


def _with_what_judges(statement: Select[Any]) -> Select[Any]:
    """A statement with what stands in ``LockedCase`` that selects the rest of ``CaseAtHand``."""
    newest = select(func.max(PolicyRow.version)).scalar_subquery()
    return (
        statement.add_columns(*_JUDGING_PARTS.columns)
        .join(PolicyRow, PolicyRow.version == newest)
        .outerjoin(ReaderModelInUse, ReaderModelInUse.id == ONLY)
    )


def _locked_case(session: Session, columns: Sequence[Any]) -> LockedCase:
    """What the columns of ``_with_prediction`` say.

    Raises:
        NotFound: the case has no prediction.
    """
    case, prediction = _CASE_PARTS.rows(columns)
    if prediction is None:
        raise NotFound("the case has no prediction")
    return LockedCase(case, prediction, [shown.code for shown in known_classes(session, prediction.release_id)])


def _at_hand(session: Session, columns: Sequence[Any]) -> CaseAtHand:
    """What these columns and those of ``_with_what_judges`` say."""
    known = _locked_case(session, columns)
    policy, reader_model = _JUDGING_PARTS.rows(columns[_CASE_PARTS.end :])
    return CaseAtHand(known.case, known.prediction, known.classes, policy, reader_model)


@dataclass(frozen=True)
class LockedLease:
    """A read with its request, both locked, its annotator, and the case where it was locked as well; plain rows.

    Nothing is judged by the answer to a repeat: of that there is no ``CaseAtHand``.
    """

    read: AnyRead
    request: AnyRequest
    annotator: Annotator
    case: LockedCase | None


def _lease(requests: type[ReadRequest | Repeat], reads: type[Read | RepeatRead], *, case: bool) -> Select[Any]:
    statement: Select[Any] = (
        select(*Joined(reads, requests, Annotator).columns)
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
        statement = _with_what_judges(statement) if reads is Read else statement
        locked.append(table_of(Case))
    return statement.with_for_update(of=locked)


_KINDS: tuple[tuple[type[ReadRequest | Repeat], type[Read | RepeatRead]], ...] = (
    (ReadRequest, Read),
    (Repeat, RepeatRead),
)
_LEASES = {case: [Prepared(_lease(*kind, case=case)) for kind in _KINDS] for case in (False, True)}
_LEASE_PARTS = [Joined(reads, requests, Annotator) for requests, reads in _KINDS]


def locked_lease(session: Session, account_id: uuid.UUID, read_id: uuid.UUID, *, case: bool) -> LockedLease:
    """A read of the annotator of an account, as it is now, locked with its request.

    Both kinds are looked for, whichever it is: else the time of an answer would tell a repeat.

    Args:
        session: writing session.
        account_id: whose read it must be.
        read_id: which.
        case: whether its case is to be locked as well, as the last, where it is leased.

    Raises:
        NotFound: there is none of this id, or it is somebody else's; or its case has no prediction.
    """
    which = {"read_id": read_id, "account_id": account_id}
    found = [statement.first(session, which) for statement in _LEASES[case]]
    for row, parts in zip(found, _LEASE_PARTS, strict=True):
        if row is not None:
            read, request, annotator = parts.rows(row)
            of_case = _at_hand if isinstance(read, Read) else _locked_case
            return LockedLease(read, request, annotator, of_case(session, row[parts.end :]) if case else None)
    if case:
        return locked_lease(session, account_id, read_id, case=False)
    raise NotFound("there is no such read")


_CASE = Prepared(
    _with_what_judges(
        _with_prediction(
            select().select_from(Case).where(Case.id == bindparam("case_id")).with_for_update(of=table_of(Case))
        )
    )
)


def case_at_hand(session: Session, case_id: uuid.UUID) -> CaseAtHand:
    """Lock a case against concurrent labels.

    Raises:
        NotFound: there is no such case, or it has no prediction.
    """
    row = _CASE.first(session, {"case_id": case_id})
    if row is None:
        raise NotFound("there is no such case")
    return _at_hand(session, row)


@dataclass(frozen=True)
class FactsOfCase:
    """What a label follows, and what its consequences depend on, from one statement.

    Attributes:
        history: every label row of the case, oldest first; plain rows, without their remarks.
        requests: of the case, in order; plain rows.
        unsettled: whether somebody may still correct their label of the case.
        leaves_others: whether the annotator has answers to other cases that come closer to their end by this one.
    """

    history: list[NamedLabel]
    requests: list[ReadRequest]
    unsettled: bool
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
_FACT_PARTS = Joined(ReadRequest, Label)
_FACTS = Prepared(
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


def facts_of_case(session: Session, case_id: uuid.UUID, annotator_id: uuid.UUID) -> FactsOfCase:
    """What a label by an annotator follows, and what its consequences depend on; the case is locked."""
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
    return FactsOfCase([*history.values()], [*requests.values()], bool(unsettled), bool(leaves_others))
