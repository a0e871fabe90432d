"""Specimen of a cell: found by name, or stored with its first cell."""

import hashlib
import uuid
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.cases.schemas import CaseIn
from app.database.tables import Specimen, new_id
from app.http.errors import Conflict
from app.http.principal import Principal


class SpecimenMismatch(Conflict):
    """A specimen has another patient or site than what was sent."""

    code, title = "specimen-mismatch", "Specimen has other fields"


def specimen_digest(external_id: str) -> str:
    """Digest that those hold who may store a specimen, so that it is stored once."""
    return hashlib.sha256(f"specimen {external_id}".encode()).hexdigest()


def find_specimen(session: Session, name: str) -> Specimen | None:
    """Find a specimen by its external id, or by its identifier."""
    found = session.execute(select(Specimen).where(Specimen.external_id == name)).scalar_one_or_none()
    if found is not None:
        return found
    try:
        return session.get(Specimen, uuid.UUID(name))
    except ValueError:
        return None


def with_fields_of_specimen(session: Session, fields: CaseIn) -> CaseIn:
    """Give a cell the patient and the site of its specimen, unless it names its own."""
    specimen = None if fields.specimen is None else find_specimen(session, fields.specimen)
    if specimen is None:
        return fields
    own = {"patient": fields.patient or specimen.patient, "site": fields.site or specimen.site}
    return fields.model_copy(update=own)


def specimen_for_cell(session: Session, keys: AuditKeys, principal: Principal, fields: CaseIn) -> Specimen | None:
    """Specimen of a new cell, stored now if it is not there; its digest is held."""
    if fields.specimen is None:
        return None
    specimen = find_specimen(session, fields.specimen)
    if specimen is None:
        return add_specimen(session, keys, principal, fields.specimen, patient=fields.patient, site=fields.site)
    _require_same(specimen, patient=fields.patient, site=fields.site or specimen.site)
    return specimen


def add_specimen(
    session: Session,
    keys: AuditKeys,
    principal: Principal,
    external_id: str,
    *,
    patient: str | None,
    site: str | None,
    collected_at: datetime | None = None,
) -> Specimen:
    """Store a specimen, with its event."""
    about = {"patient": patient, "site": site, "collected_at": collected_at}
    specimen = Specimen(id=new_id(), external_id=external_id, created_by=principal.account_id, **about)
    session.add(specimen)
    session.flush()
    events.record_event(session, keys, actor=principal.name, action="specimen.add", object_id=specimen.id, details={})
    return specimen


def find_same_specimen(
    session: Session, external_id: str, *, patient: str | None, site: str | None, collected_at: datetime | None
) -> Specimen | None:
    """Find a specimen by its external id, and refuse other fields than it has."""
    specimen = session.execute(select(Specimen).where(Specimen.external_id == external_id)).scalar_one_or_none()
    if specimen is not None:
        _require_same(specimen, patient=patient, site=site, collected_at=collected_at)
    return specimen


def _require_same(specimen: Specimen, **sent: object) -> None:
    differing = [name for name, value in sent.items() if value != getattr(specimen, name)]
    if differing:
        raise SpecimenMismatch(
            "specimen {name} has a different {fields}; send what it was stored with, or choose another external id",
            name=specimen.external_id,
            fields=", ".join(differing),
        )


def is_of_other_specimen(session: Session, case_specimen: str | None, fields: CaseIn) -> bool:
    """Whether a stored cell belongs to another specimen than the one that is named, or to none."""
    if fields.specimen is None:
        return False
    named = find_specimen(session, fields.specimen)
    return named is None or str(named.id) != case_specimen
