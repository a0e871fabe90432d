"""Sign specimens: who may, what is signed, and whom a later change is shown to."""

import uuid
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from app.accounts.service import confirm_signer
from app.audit.chain import events
from app.audit.chain.verify_proof import digest_json
from app.context import Call
from app.database.tables import Account, Specimen, SpecimenRemark, SpecimenResult, SpecimenSignature, new_id
from app.http.errors import Conflict, NotFound, PreconditionFailed
from app.specimens.measuring import (
    bases_of,
    differing_decisions,
    existing_specimen,
    latest_signature,
    refresh_specimen,
)
from app.specimens.schemas import DifferenceOut, SignatureIn, SignedVersionOut
from app.triage.service import current_policy
from ml.messages import Message, Number, Term

# notices that are listed
_MOST_NOTICES = 20


def prepare_signature(call: Call, specimen_id: uuid.UUID, password: str | None) -> None:
    """Make sure that the person is there, and measure stale shares again; the call's transaction starts again."""
    confirm_signer(call.request, call.session, call.principal, password)
    with call.context.database.read() as session:
        existing_specimen(session, specimen_id)
    refresh_specimen(call.context, specimen_id)


def sign_specimen(call: Call, specimen_id: uuid.UUID, body: SignatureIn) -> tuple[int, SignedVersionOut]:
    """Sign the shares that were shown, in one transaction; ``prepare_signature`` comes first."""
    session, principal = call.session, call.principal
    # of two who sign at once, the second one waits here; an erasure of the patient comes before, or finds the remark
    locked = select(Specimen).where(Specimen.id == specimen_id).with_for_update(key_share=True)
    session.execute(locked.execution_options(populate_existing=True)).all()
    existing_specimen(session, specimen_id)
    before, result = latest_signature(session, specimen_id), session.get(SpecimenResult, specimen_id)
    _require_seen(before, body)
    basis = bases_of(session, [specimen_id])[specimen_id]
    if result is None or result.basis != basis.digest or body.version not in {None, result.version}:
        raise PreconditionFailed("the shares have changed since they were shown; look at them again")
    if not result.cells:
        raise Conflict("the specimen has no cells, so there is nothing to sign")
    shown = {"specimen": str(specimen_id), "version": result.version, "policy": current_policy(session).version}
    document = {**result.document, **shown, "n_cells": basis.n_cells}
    signature = SpecimenSignature(
        id=new_id(),
        specimen_id=specimen_id,
        number=1 if before is None else before.number + 1,
        account_id=principal.account_id,
        meaning=body.meaning,
        document=document,
        digest=digest_json(document),
    )
    session.add(signature)
    result.differs = False
    session.flush()
    if body.comment or body.reason:
        remark = {"comment": body.comment, "reason": body.reason}
        session.add(SpecimenRemark(id=signature.id, specimen_id=specimen_id, **remark))
        session.flush()
    details = {"number": signature.number, "meaning": body.meaning, "digest": signature.digest}
    keys = call.context.keys.audit
    events.record_event(
        session, keys, actor=principal.name, action="specimen.sign", object_id=specimen_id, details=details
    )
    return 201, signatures_of(session, [specimen_id])[specimen_id][0]


def _require_seen(before: SpecimenSignature | None, body: SignatureIn) -> None:
    """Refuse somebody who has not seen the last signature, or amends it without a reason."""
    if body.amends is not None and body.amends != (before and before.number):
        raise PreconditionFailed("the signatures have changed since they were shown; look at them again")
    if before is None and body.reason is not None:
        raise Conflict("there is no signature to amend; a first signature has no reason")
    if before is not None and body.reason is None:
        raise Conflict("the specimen has been signed; look at it again, and give a reason for an amendment")


def signatures_of(session: Session, specimen_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[SignedVersionOut]]:
    """Signatures on each of the specimens that has one, newest first."""
    statement = (
        select(SpecimenSignature, Account.name, SpecimenRemark, SpecimenResult.document)
        .join(Account, Account.id == SpecimenSignature.account_id)
        .outerjoin(SpecimenRemark, SpecimenRemark.id == SpecimenSignature.id)
        .outerjoin(SpecimenResult, SpecimenResult.specimen_id == SpecimenSignature.specimen_id)
        .where(SpecimenSignature.specimen_id.in_(specimen_ids))
        .order_by(SpecimenSignature.number.desc())
    )
    signatures: dict[uuid.UUID, list[SignedVersionOut]] = {}
    for signature, by, remark, now in session.execute(statement):
        one = SignedVersionOut(
            number=signature.number,
            meaning=signature.meaning,
            by=by,
            signed_at=signature.created_at,
            comment=None if remark is None else remark.comment,
            reason=None if remark is None else remark.reason,
            version=signature.document["version"],
            digest=signature.digest,
            differs=[] if now is None else differing_decisions(signature.document, now),
            document=signature.document,
        )
        signatures.setdefault(signature.specimen_id, []).append(one)
    return signatures


def list_signatures(session: Session, specimen_id: uuid.UUID) -> list[SignedVersionOut]:
    """Signatures on a specimen, newest first; those of an erased one without free text."""
    if session.get(Specimen, specimen_id) is None:
        raise NotFound("there is no such specimen")
    return signatures_of(session, [specimen_id]).get(specimen_id, [])


@dataclass(frozen=True)
class Notice:
    """A specimen of which a decision is not the signed one any more, and a sentence for each such decision."""

    specimen_id: uuid.UUID
    sentences: list[str]


def list_notices(session: Session, account_id: uuid.UUID) -> list[Notice]:
    """Specimens that an account signed last and of which a decision differs now, at most 20, the newest first.

    A notice ends with an amendment by anybody, or when the decisions are again as they were signed.
    """
    other = aliased(SpecimenSignature)
    newest = select(func.max(other.number)).where(other.specimen_id == SpecimenSignature.specimen_id)
    statement = (
        select(Specimen.id, Specimen.external_id, SpecimenSignature.document, SpecimenResult.document)
        .join(SpecimenResult, SpecimenResult.specimen_id == Specimen.id)
        .join(SpecimenSignature, SpecimenSignature.specimen_id == Specimen.id)
        .where(SpecimenResult.differs, Specimen.erased_at.is_(None), SpecimenSignature.account_id == account_id)
        .where(SpecimenSignature.number == newest.scalar_subquery())
        .order_by(SpecimenSignature.id.desc())
        .limit(_MOST_NOTICES)
    )
    return [
        Notice(specimen_id, [_changed(external_id, one) for one in differing_decisions(signed, now)])
        for specimen_id, external_id, signed, now in session.execute(statement)
    ]


def _changed(external_id: str, one: DifferenceOut) -> str:
    return Message(
        "{specimen}: {group} at {at} was signed as {signed}, and is {now} now.",
        specimen=external_id,
        group=one.group,
        at=Number(f"{100 * one.at:.3g}%"),
        signed=Term(one.signed),
        now=Term(one.now),
    )
