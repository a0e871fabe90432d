"""Specimen of a cell: found by name, or stored with its first cell."""

import hashlib
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.cases.schemas import CaseIn
from app.database.tables import Case, Specimen, new_id
from app.http.errors import Conflict, InvalidValue
from app.http.principal import Principal

#: Cells of a specimen at most, erased ones left out: its shares are computed from all of them together.
MOST_CELLS = 2000


class SpecimenMismatch(Conflict):
    """A specimen has another patient or site than what was sent."""

    code, title = "specimen-mismatch", "Specimen has other fields"


@dataclass(frozen=True)
class SpecimenFields:
    """What is known of a specimen before its cells."""

    external_id: str
    patient: str | None
    site: str | None
    # when it was taken
    collected_at: datetime | None = None


def specimen_digest(external_id: str) -> str:
    """Digest that those hold who may store a specimen, so that it is stored once."""
    return hashlib.sha256(f"specimen {external_id}".encode()).hexdigest()


def find_specimen(session: Session, name: str) -> Specimen | None:
    """Find a specimen by its external id, or by its identifier; one that is erased is refused."""
    found = session.execute(select(Specimen).where(Specimen.external_id == name)).scalar_one_or_none()
    with suppress(ValueError):
        found = found or session.get(Specimen, uuid.UUID(name))
    if found is not None and found.erased_at is not None:
        raise InvalidValue("there is no such specimen")
    return found


def with_fields_of_specimen(session: Session, fields: CaseIn, planned: SpecimenFields | None = None) -> CaseIn:
    """Give a cell the patient and the site of its specimen, stored or planned, unless it names its own."""
    specimen = None if fields.specimen is None else find_specimen(session, fields.specimen) or planned
    if specimen is None:
        return fields
    own = {"patient": fields.patient or specimen.patient, "site": fields.site or specimen.site}
    # however it was named, all who store a cell of it hold one digest
    return fields.model_copy(update={"specimen": specimen.external_id, **own})


def require_place(session: Session, specimen: Specimen | SpecimenFields, fields: CaseIn, n_planned: int = 0) -> None:
    """Refuse a new cell that has another patient or site than its specimen, or is one too many."""
    _require_same(specimen, SpecimenFields(specimen.external_id, fields.patient, fields.site, specimen.collected_at))
    cells = select(func.count(Case.id)).join(Specimen, Specimen.id == Case.specimen_id)
    cells = cells.where(Specimen.external_id == specimen.external_id, Case.erased_at.is_(None))
    if session.execute(cells).scalar_one() + n_planned >= MOST_CELLS:
        raise Conflict(
            "specimen {name} has {n} cells, the most that a specimen takes; put further cells into another specimen",
            name=specimen.external_id,
            n=MOST_CELLS,
        )


def specimen_for_cell(session: Session, keys: AuditKeys, principal: Principal, fields: CaseIn) -> Specimen | None:
    """Specimen of a new cell with its fields, stored now if it is not there; its digest is held."""
    if fields.specimen is None:
        return None
    specimen = find_specimen(session, fields.specimen)
    if specimen is None:
        return add_specimen(session, keys, principal, SpecimenFields(fields.specimen, fields.patient, fields.site))
    require_place(session, specimen, fields)
    return specimen


def add_specimen(session: Session, keys: AuditKeys, principal: Principal, fields: SpecimenFields) -> Specimen:
    """Store a specimen, with its event."""
    specimen = Specimen(id=new_id(), created_by=principal.account_id, **asdict(fields))
    session.add(specimen)
    session.flush()
    events.record_event(session, keys, actor=principal.name, action="specimen.add", object_id=specimen.id)
    return specimen


def find_same_specimen(session: Session, fields: SpecimenFields) -> Specimen | None:
    """Find a specimen by its external id, and refuse other fields than it has."""
    statement = select(Specimen).where(Specimen.external_id == fields.external_id)
    specimen = session.execute(statement).scalar_one_or_none()
    if specimen is not None:
        _require_same(specimen, fields)
    return specimen


def _require_same(specimen: Specimen | SpecimenFields, sent: SpecimenFields) -> None:
    differing = [name for name, value in asdict(sent).items() if value != getattr(specimen, name)]
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
