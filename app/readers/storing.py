"""Keeping a fitted model of annotators as a version."""

import uuid

from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.sql.advisory_locks import Turn, take_turn
from app.database.tables import ReaderModelRow
from app.readers.queries import next_version
from app.readers.schemas import ReaderFitOut
from ml.readers.confusions import ReaderModel


def store_model(session: Session, keys: AuditKeys, release_id: uuid.UUID, model: ReaderModel, fit: ReaderFitOut) -> int:
    """Keep a model as the next version; it is in use only once somebody switches.

    Args:
        session: writing session.
        keys: of the audit.
        release_id: beside whose predictions it was fitted.
        model: of the annotators.
        fit: how it was fitted and judged.

    Returns:
        The version.
    """
    # of two that come this far, the second waits here, and then numbers itself after the first
    take_turn(session, Turn.READER_MODEL)
    version = next_version(session)
    row = ReaderModelRow(version=version, release_id=release_id, document=model.to_dict(), report=fit.model_dump())
    session.add(row)
    session.flush()
    details = {"version": version, "release": str(release_id), "passed": fit.passed}
    events.record(session, keys, actor="readers", action="readers.fit", object_id=row.id, details=details)
    return version
