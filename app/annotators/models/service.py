"""Annotator models: storing, listing and switching them."""

import uuid

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.annotators.models.schemas import (
    NamedReaderOut,
    ReaderFitIn,
    ReaderFitOut,
    ReaderModelDetailOut,
    ReaderModelInUseOut,
    ReaderModelOut,
    ReaderModelsOut,
    ReaderSwitchIn,
)
from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.context import ServiceContext
from app.database.advisory_locks import AdvisoryLock, acquire_lock
from app.database.revisions import compare_and_swap
from app.database.tables import ReaderModelInUse, ReaderModelRow
from app.http.errors import Conflict, NotFound, PreconditionFailed
from app.http.principal import Principal
from app.jobs import service
from app.jobs.service import JobOut, job_out
from app.releases.service import class_names, existing_release, get_champion_alias, served_release_id
from ml.annotators.confusions import ReaderModel, describe_annotator_habit
from ml.util.arrays import FloatArray

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
        raise NotFound("there is no such annotator model")
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


def store_model(session: Session, keys: AuditKeys, release_id: uuid.UUID, model: ReaderModel, fit: ReaderFitOut) -> int:
    """Keep a model as the next version; it is in use only once somebody switches."""
    # of two that come this far, the second waits here, and then numbers itself after the first
    acquire_lock(session, AdvisoryLock.READER_MODEL)
    version = next_version(session)
    row = ReaderModelRow(version=version, release_id=release_id, document=model.to_dict(), report=fit.model_dump())
    session.add(row)
    session.flush()
    details = {"version": version, "release": str(release_id), "passed": fit.passed}
    events.record_event(session, keys, actor="readers", action="readers.fit", object_id=row.id, details=details)
    return version


def list_models(session: Session) -> ReaderModelsOut:
    """Every version, newest first, and which one is in use."""
    chosen = get_model_switch(session)
    version = None if chosen is None else chosen.version
    items = [model_out(row, version) for row in all_models(session)]
    return ReaderModelsOut(in_use=version, revision=0 if chosen is None else chosen.revision, items=items)


def switch_position(session: Session) -> ReaderModelInUseOut:
    """Return the version in use, and whether it weights labels now."""
    chosen = get_model_switch(session)
    if chosen is None or chosen.version is None:
        return ReaderModelInUseOut(version=None, serves=False, revision=0 if chosen is None else chosen.revision)
    row, served = model_of_version(session, chosen.version), get_champion_alias(session)
    serves = served is not None and row.release_id == served.release_id
    return ReaderModelInUseOut(version=chosen.version, serves=serves, revision=chosen.revision)


def model_out(row: ReaderModelRow, version_in_use: int | None) -> ReaderModelOut:
    """A version as the API shows it."""
    return ReaderModelOut(
        version=row.version,
        release=str(row.release_id),
        created_at=row.created_at,
        in_use=row.version == version_in_use,
        fit=ReaderFitOut.model_validate(row.report),
    )


def show_model_detail(session: Session, version: int) -> ReaderModelDetailOut:
    """A version with the matrix of each annotator."""
    row, chosen = model_of_version(session, version), get_model_switch(session)
    try:
        model = ReaderModel.from_dict(row.document)
    except ValueError as exc:
        raise Conflict(
            "version {version} cannot be read ({exc}); run `secondread db verify` to find the change",
            version=version,
            exc=exc,
        ) from exc
    names = class_names(session, row.release_id)
    codes = list(names)
    readers = [
        NamedReaderOut(
            annotator=name,
            n_labels=int(n_labels),
            confusions=_by_code(confusions, codes),
            remark=describe_annotator_habit(model, name, list(names.values())),
        )
        for name, n_labels, confusions in zip(model.names, model.n_labels, model.confusions, strict=True)
    ]
    summary = model_out(row, None if chosen is None else chosen.version)
    population = _by_code(model.population, codes)
    return ReaderModelDetailOut(**dict(summary), class_names=names, readers=readers, population=population)


def _by_code(matrix: FloatArray, codes: list[str]) -> dict[str, dict[str, float]]:
    return {opinion: dict(zip(codes, row, strict=True)) for opinion, row in zip(codes, matrix.tolist(), strict=True)}


def request_model_fit(
    session: Session, context: ServiceContext, principal: Principal, body: ReaderFitIn
) -> tuple[int, JobOut]:
    """Request a fit of the annotators under the champion, or under a candidate with its network."""
    champion_row = existing_release(session, served_release_id(session))
    if body.release is not None:
        named = existing_release(session, body.release)
        if named.card["files"]["network.onnx"] != champion_row.card["files"]["network.onnx"]:
            raise Conflict("this model release uses a different network from the champion; promote it before fitting")
    return 202, job_out(service.submit_job(session, context, "readers", body.model_dump(mode="json"), principal))


def switch_model(
    session: Session, context: ServiceContext, actor: str, body: ReaderSwitchIn, revision: int | None
) -> ReaderModelInUseOut:
    """Weigh labels by a version from now on, or take annotators as alike again."""
    # Posteriors are computed from labels whenever they are shown, so that nothing stored changes.
    chosen = get_model_switch(session)
    present = 0 if chosen is None else chosen.revision
    if revision is not None and revision != present:
        raise PreconditionFailed("the switch is now at revision {present}; reload before changing it", present=present)
    if body.version is not None:
        _require_usable(session, model_of_version(session, body.version))
    before = None if chosen is None else chosen.version
    if not compare_and_swap(session, ReaderModelInUse, {"id": SWITCH_ROW_ID}, {"version": body.version}, present):
        raise Conflict("the switch was changed in the meantime; reload")
    events.record_event(
        session,
        context.keys.audit,
        actor=actor,
        action="readers.switch",
        object_id="reader-model",
        details={"before": before, "after": body.version, "revision": present + 1},
        reason=body.reason.strip(),
    )
    session.expire_all()
    return switch_position(session)


def _require_usable(session: Session, row: ReaderModelRow) -> None:
    """Refuse a version whose names are not worth having, or that was fitted beside another release."""
    fit = ReaderFitOut.model_validate(row.report)
    if not fit.passed:
        raise Conflict("version {version} cannot be used: {verdict}", version=row.version, verdict=fit.verdict)
    if row.release_id != served_release_id(session):
        raise Conflict(
            "version {version} was fitted for another model release; fit a new one for the champion",
            version=row.version,
        )
