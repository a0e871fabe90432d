"""Store and show specimens."""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from sqlalchemy import exists, func, or_, select
from sqlalchemy.orm import Session

from app.cases.service import (
    CaseFilter,
    CasesOut,
    SpecimenFields,
    add_specimen,
    decode_cursor,
    encode_cursor,
    find_same_specimen,
    list_cases,
    specimen_digest,
)
from app.context import AppContext, ServiceContext
from app.database.advisory_locks import lock_digests
from app.database.tables import Case, Specimen, SpecimenResult, SpecimenSignature
from app.database.tables.values import SpecimenState
from app.http.errors import Problem
from app.http.principal import Principal
from app.specimens.measuring import MOST_DECIDING as MOST_DECIDING
from app.specimens.measuring import Basis, bases_of, existing_specimen, refresh_specimen
from app.specimens.quality import DailyShares, coverage_limits, daily_shares, learned_quality, reported_shares
from app.specimens.schemas import (
    MeasuredShares,
    SignatureIn,
    SignatureOut,
    SignedVersionOut,
    SpecimenIn,
    SpecimenOut,
    SpecimensOut,
)
from app.specimens.signing import list_notices, list_signatures, prepare_signature, sign_specimen, signatures_of

# when a specimen was taken, or stored if that is not known
_TAKEN = func.coalesce(Specimen.collected_at, Specimen.created_at)
# cases whose specimens are read in one statement
_TOGETHER = 1000
_COLUMNS = (
    *("specimen", "patient", "site", "state", "signature", "signed_at", "n_cells", "group", "count"),
    *("slide_share", "slide_low", "slide_high", "patient_share", "patient_low", "patient_high"),
)


def store_specimen(
    session: Session, context: ServiceContext, principal: Principal, body: SpecimenIn
) -> tuple[int, SpecimenOut]:
    """Store a specimen; the same one again gives that which is there."""
    lock_digests(session, [specimen_digest(body.external_id)])
    fields = SpecimenFields(body.external_id, body.patient, body.site, body.collected_at)
    there = find_same_specimen(session, fields)
    specimen = there or add_specimen(session, context.keys.audit, principal, fields)
    return 201 if there is None else 200, specimens_out(session, [specimen])[0]


def show_specimen(session: Session, specimen_id: uuid.UUID) -> SpecimenOut:
    """A specimen with its shares as they were computed last."""
    return specimens_out(session, [existing_specimen(session, specimen_id)])[0]


def list_specimens(
    session: Session,
    cursor: str | None,
    limit: int,
    *,
    state: SpecimenState | None = None,
    patient: str | None = None,
    site: str | None = None,
    after: datetime | None = None,
    search: str | None = None,
    taken: tuple[datetime, datetime] | None = None,
) -> SpecimensOut:
    """A page of specimens, newest first; ``search`` covers parts of external ids and patients."""
    statement = select(Specimen).outerjoin(SpecimenResult, SpecimenResult.specimen_id == Specimen.id)
    statement = statement.where(Specimen.erased_at.is_(None)).order_by(Specimen.id.desc())
    if state is not None:
        measured = SpecimenResult.state == state
        of_state = measured | SpecimenResult.state.is_(None) if state == "open" else measured
        signed = exists().where(SpecimenSignature.specimen_id == Specimen.id)
        statement = statement.where(signed if state == "signed" else of_state & ~signed)
    equal = {Specimen.patient: patient, Specimen.site: site}
    statement = statement.where(*(column == value for column, value in equal.items() if value is not None))
    if after is not None:
        statement = statement.where((Specimen.created_at > after) | (SpecimenResult.computed_at > after))
    if search is not None:
        matches = [column.icontains(search, autoescape=True) for column in (Specimen.external_id, Specimen.patient)]
        statement = statement.where(or_(*matches))
    if taken is not None:
        statement = statement.where(taken[0] <= _TAKEN, taken[1] > _TAKEN)
    if cursor is not None:
        statement = statement.where(Specimen.id < decode_cursor(cursor))
    rows = list(session.execute(statement.limit(limit + 1)).scalars())
    next_cursor = encode_cursor(rows[limit - 1].id) if len(rows) > limit else None
    return SpecimensOut(items=specimens_out(session, rows[:limit]), next_cursor=next_cursor)


def list_specimen_sites(session: Session) -> list[str]:
    """Every site that a specimen names, in order."""
    live = (Specimen.site.is_not(None), Specimen.erased_at.is_(None))
    named = select(Specimen.site).where(*live).distinct().order_by(Specimen.site)
    return [site for site in session.execute(named).scalars() if site is not None]


