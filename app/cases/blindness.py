"""Blindness: opaque case identifiers, when a case is revealed to an annotator, and the record of each exposure."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Any, NamedTuple

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from fastapi import Depends, Request
from sqlalchemy import BindParameter, Select, and_, bindparam, exists, or_, select
from sqlalchemy.orm import Session

from app.accounts.service import annotator_of_account, caller_of
from app.audit.chain.keys import AnnotatorKeys
from app.cases import correction_window
from app.cases.queries import NamedLabel, is_held_back_from
from app.context import AppContext
from app.database.engine import Database, insert_if_absent
from app.database.tables import (
    LEASED,
    SHOWN_KINDS,
    Account,
    Annotator,
    ApiKey,
    Case,
    CasePrediction,
    CaseTwin,
    CountedLabel,
    Exposure,
    Label,
    PolicyRow,
    ProvisionalLabel,
    Read,
    ReadRequest,
    ReferenceCell,
    Repeat,
    new_id,
    time_of,
)
from app.database.tables.values import Hidden
from app.http.errors import Forbidden
from app.http.principal import Principal, role_or_key_sees_more
from app.predictions.service import champion_first_order
from app.triage.service import (
    ImageIdentity,
    are_twins,
    current_policy,
    identity_values,
    may_be_twin,
    policy_of_version,
)
from ml.messages import messages


def _make_cipher(keys: AnnotatorKeys, account_id: uuid.UUID) -> Cipher[modes.ECB]:
    """A permutation of all identifiers; one block has no pattern that the mode could show."""
    return Cipher(algorithms.AES(keys.cases.digest(account_id.bytes)), modes.ECB())  # noqa: S305


def case_handle(keys: AnnotatorKeys, principal: Principal, case_id: uuid.UUID) -> uuid.UUID:
    """Return the identifier of a case for a caller; annotators get an opaque one."""
    if not principal.blind:
        return case_id
    encryptor = _make_cipher(keys, principal.account_id).encryptor()
    return uuid.UUID(bytes=encryptor.update(case_id.bytes) + encryptor.finalize())


def case_of_handle(session: Session, keys: AnnotatorKeys, principal: Principal, handle: uuid.UUID) -> uuid.UUID:
    """Return the case of a caller's handle; any other identifier is returned unchanged."""
    if not principal.blind:
        return handle
    case_id = _decipher_handle(keys, principal, handle)
    return handle if session.get(Case, case_id) is None else case_id


def _decipher_handle(keys: AnnotatorKeys, principal: Principal, handle: uuid.UUID) -> uuid.UUID:
    decryptor = _make_cipher(keys, principal.account_id).decryptor()
    return uuid.UUID(bytes=decryptor.update(handle.bytes) + decryptor.finalize())


@dataclass(frozen=True)
class ResolvedCase:
    """A case as its caller names it."""

    id: uuid.UUID
    # the second visit to it that the caller's handle stands for; None for the case itself
    repeat: Repeat | None = None

    @property
    def named(self) -> uuid.UUID:
        """Identifier from which the caller's handle is made."""
        return self.id if self.repeat is None else self.repeat.named

    @property
    def purpose(self) -> str:
        """Purpose of the caller's labels of it."""
        return "read" if self.repeat is None else "repeat"


def resolve_case(session: Session, keys: AnnotatorKeys, principal: Principal, handle: uuid.UUID) -> ResolvedCase:
    """The case that a caller names, or their second visit to one."""
    # Both are looked up for each handle: else the time of an answer would tell which of the two it is.
    if not principal.blind:
        return ResolvedCase(handle)
    named = _decipher_handle(keys, principal, handle)
    repeat = session.get(Repeat, named)
    case_id = named if repeat is None else repeat.case_id
    return ResolvedCase(handle if session.get(Case, case_id) is None else case_id, repeat)


@dataclass(frozen=True)
class PathCase:
    """Case reference from a URL, resolved in the session of the route."""

    handle: uuid.UUID
    request: Request
    keys: AnnotatorKeys

    def found(self, session: Session) -> ResolvedCase:
        """The case that the caller means."""
        principal = caller_of(self.request)
        return (
            ResolvedCase(self.handle) if principal is None else resolve_case(session, self.keys, principal, self.handle)
        )


async def _get_path_case(case_id: uuid.UUID, request: Request, context: AppContext) -> PathCase:
    return PathCase(case_id, request, context.keys.readers)


#: The case in the path of a route that reads, named as its caller knows it.
CaseInPath = Annotated[PathCase, Depends(_get_path_case)]


def blind_opinions(history: Sequence[NamedLabel]) -> list[NamedLabel]:
    """The last blind label of each chain that does not end in a retraction, among every label row of a case."""
    # Who revised after the reveal has not had another opinion of the image: what they said before it still counts. Else
    # those who give in to the prediction would leave, and the labels that are left would agree with it.
    chains: dict[uuid.UUID, list[NamedLabel]] = {}
    for row in sorted(history, key=lambda row: row.label.position):
        chains.setdefault(row.label.annotator_id, []).append(row)
    standing = [chain for chain in chains.values() if chain[-1].label.kind != "retraction"]
    last = [[row for row in chain if row.label.blind and row.label.kind != "retraction"][-1:] for chain in standing]
    return sorted((row for rows in last for row in rows), key=lambda row: row.label.id)


