"""Erasure of rows, and the registry of erasures that a restore applies again."""

import hmac
import json
import random
import re
import secrets
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ValidationError
from sqlalchemy import ColumnElement, delete, or_, select, update
from sqlalchemy.orm import Session

from app.audit.anchor import append_lines, open_append_only
from app.audit.chain import events
from app.audit.chain.covered_rows import update_columns
from app.audit.chain.keys import DerivedKey
from app.audit.chain.verify_proof import encode_canonical_json
from app.cases.service import cases_with_images, cases_with_pixels
from app.context import ServiceContext
from app.database.engine import insert_if_absent
from app.database.idempotency import delete_case_answers
from app.database.tables import (
    Case,
    CaseTwin,
    Comment,
    Erasure,
    ImportRow,
    NetworkOutput,
    ReadRequest,
    Remark,
    Specimen,
    SpecimenRemark,
    SpecimenResult,
    new_digest_key,
    new_id,
    time_of,
)
from app.http.errors import Conflict, NotFound
from app.imports.service import same_image_as
from app.triage.service import withdraw_repeats


class ErasureListError(ValueError):
    """The list is missing, too short, or not of this installation."""


class ErasureLine(BaseModel):
    """One erasure with its tombstones, or the list's beginning (number 0), which names none; signed by HMAC-SHA256."""

    number: int
    erasure: uuid.UUID | None = None
    # and specimens
    cases: list[uuid.UUID] = []
    import_rows: list[str] = []
    erased_at: datetime | None = None
    signature: str = ""

    def signed(self, key: DerivedKey) -> str:
        """Signature that the line must have."""
        return key.digest(encode_canonical_json(self.model_dump(mode="json", exclude={"signature"}))).hex()


def read_erasure_list(path: Path, key: DerivedKey) -> list[ErasureLine]:
    """Erasures of a list, in their order."""
    if not path.is_file():
        raise ErasureListError(
            f"{path}: there is no list of erasures, without which whoever was erased after the backup is back: put "
            "erasures.jsonl of the former HOME there, or name the list by SECONDREAD_ERASURES, or give --without-list"
        )
    return _parse_erasure_lines(path, path.read_text(encoding="utf-8"), key)


def has_complete_line(path: Path) -> bool:
    """Whether the list has one complete line."""
    return path.is_file() and _find_last_line_end(path.read_text(encoding="utf-8")) > 0


def _parse_erasure_lines(path: Path, text: str, key: DerivedKey) -> list[ErasureLine]:
    lines = []
    for number, stored in enumerate(text[: _find_last_line_end(text)].splitlines()):
        try:
            line = ErasureLine.model_validate_json(stored)
        except ValidationError as exc:
            raise ErasureListError(f"{path}: line {number + 1} of the list of erasures cannot be read") from exc
        if line.number != number or not hmac.compare_digest(line.signature, line.signed(key)):
            raise ErasureListError(
                f"{path}: line {number + 1} of the list of erasures is not of this installation; if HOME "
                "was made anew on purpose, take the list away"
            )
        lines.append(line)
    if not lines:
        raise ErasureListError(f"{path}: the list of erasures is empty")
    return lines[1:]


def _find_last_line_end(text: str) -> int:
    return text.rfind("\n") + 1


def append_missing_erasures(path: Path, session: Session, key: DerivedKey) -> int:
    """Add the database's erasures that the list lacks, and begin it where there is none."""
    with open_append_only(path) as stream:
        text = stream.read()
        whole = text[: _find_last_line_end(text)]
        stream.truncate(len(whole.encode()))
        listed_lines = _parse_erasure_lines(path, whole, key) if whole else []
        listed = {line.erasure for line in listed_lines}
        rows = session.execute(select(Erasure).order_by(Erasure.created_at, Erasure.id)).scalars()
        missing = [row for row in rows if row.id not in listed]
        lines = [] if whole else [ErasureLine(number=0)]
        for number, row in enumerate(missing, len(listed_lines) + 1):
            cases = [uuid.UUID(case) for case in row.cases]
            rows_of_imports, at = row.import_rows, row.created_at
            lines.append(
                ErasureLine(number=number, erasure=row.id, cases=cases, import_rows=rows_of_imports, erased_at=at)
            )
        signed = (line.model_copy(update={"signature": line.signed(key)}) for line in lines)
        append_lines(stream, (json.dumps(line.model_dump(mode="json")) for line in signed))
    return len(listed_lines) + len(missing)


