"""Erasing a patient: images, features and identifiers go, an audited tombstone stays, labels stay, unlinked."""

import secrets
import uuid
from collections.abc import Sequence

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from app.context import Context
from app.platform import audit_chain
from app.platform.errors import NotFound
from app.platform.idempotency import forget_cases
from app.platform.written_rows import note_deleted, note_rows
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
    of_patient = select(Case).where(Case.patient == patient).order_by(Case.id).with_for_update()
    cases = list(session.execute(of_patient).scalars())
    if not cases:
        raise NotFound("there is no case of this patient")
    ids, word = [case.id for case in cases], f"erased-{secrets.token_hex(8)}"
    forget_cases(session, ids)
    images = {case.stored_sha256 for case in cases}
    for case in cases:
        case.external_id, case.patient, case.case_metadata = f"erased-{case.id}", word, {}
        case.image_sha256 = case.stored_sha256 = _GONE
        case.image_hash, case.stain, case.waiting, case.erased_at = None, None, False, now()
    _erase_rows_of_cases(session, ids, word)
    session.flush()
    used = set(session.execute(select(Case.stored_sha256).where(Case.stored_sha256.in_(images))).scalars())
    for case in cases:
        audit_chain.record(
            session,
            context.keys.audit,
            actor=actor,
            action="case.erase",
            object_id=case.id,
            reason=reason,
            cases=[case.id],
        )
    return len(cases), sorted(images - used)


def _erase_rows_of_cases(session: Session, ids: Sequence[uuid.UUID], word: str) -> None:
    """Erase what other tables say about the patient of these cases, and close what is still asked for."""
    gone = delete(NetworkOutput).where(NetworkOutput.case_id.in_(ids)).returning(NetworkOutput.id)
    note_deleted(session, NetworkOutput, session.execute(gone).mappings().all())
    twins = delete(CaseTwin).where(or_(CaseTwin.case_id.in_(ids), CaseTwin.twin_id.in_(ids)))
    note_deleted(session, CaseTwin, session.execute(twins.returning(*CaseTwin.__table__.columns)).mappings().all())
    said = update(ImportRow).where(ImportRow.case_id.in_(ids)).values(external_id=word, detail="")
    note_rows(session, ImportRow, session.execute(said.returning(*ImportRow.__table__.columns)).mappings().all())
    wanted = (ReadRequest.case_id.in_(ids), ReadRequest.state.in_(("open", "leased")))
    closed = update(ReadRequest).where(*wanted).values(state="closed", closed_at=now(), lease_expires_at=None)
    note_rows(session, ReadRequest, session.execute(closed.returning(*ReadRequest.__table__.columns)).mappings().all())
