"""Releases: promotion, rollback, and judgement requests."""

import uuid

from sqlalchemy.orm import Session

from app.audit.chain import events
from app.context import ServiceContext
from app.database.revisions import compare_and_swap
from app.database.tables import Alias, ReleaseRow
from app.http.errors import Conflict, InvalidValue, PreconditionFailed
from app.http.models import ClassOut
from app.http.principal import Principal
from app.jobs import service
from app.jobs.service import OPEN, JobOut, JobView, job_out, newest_jobs
from app.releases.class_settings import (
    ClassSetting,
    apply_settings,
    change_class_settings,
    class_settings,
    find_setting_faults,
    list_class_settings,
    restored_settings,
)
from app.releases.gate_verdicts import (
    Attempt,
    Gate,
    SinceFirst,
    Verdict,
    WithoutAnnotator,
    Worse,
    begin_attempt,
    find_gate_against_champion,
    find_gate_fault,
    find_last_gate,
    find_standing_gate,
    first_champion_id,
    gate_verdict,
    read_card_gate,
    record_judgement,
)
from app.releases.queries import (
    all_releases,
    cached_release_classes,
    champion_since,
    class_codes,
    class_codes_of,
    class_names,
    existing_release,
    get_champion_alias,
    named_release_classes,
    previous_champion,
    read_aliases,
    reading_classes,
    release_by_id,
    releases_named,
    served_release_id,
    served_sha256,
)
from app.releases.registration import UNFINISHED, add_release, register_release
from app.releases.schemas import (
    DEFAULT_METHOD,
    RECALIBRATION_METHODS,
    AliasesOut,
    AliasOut,
    RecalibrationIn,
    RecalibrationMethod,
    ReleaseDetailOut,
    ReleaseOut,
    ReleasesOut,
)
from app.releases.training import (
    CaseFingerprint,
    check_training_disclosure,
    find_training_uses,
    patient_hmac,
    patient_unit,
)
from ml.messages import Message, joined
from ml.release.artifact import has_ood_check
from ml.release.card import has_measured_metrics

# judgements among which one that has not ended is looked for
_RECENT = 100


def submit_judgement(
    session: Session, context: ServiceContext, principal: Principal | None, release_id: uuid.UUID
) -> JobView:
    """Queue the judgement of a release against the champion, or name the one that waits or is under way."""
    # Each judgement is an attempt, so pressing twice must not ask twice.
    row = existing_release(session, release_id)
    if served_release_id(session) == release_id:
        raise Conflict("this model release is the champion; choose another one to compare")
    if (fault := find_gate_fault(row.card)) is not None:
        raise Conflict("{fault}; such a release cannot be promoted", fault=fault)
    parameters = {"release": str(release_id)}
    for job in newest_jobs(session, _RECENT, "judgement"):
        if job.state in OPEN and job.parameters == parameters:
            return job
    return service.submit_job(session, context, "judgement", parameters, principal)


_NOT_JUDGED = Message(
    "this model release needs a promotion check against the current champion "
    "(`secondread release judge`, the button on its page, or POST "
    "/v1/releases/{id}/judgements)"
)


def aliases_out(session: Session) -> AliasesOut:
    """Every alias."""
    return AliasesOut(items=[alias_out(row) for row in read_aliases(session)])


def alias_out(row: Alias) -> AliasOut:
    """An alias as the API shows it."""
    return AliasOut(name=row.name, release=str(row.release_id), revision=row.revision)


def move_alias(
    session: Session,
    context: ServiceContext,
    actor: str,
    name: str,
    release_id: uuid.UUID,
    reason: str,
    revision: int | None,
    *,
    despite_gate: bool = False,
) -> Alias:
    """Point an alias at a release, if it is still where the caller saw it; moving it back is the rollback."""
    # It asks for predictions of the release for old cases: a champion's are shown, a challenger's are compared.
    row, alias = existing_release(session, release_id), session.get(Alias, name)
    if name == "champion" and (fault := find_gate_fault(row.card)) is not None:
        raise Conflict("{fault}; such a release cannot be promoted", fault=fault)
    replaces_another = name == "champion" and alias is not None and alias.release_id != release_id
    overruled: Verdict | None = None
    if replaces_another and alias is not None:
        overruled = _require_choice(session, row, alias.release_id, reason, despite_gate=despite_gate)
    present = 0 if alias is None else alias.revision
    if revision is not None and revision != present:
        raise PreconditionFailed(
            "{name} is now at revision {present}; reload before changing it", name=name, present=present
        )
    before = None if alias is None else alias.release_id
    if not compare_and_swap(session, Alias, {"name": name}, {"release_id": release_id}, present):
        raise Conflict("{name} was changed in the meantime; reload", name=name)
    details = {"alias": name, "before": None if before is None else str(before), "after": str(release_id)}
    details |= {"despite_gate": overruled} if overruled else {}
    request_predictions(session, context, release_id, None)
    events.record_event(
        session,
        context.keys.audit,
        actor=actor,
        action="alias.move",
        object_id=release_id,
        details=details | {"revision": present + 1},
        reason=reason,
    )
    return session.get_one(Alias, name, populate_existing=True)


