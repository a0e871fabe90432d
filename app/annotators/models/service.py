"""Annotator models: storing, listing and switching them."""

import uuid

from sqlalchemy.orm import Session

from app.annotators.models.queries import ONLY, all_models, in_use, model_of_version, next_version
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
from app.context import Context
from app.database.revisions import swap
from app.database.sql.advisory_locks import Turn, take_turn
from app.database.tables import ReaderModelInUse, ReaderModelRow
from app.http.errors import Conflict, PreconditionFailed
from app.http.principal import Principal
from app.jobs import service
from app.jobs.schemas import JobOut, job_out
from app.releases.queries import champion, existing_release, served_release_id
from ml.annotators.confusions import ReaderModel
from ml.annotators.sentences import remark
from ml.messages import Message
from ml.util.arrays import FloatArray


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


def list_models(session: Session) -> ReaderModelsOut:
    """Every version, newest first, and which one is in use."""
    chosen = in_use(session)
    version = None if chosen is None else chosen.version
    items = [model_out(row, version) for row in all_models(session)]
    return ReaderModelsOut(in_use=version, revision=0 if chosen is None else chosen.revision, items=items)


def switch_position(session: Session) -> ReaderModelInUseOut:
    """Which version is in use, and whether it weighs labels now."""
    chosen = in_use(session)
    if chosen is None or chosen.version is None:
        return ReaderModelInUseOut(version=None, serves=False, revision=0 if chosen is None else chosen.revision)
    row, served = model_of_version(session, chosen.version), champion(session)
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


def detail(session: Session, version: int) -> ReaderModelDetailOut:
    """A version with the matrix of each annotator.

    Raises:
        NotFound: there is no such version.
        Conflict: its row was damaged.
    """
    row, chosen = model_of_version(session, version), in_use(session)
    try:
        model = ReaderModel.from_dict(row.document)
    except ValueError as exc:
        raise Conflict(
            Message(
                "version {version} cannot be read ({exc}); `secondread db verify` tells what was changed",
                version=version,
                exc=exc,
            )
        ) from exc
    classes = existing_release(session, row.release_id).card["classes"]
    codes, names = [info["code"] for info in classes], [info["name"] for info in classes]
    readers = [
        NamedReaderOut(
            annotator=name,
            n_labels=int(n_labels),
            confusions=_by_code(confusions, codes),
            remark=remark(model, name, names),
        )
        for name, n_labels, confusions in zip(model.names, model.n_labels, model.confusions, strict=True)
    ]
    shown = model_out(row, None if chosen is None else chosen.version)
    classes_by_code = dict(zip(codes, names, strict=True))
    population = _by_code(model.population, codes)
    return ReaderModelDetailOut(**dict(shown), class_names=classes_by_code, readers=readers, population=population)


def _by_code(matrix: FloatArray, codes: list[str]) -> dict[str, dict[str, float]]:
    """A matrix (K, K) by the codes of opinion and answer."""
    return {opinion: dict(zip(codes, row, strict=True)) for opinion, row in zip(codes, matrix.tolist(), strict=True)}


def ask_fit(session: Session, context: Context, principal: Principal, body: ReaderFitIn) -> tuple[int, JobOut]:
    """Ask for a fit of the annotators beside the champion, or beside a candidate by its network.

    Returns:
        202 and the job.

    Raises:
        NoRelease: there is no champion.
        NotFound: there is no such release.
        Conflict: the release has another network than the champion, whose stored outputs are all that there is.
    """
    champion_row = existing_release(session, served_release_id(session))
    if body.release is not None:
        named = existing_release(session, body.release)
        if named.card["files"]["network.onnx"] != champion_row.card["files"]["network.onnx"]:
            raise Conflict("this release has another network than the champion; promote it first, and fit then")
    return 202, job_out(service.submit(session, context, "readers", body.model_dump(mode="json"), principal))


def switch(
    session: Session, context: Context, actor: str, body: ReaderSwitchIn, revision: int | None
) -> ReaderModelInUseOut:
    """Weigh labels by a version from now on, or take annotators as alike again.

    Posteriors are computed from labels whenever they are shown, so that nothing stored changes.

    Args:
        session: writing session.
        context: parts of the service.
        actor: who, for the audit.
        body: which version, and why.
        revision: of the switch as the caller saw it, 0 where there is none yet; None for whatever it is.

    Raises:
        NotFound: no such version.
        Conflict: held-out labels did not find its names worth having, it belongs to another release, or another request
            switches just now.
        PreconditionFailed: the switch is not where the caller saw it.
    """
    chosen = in_use(session)
    present = 0 if chosen is None else chosen.revision
    if revision is not None and revision != present:
        raise PreconditionFailed(
            Message("the switch is at revision {present} now; look again before you move it", present=present)
        )
    if body.version is not None:
        _require_usable(session, model_of_version(session, body.version))
    before = None if chosen is None else chosen.version
    if not swap(session, ReaderModelInUse, {"id": ONLY}, {"version": body.version}, present):
        raise Conflict("somebody else switched meanwhile; look again")
    events.record(
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
    """Refuse a version whose names are not worth having, or that was fitted beside another release.

    Raises:
        Conflict: it is one.
    """
    fit = ReaderFitOut.model_validate(row.report)
    if not fit.passed:
        raise Conflict(Message("version {version} cannot be used: {verdict}", version=row.version, verdict=fit.verdict))
    if row.release_id != served_release_id(session):
        raise Conflict(
            Message(
                "version {version} was fitted beside another release than the champion; fit a new one",
                version=row.version,
            )
        )
