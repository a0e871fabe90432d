"""The laboratory's own report targets, versioned and audited."""

from typing import Annotated

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.tables import ReportTargets
from app.http.errors import Conflict, PreconditionFailed
from app.http.models import Line, RequestModel, ResponseModel
from app.http.principal import Principal

_Gap = Annotated[float, Field(gt=0, lt=1)]
_Share = Annotated[float, Field(gt=0, lt=1)]


class TargetsIn(RequestModel):
    """New targets; a missing one takes its default."""

    disagreement_gap: _Gap = 0.10
    leading_gap: _Gap = 0.05
    caught: _Share = 0.60
    agreement: _Share = 0.80
    hours: Annotated[float, Field(gt=0, le=8760)] = 48.0
    reason: Line


class TargetsOut(ResponseModel):
    """Targets in force."""

    version: int
    disagreement_gap: float
    leading_gap: float
    caught: float
    agreement: float
    hours: float


def current_targets(session: Session) -> TargetsOut:
    """The targets in force."""
    newest = select(ReportTargets).order_by(ReportTargets.version.desc()).limit(1)
    row = session.execute(newest).scalar_one_or_none()
    if row is None:
        return TargetsOut(version=0, **TargetsIn(reason="default").model_dump(exclude={"reason"}))
    return TargetsOut(**{name: getattr(row, name) for name in TargetsOut.model_fields})


def set_targets(
    session: Session, keys: AuditKeys, principal: Principal, body: TargetsIn, seen: int | None = None
) -> TargetsOut:
    """Set new targets."""
    before, new_values = current_targets(session), body.model_dump(exclude={"reason"})
    if seen is not None and seen != before.version:
        raise PreconditionFailed("version {version} is in force, not {seen}", version=before.version, seen=seen)
    changed = {
        name: [getattr(before, name), value] for name, value in new_values.items() if getattr(before, name) != value
    }
    if not changed:
        raise Conflict("these targets are already in force")
    version = before.version + 1
    session.add(ReportTargets(version=version, created_by=principal.account_id, reason=body.reason, **new_values))
    session.flush()
    events.record_event(
        session,
        keys,
        actor=principal.name,
        action="targets.change",
        object_id=version,
        details=changed,
        reason=body.reason,
    )
    return TargetsOut(version=version, **new_values)