def find_unapplied_erasures(session: Session, lines: Sequence[ErasureLine]) -> list[ErasureLine]:
    """Find erasures of the list that the database does not contain."""
    erasure_ids = set(session.execute(select(Erasure.id)).scalars())
    return [line for line in lines if line.erasure not in erasure_ids]


_GONE = "0" * 64


@dataclass
class ErasureResult:
    """Result of an erasure."""

    # tombstones that stay in the place of cases
    cases: list[uuid.UUID]
    # and of specimens that have no other cell
    specimens: list[uuid.UUID] = field(default_factory=list)
    # images and fields that no other case uses, by their name in the store: to be removed after the commit
    images: list[str] = field(default_factory=list)
    # other cases that have the same picture as one of these, as image or field, so that it stays
    shared: list[uuid.UUID] = field(default_factory=list)
    n_remarks: int = 0
    # remembered answers to requests
    n_answers: int = 0
    # rows of imports, each job and row
    import_rows: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ErasureTarget:
    """A patient, or a case that was uploaded without one."""

    # pseudonym as it was uploaded
    patient: str | None
    # of the case, where there is no patient
    external_id: str | None = None

    def conditions(self) -> tuple[ColumnElement[bool], ...]:
        """Which cases these are."""
        if self.patient is not None:
            return (Case.patient == self.patient,)
        return (Case.patient.is_(None), Case.external_id == self.external_id)


def erase_patient_rows(
    session: Session, context: ServiceContext, actor: str, whom: ErasureTarget, reason: str
) -> ErasureResult:
    """Erase every case of a patient from the rows, and the import rows about them."""
    patients = [] if whom.patient is None else [whom.patient]
    specimens = _lock_specimens(session, Specimen.patient.in_(patients), *whom.conditions())
    cases = _lock_cases(session, *whom.conditions())
    names = [name for name in (whom.patient, whom.external_id) if name is not None]
    names += [one.external_id for one in specimens] + [one.external_id for one in cases]
    rows = _import_rows(session, cases, specimens, *patients)
    if not cases and not rows and not specimens:
        raise NotFound("there is no case of this patient")
    if _contains_word(reason, names):
        raise Conflict("the reason is kept in the audit, and names the patient; give another one")
    return _erase_and_record(session, context, actor, reason, _Erased(cases, specimens, rows))


def repeat_erasure(session: Session, context: ServiceContext, line: ErasureLine) -> ErasureResult | None:
    """Erase what was erased before a backup was brought back, as far as it is there."""
    listed = [str(case_id) for case_id in line.cases]
    values = {"id": line.erasure, "cases": listed, "import_rows": line.import_rows, "created_at": context.clock()}
    if not insert_if_absent(session, Erasure, values):
        return None
    listed_specimens = Specimen.id.in_(line.cases) & Specimen.erased_at.is_(None)
    specimens = _lock_specimens(session, listed_specimens, Case.id.in_(line.cases), Case.erased_at.is_(None))
    cases = _lock_cases(session, Case.id.in_(line.cases), Case.erased_at.is_(None))
    patients = {case.patient for case in cases if case.patient is not None}
    rows = {_row_name(row): row for row in _import_rows(session, cases, specimens, *patients)}
    jobs = {uuid.UUID(name.partition("/")[0]) for name in line.import_rows}
    for row in session.execute(select(ImportRow).where(ImportRow.job_id.in_(jobs)).with_for_update()).scalars():
        if _row_name(row) in line.import_rows:
            rows[_row_name(row)] = row
    reason = "erased before a backup was brought back"
    found = _Erased(cases, specimens, list(rows.values()))
    return _erase_and_record(session, context, "service", reason, found, line.erasure)