class BlindReadPending(Forbidden):
    """An annotator asks for what would unblind a read that is yet to be made."""

    code, title = "blind-read-pending", "Blinded read pending"


_HIDDEN_MESSAGES: dict[Hidden, str] = messages(
    {
        "before-commit": "submit your own label first",
        "until-case-closed": "hidden until all planned reads of the cell are complete, or by the policy",
        "never": "the reading policy never shows this to annotators",
    }
)


def has_committed(session: Session, principal: Principal, case: ResolvedCase) -> bool:
    """Whether this caller has given a label for the case as they name it: a second visit has labels of its own."""
    statement = (
        select(Label.id)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Label.case_id == case.id, Label.purpose == case.purpose, Annotator.account_id == principal.account_id)
        .limit(1)
    )
    return session.execute(statement).first() is not None


def hidden_because(session: Session, principal: Principal, case: ResolvedCase) -> Hidden | None:
    """Return why predictions and others' labels are hidden from a caller; None where they are not."""
    # Of a second visit the same is asked as of a case, so that the time of an answer does not tell which it is.
    if not principal.blind:
        return None
    if not has_committed(session, principal, case):
        return "before-commit"
    statement = select(ReadRequest).where(ReadRequest.case_id == case.id)
    requests = session.execute(statement).scalars().all()
    unsettled = correction_window.has_provisional_label(session, case.id)
    if case.repeat is not None:
        return hidden_of_repeat(session, case.repeat)
    hidden = hidden_after_commit(session, requests, unsettled=unsettled)
    return "until-case-closed" if hidden is None and is_held_back_from(session, principal, case.id) else hidden


def hidden_of_repeat(session: Session, repeat: Repeat, in_force: PolicyRow | None = None) -> Hidden:
    """Return why a repeated case stays hidden under its second handle, as a held-back case does."""
    policy = policy_of_requests(session, [repeat], in_force)
    return "never" if policy.reveal == "never" else "until-case-closed"


def hidden_after_commit(
    session: Session, requests: Sequence[ReadRequest], in_force: PolicyRow | None = None, *, unsettled: bool
) -> Hidden | None:
    """Return why a case stays hidden after an annotator's own label; None where it does not."""
    # A case with a label that its annotator may still correct is shown to nobody. Why a read was asked for plays no
    # part: a difference between the arms would tell the arm.
    hidden = hidden_before_final(session, requests, in_force)
    if hidden == "never":
        return hidden
    time = time_of(session)
    pending = any(
        request.round == "planned" and request.state in {"open", "leased"} and request.due_at > time
        for request in requests
    )
    if hidden is not None and pending:
        return hidden
    return "until-case-closed" if unsettled else None


def hidden_before_final(
    session: Session, requests: Sequence[ReadRequest], in_force: PolicyRow | None = None
) -> Hidden | None:
    """Return why a case stays hidden from its latest annotator; None where it is shown at once."""
    # It says nothing of what others have done. Arguments as in ``hidden_after_commit``.
    reveal = policy_of_requests(session, requests, in_force).reveal
    if reveal == "never":
        return "never"
    return "until-case-closed" if reveal == "after_case_closed" else None


def policy_of_requests(
    session: Session, requests: Sequence[ReadRequest | Repeat], in_force: PolicyRow | None
) -> PolicyRow:
    """The newest policy that has asked for a read of a case, the one in force where none has."""
    version = max((request.policy_version for request in requests), default=None)
    if in_force is not None and version in {None, in_force.version}:
        return in_force
    return current_policy(session) if version is None else policy_of_version(session, version)


def ensure_revealed(session: Session, principal: Principal, case: ResolvedCase) -> None:
    """Stop an annotator who may not see a case in full yet."""
    hidden = hidden_because(session, principal, case)
    if hidden is not None:
        raise BlindReadPending(_HIDDEN_MESSAGES[hidden])


def ensure_discussed(session: Session, principal: Principal, case: ResolvedCase) -> None:
    """Stop an annotator who may not see comments on a case yet."""
    # A comment may repeat the prediction or labels of others, so that it is hidden for as long as these are, and until
    # the caller's reads of near-duplicates are final too. Nothing here looks at the comments: the answer is the same
    # with them and without.
    ensure_revealed(session, principal, case)
    if principal.blind and _reads_twin(session, principal, case.id):
        raise BlindReadPending(_HIDDEN_MESSAGES["until-case-closed"])


