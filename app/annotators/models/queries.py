"""Database access of annotator models."""

import uuid

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.database.tables import ReaderModelInUse, ReaderModelRow
from app.http.errors import NotFound
from ml.annotators.confusions import ReaderModel

SWITCH_ROW_ID = 1
_log = structlog.get_logger("secondread")


def get_model_switch(session: Session) -> ReaderModelInUse | None:
    """Return the switch between annotator models; None before its first use."""
    return session.get(ReaderModelInUse, SWITCH_ROW_ID)


def all_models(session: Session) -> list[ReaderModelRow]:
    """Every version, newest first."""
    return list(session.execute(select(ReaderModelRow).order_by(ReaderModelRow.version.desc())).scalars())


def model_of_version(session: Session, version: int) -> ReaderModelRow:
    """A version."""
    row = session.execute(select(ReaderModelRow).where(ReaderModelRow.version == version)).scalar_one_or_none()
    if row is None:
        raise NotFound("there is no such model of annotators")
    return row


def next_version(session: Session) -> int:
    """The number of the next version."""
    return 1 + (session.execute(select(func.max(ReaderModelRow.version))).scalar_one() or 0)


def model_in_use(session: Session, release_id: uuid.UUID) -> tuple[int, ReaderModel] | None:
    """The version that weighs labels under the predictions of a release, and the model; None: annotators are alike."""
    return model_of(session, get_model_switch(session), release_id)


def model_of(
    session: Session, chosen: ReaderModelInUse | None, release_id: uuid.UUID
) -> tuple[int, ReaderModel] | None:
    """The version that weighs labels under the predictions of a release, and the model; None: annotators are alike."""
    # A model is fitted beside one release's predictions: under another release's it says nothing. Nor does one whose
    # row was damaged.
    if chosen is None or chosen.version is None:
        return None
    model_row = session.execute(
        select(ReaderModelRow.id, ReaderModelRow.release_id).where(ReaderModelRow.version == chosen.version)
    ).one()
    if model_row.release_id != release_id:
        return None
    if model_row.id not in _MODELS_BY_ID:
        if len(_MODELS_BY_ID) >= _MOST_READ:
            _MODELS_BY_ID.clear()
        try:
            _MODELS_BY_ID[model_row.id] = ReaderModel.from_dict(session.get_one(ReaderModelRow, model_row.id).document)
        except ValueError as exc:  # somebody has changed the row, which ``verify`` tells
            _log.error("model of annotators cannot be read", version=chosen.version, error=str(exc))
            return None
    return chosen.version, _MODELS_BY_ID[model_row.id]


# rows are never changed, so that what was read of one holds
_MODELS_BY_ID: dict[uuid.UUID, ReaderModel] = {}
_MOST_READ = 4