def _lock_cases(session: Session, *conditions: ColumnElement[bool]) -> list[Case]:
    statement = select(Case).where(*conditions).order_by(Case.id).with_for_update()
    return list(session.execute(statement).scalars())


def _contains_word(text: str, words: Collection[str]) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in words)


def _row_name(row: ImportRow) -> str:
    return f"{row.job_id}/{row.row}"


def _import_rows(
    session: Session, cases: Sequence[Case], specimens: Sequence[Specimen], *patients: str
) -> list[ImportRow]:
    # Checks name a case beside others that have its image, and rows that were refused their specimen. Of files that an
    # import ignored, and of label files, the patients of their names are unknown: rows with them of the same imports
    # all go.
    ids, external_ids = [case.id for case in cases], [case.external_id for case in cases]
    names = [f'"name": {json.dumps(specimen.external_id, ensure_ascii=False)}' for specimen in specimens]
    conditions = [ImportRow.detail.contains(name, autoescape=True) for name in names]
    conditions += [ImportRow.detail.in_([same_image_as(name) for name in external_ids])]
    conditions += [ImportRow.patient.in_(patients), ImportRow.case_id.in_(ids), ImportRow.external_id.in_(external_ids)]
    rows = list(session.execute(select(ImportRow).where(or_(*conditions)).with_for_update()).scalars())
    row_keys, imports = {(row.job_id, row.row) for row in rows}, {row.job_id for row in rows}
    of_nobody = or_(ImportRow.status == "ignored", ImportRow.place.is_not(None))
    others = select(ImportRow).where(of_nobody, ImportRow.job_id.in_(imports)).with_for_update()
    return rows + [row for row in session.execute(others).scalars() if (row.job_id, row.row) not in row_keys]


@dataclass(frozen=True)
class _Erased:
    """Locked rows that are about an erased patient."""

    cases: Sequence[Case]
    specimens: Sequence[Specimen]
    rows: Sequence[ImportRow]


def _erase_and_record(
    session: Session,
    context: ServiceContext,
    actor: str,
    reason: str,
    found: _Erased,
    listed: uuid.UUID | None = None,
) -> ErasureResult:
    cases, specimens, rows = found.cases, found.specimens, found.rows
    ids = [case.id for case in cases]
    erased = ErasureResult(ids, import_rows=sorted(_row_name(row) for row in rows))
    images = {digest for case in cases for digest in (case.stored_sha256, case.stored_field_sha256) if digest}
    pixels = {digest for case in cases for digest in (case.pixels_sha256, case.field_pixels_sha256) if digest}
    erased.n_answers = delete_case_answers(session, [*ids, *(specimen.id for specimen in specimens)])
    word = f"erased-{secrets.token_hex(8)}"
    for case in cases:
        _make_tombstone(session, case, word)
    session.flush()
    erased.n_remarks = _erase_remarks_of_specimens(session, specimens)
    erased.specimens = _erase_specimens(session, context, actor, specimens, word)
    for row in rows:
        row.external_id, row.patient, row.detail, row.digest_key = word, None, "", new_digest_key()
        row.place = row.place and ""
    erased.n_remarks += _erase_rows_of_cases(session, ids)
    session.flush()
    used = cases_with_images(session, images)
    erased.shared = sorted({*used, *cases_with_pixels(session, pixels)})
    erased.images = sorted(images.difference(*used.values()))
    _record_erasure(session, context, actor, reason, erased, listed)
    return erased


def _make_tombstone(session: Session, case: Case, word: str) -> None:
    """Clear the columns of a case that identify its image or patient."""
    # The coin follows from the external id for whoever has the installation's key: another one takes its place, which
    # falls on the same side.
    side = (0.0, case.pi) if case.u < case.pi else (case.pi, 1.0)
    share = random.SystemRandom().random()
    case.u = side[0] + share * (side[1] - side[0])
    case.pixels_sha256 = case.field_pixels_sha256 = None
    case.field_sha256 = case.stored_field_sha256 = None
    case.external_id, case.patient, case.case_metadata = f"erased-{case.id}", word, {}
    case.image_sha256 = case.stored_sha256 = _GONE
    case.image_hash, case.stain, case.waiting, case.erased_at = None, None, False, time_of(session)
    case.digest_key = new_digest_key()
    session.execute(update_columns(ReadRequest, u=case.u).where(ReadRequest.case_id == case.id))