def _require_choice(
    session: Session, row: ReleaseRow, champion_id: uuid.UUID, reason: str, *, despite_gate: bool
) -> Verdict | None:
    """Stop the promotion of a release that the gate did not let through, unless somebody chose it and said why."""
    gate = find_gate_against_champion(session, row, champion_id)
    if gate is not None and gate.passed:
        return None
    if not despite_gate:
        verdict = (
            _NOT_JUDGED
            if gate is None
            else Message("the promotion check rejected this candidate: {reasons}", reasons=joined("; ", gate.reasons))
        )
        raise Conflict("{verdict}; to promote it anyway, set despite_gate and give the reason", verdict=verdict)
    if not reason.strip():
        raise InvalidValue("give the reason for promoting this model release without a passed check")
    return gate_verdict(gate)


def request_predictions(
    session: Session, context: ServiceContext, release_id: uuid.UUID, principal: Principal | None
) -> None:
    """Ask for the predictions of a release that old cases lack."""
    existing_release(session, release_id)
    service.submit_job(session, context, "prediction", {"release": str(release_id)}, principal)


def request_recalibration(
    session: Session, context: ServiceContext, principal: Principal | None, body: RecalibrationIn
) -> tuple[int, JobOut]:
    """Ask for a recalibration."""
    served_release_id(session)
    return 202, job_out(service.submit_job(session, context, "recalibration", body.model_dump(mode="json"), principal))


def request_judgement(
    session: Session, context: ServiceContext, principal: Principal, release_id: uuid.UUID
) -> tuple[int, JobOut]:
    """Ask for the judgement of a release against the champion."""
    return 202, job_out(submit_judgement(session, context, principal, release_id))


def list_releases(session: Session) -> ReleasesOut:
    """Every release, newest first."""
    names, settings = _alias_names(session), class_settings(session)[1]
    return ReleasesOut(items=[_release_out(row, names.get(row.id, []), settings) for row in all_releases(session)])


def _alias_names(session: Session) -> dict[uuid.UUID, list[str]]:
    names: dict[uuid.UUID, list[str]] = {}
    for alias in read_aliases(session):
        names.setdefault(alias.release_id, []).append(alias.name)
    return names


def describe_release(session: Session, row: ReleaseRow) -> ReleaseOut:
    """A release as the API shows it."""
    return _release_out(row, _alias_names(session).get(row.id, []), class_settings(session)[1])


def _release_out(row: ReleaseRow, alias_names: list[str], settings: list[ClassSetting]) -> ReleaseOut:
    fault = find_gate_fault(row.card)
    return ReleaseOut(
        id=str(row.id),
        name=row.name,
        aliases=alias_names,
        classes=apply_settings(settings, [ClassOut(**info) for info in row.card["classes"]], in_order=False),
        disagreement_calibrated=row.card["disagreement_calibrated"],
        out_of_distribution_check=has_ood_check(row.card),
        metrics_stated_by_maker=not has_measured_metrics(row.card),
        card_sha256=row.card_sha256,
        parent=row.card.get("parent"),
        gate_passed=None if row.gate == "not_judged" or fault is not None else row.gate == "passed",
        gate_fault=fault,
        created_at=row.created_at,
    )


def read_release_detail(session: Session, release_id: uuid.UUID) -> ReleaseDetailOut:
    """A release with its card."""
    row = existing_release(session, release_id)
    release_out = describe_release(session, row)
    gate = None if release_out.gate_fault else find_last_gate(session, row)
    return ReleaseDetailOut(**release_out.model_dump(), card={**row.card}, gate=gate)