def _reads_twin(session: Session, principal: Principal, case_id: uuid.UUID) -> bool:
    """Whether an annotator leases another case with the image of a case, or may still correct their label of it."""
    me = select(Annotator.id).where(Annotator.account_id == principal.account_id).scalar_subquery()
    twins = select(CaseTwin.twin_id).where(CaseTwin.case_id == case_id)
    pending = [
        exists().where(table.case_id.in_(twins), table.annotator_id == me, *more)
        for table, more in ((Read, [Read.state == LEASED]), (ProvisionalLabel, []))
    ]
    return bool(session.execute(select(or_(*pending))).scalar_one())


@cache
def _exposure_statement() -> Select[Any]:
    """Select an account's role and scopes, and the cases that it saw and that may be twins of a case."""
    me: BindParameter[uuid.UUID] = bindparam("annotator_id")
    exposed_cases = select(Exposure.case_id).where(Exposure.annotator_id == me)
    not_blind = select(CountedLabel.case_id).where(CountedLabel.annotator_id == me, CountedLabel.blind.is_(False))
    with_account = select(Annotator.id).where(Annotator.id == me, Annotator.account_id.is_not(None))
    reference = select(ReferenceCell.case_id).where(
        ReferenceCell.kind.in_(SHOWN_KINDS), with_account.correlate(None).exists()
    )
    unblinded_cases = exposed_cases.union_all(not_blind, reference)
    columns = (Case.id, Case.pixels_sha256, Case.patient, Case.image_hash)
    statement: Select[Any] = (
        select()
        .add_columns(Account.role, ApiKey.scopes, *columns)
        .select_from(Annotator)
        .outerjoin(Account, Account.id == Annotator.account_id)
        .outerjoin(ApiKey, ApiKey.account_id == Account.id)
        .outerjoin(Case, and_(Case.id.in_(unblinded_cases), may_be_twin()))
        .where(Annotator.id == me)
    )
    return statement


class _ImageIdentityRow(NamedTuple):
    """Columns of another case that decide whether it is a twin."""

    id: uuid.UUID
    pixels_sha256: str | None
    patient: str | None
    image_hash: int | None


def was_exposed(session: Session, annotator_id: uuid.UUID, case_id: uuid.UUID) -> bool:
    """Whether an annotator may have seen more of a case's image than its pixels: the one place that decides it."""
    # They have where prediction or others' labels of the case, or of a twin, were shown to them; where they gave one of
    # these a label that was not blind; where it was a reference cell, which everybody with an account may look at; and
    # where their account has, or ever had, another scope than that of reading, whichever key this request comes with.
    return was_exposed_to(session, annotator_id, session.get_one(Case, case_id))


def was_exposed_to(session: Session, annotator_id: uuid.UUID, case: ImageIdentity) -> bool:
    """Return whether an annotator may have seen more than the pixels of a loaded case."""
    asking = {"annotator_id": annotator_id, **identity_values(case)}
    return any(
        (role is not None and role_or_key_sees_more(role, scopes))
        or (other[0] is not None and are_twins(case, _ImageIdentityRow(*other)))
        for role, scopes, *other in session.execute(_exposure_statement(), asking)
    )


def _has_recorded_exposure(session: Session, annotator_id: uuid.UUID, case_id: uuid.UUID) -> bool:
    statement = select(Exposure.id).where(Exposure.annotator_id == annotator_id, Exposure.case_id == case_id)
    return session.execute(statement).first() is not None


def exposures_of(session: Session, case_id: uuid.UUID) -> list[tuple[str, datetime]]:
    """Annotators to whom prediction and labels of a case were shown, and when first."""
    statement = (
        select(Annotator.name, Exposure.created_at)
        .join(Annotator, Annotator.id == Exposure.annotator_id)
        .where(Exposure.case_id == case_id)
        .order_by(Exposure.id)
    )
    return [(row[0], row[1]) for row in session.execute(statement)]


def record_exposure(
    session: Session, annotator_id: uuid.UUID, case_id: uuid.UUID, release_id: uuid.UUID, label_id: uuid.UUID | None
) -> None:
    """Record in a writing session that a case is shown in full to an annotator, the first time it is."""
    values = {
        "id": new_id(),
        "created_at": time_of(session),
        "case_id": case_id,
        "annotator_id": annotator_id,
        "release_id": release_id,
        "label_id": label_id,
    }
    insert_if_absent(session, Exposure, values)


def note_exposure(database: Database, session: Session, principal: Principal, case_id: uuid.UUID) -> None:
    """Record before a read-only request answers that it shows a case in full to an annotator, whatever their scopes."""
    annotator = annotator_of_account(session, principal.account_id)
    if annotator is None or _has_recorded_exposure(session, annotator.id, case_id):
        return
    session.rollback()  # SQLite: the reading transaction must not wait for the writing one
    of_case = select(CasePrediction.release_id).where(CasePrediction.case_id == case_id)
    newest = select(CountedLabel.id).where(CountedLabel.case_id == case_id).order_by(CountedLabel.id.desc()).limit(1)
    with database.write() as writing:
        release_id = writing.execute(of_case.order_by(*champion_first_order()).limit(1)).scalar_one()
        record_exposure(writing, annotator.id, case_id, release_id, writing.execute(newest).scalar_one_or_none())