def _lock_specimens(session: Session, named: ColumnElement[bool], *conditions: ColumnElement[bool]) -> list[Specimen]:
    """Specimens that are named, and those of cases; they are locked before their cases."""
    either = named | Specimen.id.in_(select(Case.specimen_id).where(*conditions))
    return list(session.execute(select(Specimen).where(either).order_by(Specimen.id).with_for_update()).scalars())


def _erase_remarks_of_specimens(session: Session, specimens: Sequence[Specimen]) -> int:
    """Forget what was written at signatures, which keep their numbers."""
    ids = [specimen.id for specimen in specimens]
    remarks = delete(SpecimenRemark).where(SpecimenRemark.specimen_id.in_(ids)).returning(SpecimenRemark.id)
    return len(session.execute(remarks).all())


def _erase_specimens(
    session: Session, context: ServiceContext, actor: str, specimens: Sequence[Specimen], word: str
) -> list[uuid.UUID]:
    """Forget what was computed of specimens, and what identifies those that have no other cell, which are returned."""
    ids = [specimen.id for specimen in specimens]
    left = select(Case.specimen_id).where(Case.specimen_id.in_(ids), Case.erased_at.is_(None))
    with_cells = set(session.execute(left).scalars())
    # of the others the number of the version stays: what was shown under it is never signed as something else
    result, forgotten = SpecimenResult.specimen_id, {"basis": "", "document": {"groups": []}, "cells": []}
    session.execute(delete(SpecimenResult).where(result.in_(set(ids) - with_cells)))
    session.execute(update(SpecimenResult).where(result.in_(ids)).values(class_probs=b"", differs=False, **forgotten))
    for specimen in specimens:
        if specimen.id not in with_cells:
            specimen.external_id, specimen.patient = f"erased-{specimen.id}", word
            specimen.collected_at, specimen.erased_at = None, time_of(session)
            specimen.digest_key = new_digest_key()
            keys = context.keys.audit
            events.record_event(session, keys, actor=actor, action="specimen.erase", object_id=specimen.id)
    return [specimen_id for specimen_id in ids if specimen_id not in with_cells]


def _erase_rows_of_cases(session: Session, ids: Sequence[uuid.UUID]) -> int:
    """Delete what other tables say about the images of these cases, and close what is still asked for."""
    session.execute(delete(NetworkOutput).where(NetworkOutput.case_id.in_(ids)))
    remarks = [
        row_id
        for table in (Remark, Comment)
        for row_id in session.execute(delete(table).where(table.case_id.in_(ids)).returning(table.id)).scalars()
    ]
    session.execute(delete(CaseTwin).where(or_(CaseTwin.case_id.in_(ids), CaseTwin.twin_id.in_(ids))))
    withdraw_repeats(session, ids)
    open_request = (ReadRequest.case_id.in_(ids), ReadRequest.state.in_(("open", "leased")))
    closed = update_columns(ReadRequest, state="closed", closed_at=time_of(session), lease_expires_at=None)
    session.execute(closed.where(*open_request))
    return len(remarks)


def _record_erasure(
    session: Session, context: ServiceContext, actor: str, reason: str, erased: ErasureResult, listed: uuid.UUID | None
) -> None:
    """An event with the digests of all tombstones, which names the cases."""
    erasure_id = listed or new_id()
    if listed is None:
        ids = [str(tombstone_id) for tombstone_id in (*erased.cases, *erased.specimens)]
        session.add(Erasure(id=erasure_id, cases=ids, import_rows=erased.import_rows))
    counts = {"n_cases": len(erased.cases), "n_remarks": erased.n_remarks, "n_import_rows": len(erased.import_rows)}
    events.record_event(
        session,
        context.keys.audit,
        actor=actor,
        action="patient.erase",
        object_id=erasure_id,
        details=counts,
        reason=reason,
        cases=erased.cases,
    )