def earlier_specimens(session: Session, specimen_id: uuid.UUID, most: int) -> list[SpecimenOut]:
    """Specimens of the same patient that are older, the newest of them, the oldest first."""
    own = existing_specimen(session, specimen_id)
    if own.patient is None:
        return []
    older = (
        Specimen.patient == own.patient,
        Specimen.erased_at.is_(None),
        (own.collected_at or own.created_at) > _TAKEN,
    )
    statement = select(Specimen).where(*older).order_by(_TAKEN.desc(), Specimen.id.desc()).limit(most)
    return specimens_out(session, list(session.execute(statement).scalars())[::-1])


def neighbouring_specimens(session: Session, specimen_id: uuid.UUID) -> tuple[uuid.UUID | None, uuid.UUID | None]:
    """The next newer and the next older specimen."""
    there = select(Specimen.id).where(Specimen.erased_at.is_(None)).limit(1)
    newer = there.where(Specimen.id > specimen_id).order_by(Specimen.id)
    older = there.where(Specimen.id < specimen_id).order_by(Specimen.id.desc())
    return session.execute(newer).scalar_one_or_none(), session.execute(older).scalar_one_or_none()


def measure_if_stale(specimen_id: uuid.UUID, context: AppContext) -> None:
    """Measure a specimen whose shares are stale, before its caller's session begins."""
    with context.database.read() as session:
        existing_specimen(session, specimen_id)
    with suppress(Problem):  # a service that cannot write shows what it has, as stale
        refresh_specimen(context, specimen_id)


def specimens_out(session: Session, specimens: list[Specimen]) -> list[SpecimenOut]:
    """Specimens as the API shows them, in their order."""
    ids = [specimen.id for specimen in specimens]
    results = {
        row.specimen_id: row
        for row in session.execute(select(SpecimenResult).where(SpecimenResult.specimen_id.in_(ids))).scalars()
    }
    bases, signatures = bases_of(session, ids), signatures_of(session, ids)
    return [
        _specimen_out(specimen, results.get(specimen.id), bases[specimen.id], signatures.get(specimen.id))
        for specimen in specimens
    ]


def _specimen_out(
    specimen: Specimen, result: SpecimenResult | None, basis: Basis, signatures: list[SignedVersionOut] | None
) -> SpecimenOut:
    shares = MeasuredShares() if result is None else MeasuredShares.model_validate(result.document)
    return SpecimenOut(
        **shares.model_dump(exclude={"n_cells"}),
        n_cells=basis.n_cells,
        specimen=str(specimen.id),
        external_id=specimen.external_id,
        patient=specimen.patient,
        site=specimen.site,
        collected_at=specimen.collected_at,
        created_at=specimen.created_at,
        state="signed" if signatures else "open" if result is None else result.state,
        version=0 if result is None else result.version,
        computed_at=None if result is None else result.computed_at,
        stale=result is None or result.basis != basis.digest,
        signature=SignatureOut(**signatures[0].model_dump(exclude={"document"})) if signatures else None,
    )


def list_specimen_cells(session: Session, specimen_id: uuid.UUID, cursor: str | None, limit: int) -> CasesOut:
    """A page of a specimen's cells, newest first."""
    existing_specimen(session, specimen_id)
    return list_cases(session, CaseFilter(specimen=specimen_id), cursor, limit)


def tables_of_specimens(session: Session, case_ids: Sequence[uuid.UUID]) -> tuple[list[str], dict[str, list[str]]]:
    """External id of the specimen of each case, empty for none, and the shares of these specimens, a row per group."""
    specimen_of: dict[uuid.UUID, uuid.UUID] = {}
    for start in range(0, len(case_ids), _TOGETHER):
        some = (Case.id.in_(case_ids[start : start + _TOGETHER]), Case.specimen_id.is_not(None))
        found = session.execute(select(Case.id, Case.specimen_id).where(*some))
        specimen_of |= {row[0]: row[1] for row in found if row[1] is not None}
    rows = [session.get_one(Specimen, specimen_id) for specimen_id in sorted(set(specimen_of.values()))]
    names = {row.id: row.external_id for row in rows}
    columns: dict[str, list[str]] = {name: [] for name in _COLUMNS}
    for one in specimens_out(session, rows):
        for group in one.groups:
            signed = (None, None) if (last := one.signature) is None else (last.number, last.signed_at.isoformat())
            about = (one.external_id, one.patient, one.site, one.state, *signed, one.n_cells, group.group, group.count)
            shares = [number for share in (group.slide, group.patient) for number in (share.share, *share.interval)]
            for name, value in zip(_COLUMNS, (*about, *shares), strict=True):
                columns[name].append("" if value is None else str(value))
    return [names[specimen_of[one]] if one in specimen_of else "" for one in case_ids], columns
