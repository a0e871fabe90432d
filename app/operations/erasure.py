"""Erasing a patient: images, features and identifiers go, an audited tombstone stays, labels stay, unlinked."""

import secrets

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from app.context import Context
from app.platform import audit_chain
from app.platform.errors import NotFound
from app.platform.idempotency import forget_cases
from app.tables import Case, CaseTwin, ImportRow, NetworkOutput, ReadRequest, now

_GONE = "0" * 64


def erase_patient(session: Session, context: Context, actor: str, patient: str, reason: str) -> tuple[int, list[str]]:
    """Erase every case of a patient from the database.

    What names the patient is replaced by a random word, the same for all its cases, so that they still count as
    one patient. Free text that annotators wrote is part of their labels, which nobody may change: it stays.

    Args:
        session: writing session.
        context: parts of the service.
        actor: who, for the audit.
        patient: pseudonym as it was uploaded.
        reason: why; kept in the audit.

    Returns:
        Number of cases, and names of images that no other case uses: to be removed after the commit.

    Raises:
        NotFound: no case of this patient.
    """
    cases = list(session.execute(select(Case).where(Case.patient == patient).order_by(Case.id)).scalars())
    if not cases:
        raise NotFound("there is no case of this patient")
    ids, word = [case.id for case in cases], f"erased-{secrets.token_hex(8)}"
    forget_cases(session, ids)
    images = {case.stored_sha256 for case in cases}
    for case in cases:
        case.external_id, case.patient, case.case_metadata = f"erased-{case.id}", word, {}
        case.image_sha256 = case.stored_sha256 = _GONE
        case.image_hash, case.stain, case.waiting, case.erased_at = None, None, False, now()
    session.execute(delete(NetworkOutput).where(NetworkOutput.case_id.in_(ids)))
    session.execute(delete(CaseTwin).where(or_(CaseTwin.case_id.in_(ids), CaseTwin.twin_id.in_(ids))))
    session.execute(update(ImportRow).where(ImportRow.case_id.in_(ids)).values(external_id=word, detail=""))
    wanted = (ReadRequest.case_id.in_(ids), ReadRequest.state.in_(("open", "leased")))
    session.execute(update(ReadRequest).where(*wanted).values(state="closed", closed_at=now(), lease_expires_at=None))
    session.flush()
    used = set(session.execute(select(Case.stored_sha256).where(Case.stored_sha256.in_(images))).scalars())
    for case in cases:
        audit_chain.record(
            session,
            context.secret,
            actor=actor,
            action="case.erase",
            object_id=case.id,
            reason=reason,
            cases=[case.id],
        )
    return len(cases), sorted(images - used)
