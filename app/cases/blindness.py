"""Blindness rules: when a case is revealed to an annotator, and the record of each exposure."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from sqlalchemy import Select, and_, select
from sqlalchemy.orm import Session

from app.accounts.service import annotator_of_account, role_or_key_sees_more
from app.cases import correction_window
from app.cases.opaque_ids import ResolvedCase
from app.cases.repeat_selection import is_held_back_from
from app.database.engine import Database, insert_if_absent
from app.database.tables import (
    SHOWN_KINDS,
    Account,
    Annotator,
    ApiKey,
    Case,
    CasePrediction,
    CountedLabel,
    Exposure,
    Label,
    PolicyRow,
    ReadRequest,
    ReferenceCell,
    Repeat,
    new_id,
    time_of,
)
from app.http.errors import Forbidden
from app.http.principal import Principal
from app.predictions.service import champion_first_order
from app.triage.service import ImageIdentity, are_twins, current_policy, may_be_twin_of, policy_of_version
from ml.messages import messages


class BlindReadPending(Forbidden):
    """An annotator asks for what would unblind a read that is yet to be made."""

    code, title = "blind-read-pending", "Blind read pending"


Hidden = Literal["before-commit", "until-case-closed", "never"]

_HIDDEN_MESSAGES: dict[Hidden, str] = messages(
    {
        "before-commit": "commit your own label first; then this is shown",
        "until-case-closed": "this is shown once all planned reads of the case are in, "
        "unless the policy keeps it closed",
        "never": "the reading policy shows this to no annotator",
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


def _exposure_statement(annotator_id: uuid.UUID, case: ImageIdentity) -> Select[Any]:
    """Select an account's role and scopes, and the cases that it saw and that may be twins of a case."""
    exposed_cases = select(Exposure.case_id).where(Exposure.annotator_id == annotator_id)
    not_blind = select(CountedLabel.case_id).where(
        CountedLabel.annotator_id == annotator_id, CountedLabel.blind.is_(False)
    )
    with_account = select(Annotator.id).where(Annotator.id == annotator_id, Annotator.account_id.is_not(None))
    reference = select(ReferenceCell.case_id).where(
        ReferenceCell.kind.in_(SHOWN_KINDS), with_account.correlate(None).exists()
    )
    unblinded_cases = exposed_cases.union_all(not_blind, reference)
    twin = may_be_twin_of(case)
    columns = (Case.id, Case.pixels_sha256, Case.patient, Case.image_hash)
    statement: Select[Any] = (
        select()
        .add_columns(Account.role, ApiKey.scopes, *columns)
        .select_from(Annotator)
        .outerjoin(Account, Account.id == Annotator.account_id)
        .outerjoin(ApiKey, ApiKey.account_id == Account.id)
        .outerjoin(Case, and_(Case.id.in_(unblinded_cases), twin))
        .where(Annotator.id == annotator_id)
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
    return any(
        (role is not None and role_or_key_sees_more(role, scopes))
        or (other[0] is not None and are_twins(case, _ImageIdentityRow(*other)))
        for role, scopes, *other in session.execute(_exposure_statement(annotator_id, case))
    )


def _has_recorded_exposure(session: Session, annotator_id: uuid.UUID, case_id: uuid.UUID) -> bool:
    """Whether it is recorded that this very case was shown to an annotator in full."""
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


def exposed_case_ids(session: Session, annotator_id: uuid.UUID) -> set[uuid.UUID]:
    """Cases that an annotator has been shown in full."""
    return set(session.execute(select(Exposure.case_id).where(Exposure.annotator_id == annotator_id)).scalars())


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
