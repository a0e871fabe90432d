"""Queries of cases, with keyset cursors, and the cases that stay hidden so that some can be repeated blind."""

import base64
import binascii
import math
import random
import struct
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select, true, tuple_
from sqlalchemy.orm import Session, aliased

from app.database.json_texts import has_text
from app.database.tables import (
    Account,
    Annotator,
    Case,
    CasePrediction,
    CaseTwin,
    CountedLabel,
    HeldBack,
    Label,
    Outcome,
    PolicyRow,
    Read,
    ReaderDraw,
    ReadRequest,
    ReleaseRow,
    Remark,
    Repeat,
    Specimen,
    SpecimenResult,
)
from app.http.errors import InvalidValue, NotFound
from app.http.principal import Principal
from app.predictions.service import champion_first_order

_NEED = struct.Struct("<d16s")


def _encode_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode_base64(cursor: str) -> bytes:
    return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))


_UNKNOWN = "the cursor is not one that this service gave out"


def encode_cursor(case_id: uuid.UUID) -> str:
    """Cursor that continues after a case."""
    return _encode_base64(case_id.bytes)


def decode_cursor(cursor: str) -> uuid.UUID:
    """Case that a cursor continues after."""
    try:
        return uuid.UUID(bytes=_decode_base64(cursor))
    except (ValueError, binascii.Error) as exc:
        raise InvalidValue(_UNKNOWN) from exc


def encode_need_cursor(need: float, case_id: uuid.UUID) -> str:
    """Cursor that continues after a case of the worklist."""
    return _encode_base64(_NEED.pack(need, case_id.bytes))


def decode_need_cursor(cursor: str) -> tuple[float, uuid.UUID]:
    """Need and case that a cursor of the worklist continues after."""
    try:
        need, case_id = _NEED.unpack(_decode_base64(cursor))
    except (ValueError, binascii.Error, struct.error) as exc:
        raise InvalidValue(_UNKNOWN) from exc
    if not math.isfinite(need):
        raise InvalidValue(_UNKNOWN)
    return need, uuid.UUID(bytes=case_id)


def case_by_id(session: Session, case_id: uuid.UUID) -> Case:
    """A case."""
    case = session.get(Case, case_id)
    if case is None:
        raise NotFound("there is no such cell")
    return case


def case_by_external_id(session: Session, external_id: str) -> Case | None:
    """The case of an external id."""
    return session.execute(select(Case).where(Case.external_id == external_id)).scalar_one_or_none()


def find_case_and_first_twin(session: Session, external_id: str, pixels_sha256: str) -> tuple[Case | None, Case | None]:
    """The case of an external id, and the earliest case with the same picture; None where there is none."""
    # found first and put in order then: PostgreSQL would go through all cases in their order until it meets the first
    same = select(Case.id).where(Case.pixels_sha256 == pixels_sha256).cte("same").prefix_with("MATERIALIZED")
    earliest = select(same.c.id).order_by(same.c.id).limit(1).scalar_subquery()
    cases = session.execute(select(Case).where(or_(Case.external_id == external_id, Case.id == earliest))).scalars()
    existing = first = None
    for case in cases:
        existing = case if case.external_id == external_id else existing
        if case.pixels_sha256 == pixels_sha256 and (first is None or case.id < first.id):
            first = case
    return existing, first


def cases_with_images(session: Session, digests: Collection[str]) -> dict[uuid.UUID, set[str]]:
    """Cases by id that have one of some images, as their own or as the field around it, and which of them."""
    own, field = Case.stored_sha256.in_(digests), Case.stored_field_sha256.in_(digests)
    columns = (Case.id, Case.stored_sha256, Case.stored_field_sha256)
    rows = session.execute(select(*columns).where(or_(own, field)).order_by(Case.id))
    return {row[0]: {digest for digest in row[1:] if digest is not None and digest in digests} for row in rows}


def cases_with_pixels(session: Session, digests: Collection[str]) -> list[uuid.UUID]:
    """Cases that have one of some pictures, as their own or as the field around it, whatever has encoded it."""
    own, field = Case.pixels_sha256.in_(digests), Case.field_pixels_sha256.in_(digests)
    return list(session.execute(select(Case.id).where(or_(own, field)).order_by(Case.id)).scalars())


def images_in_use(session: Session, digests: Collection[str]) -> set[str]:
    """Return the images that a case uses, as its own or as its field."""
    return set().union(*cases_with_images(session, digests).values())


def case_named(session: Session, named: uuid.UUID) -> uuid.UUID:
    """The case that a handle stands for, which may be of a second visit."""
    repeat = session.get(Repeat, named)
    return named if repeat is None else repeat.case_id


def has_field(session: Session, case_id: uuid.UUID) -> bool:
    """Whether the cell of a case has a wider field around it."""
    case = session.get(Case, case_id)
    return case is not None and case.stored_field_sha256 is not None


def stored_field(session: Session, case_id: uuid.UUID) -> str:
    """Name in the store of the wider field around the cell of a case."""
    stored = case_by_id(session, case_id).stored_field_sha256
    if stored is None:
        raise NotFound("this cell has no field")
    return stored


def stored_image_names(session: Session) -> set[str]:
    """Names in the store of all images and fields."""
    there, field = Case.erased_at.is_(None), Case.stored_field_sha256
    statement = select(Case.stored_sha256).where(there).union(select(field).where(there, field.is_not(None)))
    return set(session.execute(statement).scalars())


def latest_prediction(session: Session, case_id: uuid.UUID) -> CasePrediction:
    """The prior of a case: the champion's prediction, else the newest."""
    prediction = predictions_of(session, [case_id]).get(case_id)
    if prediction is None:
        raise NotFound("the cell has no prediction")
    return prediction


#: State of a cell: a read is wanted; one is overdue; a further one is wanted, because labels conflict; one is wanted,
#: and no annotator may do it; an annotator flagged it, and no person settled it since; it is labelled, and no read is
#: wanted; it has an outcome.
CaseState = Literal["to_read", "overdue", "adjudication", "to_settle", "flagged", "completed", "settled"]


@dataclass(frozen=True)
class CaseFilter:
    """Filter of a case listing; None matches every case."""

    external_id: str | None = None
    patient: str | None = None
    site: str | None = None
    partition: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    #: identifier or external id
    specimen: uuid.UUID | str | None = None
    #: texts that came with a cell, each by its name
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: in the external id, the patient, the site or the name of an annotator who labelled it, in upper or lower case
    search: str | None = None
    #: classes that are searched as well: cells with a label of one of them match
    searched_classes: tuple[str, ...] = ()
    state: CaseState | None = None
    #: selects the cells among which those are that match
    among: Select[uuid.UUID] | None = None
    #: condition on cells that no annotator is left for: settled ones of them are left out
    stuck: ColumnElement[bool] | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Conditions for a WHERE clause."""
        equal = {Case.external_id: self.external_id, Case.patient: self.patient, Case.site: self.site}
        conditions: list[ColumnElement[bool]] = [col == value for col, value in equal.items() if value is not None]
        if self.partition is not None:
            conditions.append(Case.partition == self.partition)
        if isinstance(self.specimen, uuid.UUID):
            conditions.append(Case.specimen_id == self.specimen)
        elif self.specimen is not None:
            named = select(Specimen.id).where(Specimen.external_id == self.specimen)
            conditions.append(Case.specimen_id == named.scalar_subquery())
        conditions += [has_text(Case.case_metadata, name, text) for name, text in self.metadata.items()]
        if self.search is not None:
            own = (Case.external_id, Case.patient, Case.site)
            matches = [column.icontains(self.search, autoescape=True) for column in own]
            labelled = Annotator.name.icontains(self.search, autoescape=True)
            labelled = or_(labelled, CountedLabel.class_code.in_(self.searched_classes))
            conditions.append(or_(*matches, Case.id.in_(_cases_with_label(labelled))))
        if self.state is not None:
            conditions += _state_conditions(self.state)
        if self.among is not None:
            conditions.append(Case.id.in_(self.among))
        if self.stuck is not None:
            conditions.append(or_(Case.id.not_in(settled_cells()), ~self.stuck))
        if self.since is not None:
            conditions.append(Case.created_at >= self.since)
        if self.until is not None:
            conditions.append(Case.created_at < self.until)
        return conditions


def _cases_with_label(condition: ColumnElement[bool]) -> Select[uuid.UUID]:
    return active_labels().where(condition).with_only_columns(CountedLabel.case_id).order_by(None)


def _flag_stands() -> ColumnElement[bool]:
    """Condition on a label: it is flagged, and no person has settled its cell since; a rule looks at no flag."""
    settled = standing_outcomes().where(Outcome.case_id == CountedLabel.case_id, Outcome.account_id.is_not(None))
    return and_(CountedLabel.flagged, ~settled.where(Outcome.created_at > CountedLabel.created_at).exists())


def _state_conditions(state: CaseState) -> list[ColumnElement[bool]]:
    is_open = ReadRequest.state.in_(("open", "leased"))
    settled = settled_cells()
    by_state: dict[CaseState, list[ColumnElement[bool]]] = {
        "to_read": [Case.waiting.is_(True)],
        "overdue": [Case.waiting.is_(True)],
        "adjudication": [Case.id.in_(select(ReadRequest.case_id).where(is_open, ReadRequest.round == "adjudication"))],
        "to_settle": [Case.waiting.is_(True), Case.id.not_in(settled)],
        "flagged": [Case.id.in_(_cases_with_label(_flag_stands()))],
        "completed": [Case.waiting.is_(False), Case.id.in_(_cases_with_label(true()))],
        "settled": [Case.id.in_(settled)],
    }
    return by_state[state]


def page_of_cases(session: Session, chosen: CaseFilter, *, after: uuid.UUID | None, limit: int) -> list[Case]:
    """Cases, newest first, after one of them."""
    statement = select(Case).where(Case.erased_at.is_(None), *chosen.conditions()).order_by(Case.id.desc())
    if after is not None:
        statement = statement.where(Case.id < after)
    return list(session.execute(statement.limit(limit)).scalars())


#: What a list of cells is sorted by.
CaseSort = Literal["stored", "cell", "patient", "site", "disagreement", "labels", "due", "need"]


def _sort_key(sort: CaseSort) -> ColumnElement[Any]:
    of_case = CasePrediction.case_id == Case.id
    disagreement = select(CasePrediction.disagreement_prob).where(of_case).order_by(*champion_first_order()).limit(1)
    heads = active_labels().with_only_columns(func.count()).where(CountedLabel.case_id == Case.id).order_by(None)
    open_read = (ReadRequest.case_id == Case.id, ReadRequest.state.in_(("open", "leased")))
    keys: dict[CaseSort, ColumnElement[Any]] = {
        "stored": Case.created_at.expression,
        "cell": func.lower(Case.external_id),
        "patient": func.lower(Case.patient),
        "site": func.lower(Case.site),
        "disagreement": disagreement.correlate(Case).scalar_subquery(),
        "labels": heads.correlate(Case).scalar_subquery(),
        "due": select(func.min(ReadRequest.due_at)).where(*open_read).correlate(Case).scalar_subquery(),
        "need": Case.need.expression,
    }
    return keys[sort]


def sorted_case_ids(
    session: Session, chosen: CaseFilter, sort: CaseSort, *, down: bool, offset: int, limit: int
) -> list[uuid.UUID]:
    """Cases in some order, those without a value last, and of equal ones the newest first."""
    key = _sort_key(sort)
    ordered = (key.desc() if down else key.asc()).nulls_last()
    statement = select(Case.id).where(Case.erased_at.is_(None), *chosen.conditions()).order_by(ordered, Case.id.desc())
    return list(session.execute(statement.offset(offset).limit(limit)).scalars())


def cases_in_order(session: Session, case_ids: Sequence[uuid.UUID]) -> list[Case]:
    """Some cases, in the order in which they are named."""
    by_id = {case.id: case for case in session.execute(select(Case).where(Case.id.in_(case_ids))).scalars()}
    return [by_id[case_id] for case_id in case_ids]


def neighbours_of(
    session: Session, case: Case, chosen: CaseFilter, sort: CaseSort, *, down: bool
) -> tuple[uuid.UUID | None, uuid.UUID | None]:
    """The cases before and after one in a sorted list, which it may have left."""
    key = _sort_key(sort)
    value = session.execute(select(key).where(Case.id == case.id)).scalar_one()
    listed = select(Case.id).where(Case.erased_at.is_(None), *chosen.conditions()).limit(1)
    if value is None:  # among those without a value, which come last
        is_before, is_after = or_(key.is_not(None), Case.id > case.id), and_(key.is_(None), Case.id < case.id)
    else:
        larger, smaller = key > value, key < value
        earlier, later = (larger, smaller) if down else (smaller, larger)
        is_before = or_(earlier, and_(key == value, Case.id > case.id))
        is_after = or_(later, and_(key == value, Case.id < case.id), key.is_(None))
    forward, backward = (key.desc(), key.asc()) if down else (key.asc(), key.desc())
    before = listed.where(is_before).order_by(backward.nulls_first(), Case.id)
    after = listed.where(is_after).order_by(forward.nulls_last(), Case.id.desc())
    return session.execute(before).scalar_one_or_none(), session.execute(after).scalar_one_or_none()


def page_by_need(
    session: Session, *, after: tuple[float, uuid.UUID] | None, limit: int, chosen: CaseFilter | None = None
) -> list[Case]:
    """Cases of which a read is wanted, those in most need first, after one of them."""
    statement = select(Case).where(Case.waiting.is_(True)).order_by(Case.need.desc(), Case.id.desc())
    if chosen is not None:
        statement = statement.where(*chosen.conditions())
    if after is not None:
        statement = statement.where(tuple_(Case.need, Case.id) < after)
    return list(session.execute(statement.limit(limit)).scalars())


#: Labels, the newest ones, among which cells with five labels are looked for.
_RECENT_LABELS = 5_000


def has_five_labels(session: Session) -> bool:
    """Whether a cell that was labelled lately has five labels, so that consensus among five annotators is seen."""
    first = (CountedLabel.kind == "label", CountedLabel.blind.is_(True))
    recent = select(CountedLabel.case_id).where(*first).order_by(CountedLabel.id.desc())
    labels = recent.limit(_RECENT_LABELS).subquery()
    several = select(labels.c.case_id).group_by(labels.c.case_id).having(func.count() >= 5).limit(1)
    return session.execute(several).first() is not None


def is_empty(session: Session) -> bool:
    """Whether no case was ever stored."""
    return session.execute(select(Case.id).limit(1)).first() is None


def count_cases(session: Session, chosen: CaseFilter) -> int:
    """Number of cases that match."""
    matching = select(func.count()).where(Case.erased_at.is_(None), *chosen.conditions())
    return session.execute(matching).scalar_one()


def overdue_cells(at: datetime) -> Select[uuid.UUID]:
    """Select the cells with an open read that was due before a moment."""
    return select(ReadRequest.case_id).where(ReadRequest.state.in_(("open", "leased")), ReadRequest.due_at < at)


class Changes(NamedTuple):
    """Cells stored, labels given and cells settled since a moment."""

    n_stored: int
    n_labels: int
    n_settled: int


def count_changes(session: Session, since: datetime) -> Changes:
    """What has changed since a moment."""
    there = Case.erased_at.is_(None)
    stored = select(func.count()).where(there, Case.created_at >= since)
    given = select(func.count()).where(CountedLabel.created_at >= since, CountedLabel.kind == "label")
    ended = standing_outcomes().where(Outcome.created_at >= since).with_only_columns(Outcome.case_id)
    settled = select(func.count()).where(there, Case.id.in_(ended))
    return Changes(*(session.execute(one).scalar_one() for one in (stored, given, settled)))


def list_sites(session: Session) -> list[str]:
    """Every site that a case names, in order."""
    named = select(Case.site).where(Case.site.is_not(None)).distinct().order_by(Case.site)
    return [site for site in session.execute(named).scalars() if site is not None]


def same_images(session: Session, case_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, list[tuple[uuid.UUID, str]]]:
    """Return id and external id of the other cases with the same picture, by case."""
    own, other = aliased(Case), aliased(Case)
    same = own.pixels_sha256 == other.pixels_sha256
    pairs = select(own.id, other.id, other.external_id).join(CaseTwin, CaseTwin.case_id == own.id)
    of_cases = pairs.join(other, other.id == CaseTwin.twin_id).where(own.id.in_(case_ids), same)
    others_by_case: dict[uuid.UUID, list[tuple[uuid.UUID, str]]] = {}
    for case_id, other_id, external_id in session.execute(of_cases.order_by(other.id)):
        others_by_case.setdefault(case_id, []).append((other_id, external_id))
    return others_by_case


def predictions_of(session: Session, case_ids: list[uuid.UUID]) -> dict[uuid.UUID, CasePrediction]:
    """The champion's prediction of each of the cases, else the newest; cases without one are left out."""
    rows = session.execute(
        select(CasePrediction).where(CasePrediction.case_id.in_(case_ids)).order_by(*champion_first_order())
    )
    predictions_by_case: dict[uuid.UUID, CasePrediction] = {}
    for row in rows.scalars():
        predictions_by_case.setdefault(row.case_id, row)
    return predictions_by_case


def class_probs_in_specimens(session: Session, cases: Sequence[Case]) -> dict[uuid.UUID, dict[str, float]]:
    """Class probabilities of cells under the mix of their specimens, as they were computed last."""
    specimens = {case.specimen_id for case in cases if case.specimen_id is not None}
    if not specimens:
        return {}
    measured = select(SpecimenResult.cells, SpecimenResult.class_probs, ReleaseRow.card)
    measured = measured.join(ReleaseRow, ReleaseRow.id == SpecimenResult.release_id)
    ids = {case.id for case in cases}
    probs_by_case: dict[uuid.UUID, dict[str, float]] = {}
    for cells, probs, card in session.execute(measured.where(SpecimenResult.specimen_id.in_(specimens))):
        classes = [info["code"] for info in card["classes"]]
        rows = np.frombuffer(probs, dtype="<f8").reshape(len(cells), len(classes))
        in_order = zip(map(uuid.UUID, cells), rows.tolist(), strict=True)
        probs_by_case |= {case_id: dict(zip(classes, row, strict=True)) for case_id, row in in_order if case_id in ids}
    return probs_by_case


def predictions_of_case(session: Session, case_id: uuid.UUID) -> list[CasePrediction]:
    """Every prediction of a case, newest first."""
    statement = select(CasePrediction).where(CasePrediction.case_id == case_id).order_by(CasePrediction.id.desc())
    return list(session.execute(statement).scalars())


@dataclass(frozen=True)
class RequestPeople:
    """Annotators involved in a request."""

    # whoever leases it now
    held_by: str | None
    # of whom it is asked; None: of anybody
    asked_of: str | None
    # with which they were drawn among those who were left; None: not drawn
    probability: float | None


def requests_of(
    session: Session, case_ids: list[uuid.UUID]
) -> dict[uuid.UUID, list[tuple[ReadRequest, RequestPeople]]]:
    """Requests of each of the cases in order, with the people who have to do with them."""
    asked_annotator, later = aliased(Annotator), aliased(ReaderDraw)
    newest = select(func.max(later.position)).where(later.request_id == ReadRequest.id).scalar_subquery()
    in_force = (ReaderDraw.request_id == ReadRequest.id) & (ReaderDraw.position == newest)
    rows = session.execute(
        select(ReadRequest, Annotator.name, asked_annotator.name, ReaderDraw.probability)
        .outerjoin(Read, (Read.request_id == ReadRequest.id) & (Read.state == "leased"))
        .outerjoin(Annotator, Annotator.id == Read.annotator_id)
        .outerjoin(asked_annotator, asked_annotator.id == ReadRequest.annotator_id)
        .outerjoin(ReaderDraw, in_force & (ReaderDraw.annotator_id == ReadRequest.annotator_id))
        .where(ReadRequest.case_id.in_(case_ids))
        .order_by(ReadRequest.ordinal)
    )
    requests: dict[uuid.UUID, list[tuple[ReadRequest, RequestPeople]]] = {}
    for request, held_by, asked_of, probability in rows:
        requests.setdefault(request.case_id, []).append((request, RequestPeople(held_by, asked_of, probability)))
    return requests


def active_labels() -> Select[CountedLabel, Annotator]:
    """Heads of the label chains that are no retraction, with their annotators, oldest first."""
    later = aliased(CountedLabel)
    return (
        select(CountedLabel, Annotator)
        .join(Annotator, Annotator.id == CountedLabel.annotator_id)
        .outerjoin(later, later.supersedes_id == CountedLabel.id)
        .where(later.id.is_(None), CountedLabel.kind != "retraction")
        .order_by(CountedLabel.id)
    )


def standing_outcomes() -> Select[Outcome]:
    """Outcomes that hold: of each case the newest row, unless that reopened it."""
    later = aliased(Outcome)
    same = and_(later.case_id == Outcome.case_id, later.number == Outcome.number + 1)
    return select(Outcome).outerjoin(later, same).where(later.id.is_(None), Outcome.kind != "reopened")


def settled_cells() -> Select[uuid.UUID]:
    """Cells that have an outcome."""
    return standing_outcomes().with_only_columns(Outcome.case_id)


@dataclass(frozen=True)
class NamedOutcome:
    """An outcome with the name of the person who decided, and their reason; both None for a rule."""

    outcome: Outcome
    by: str | None
    reason: str | None


def read_outcomes(session: Session, case_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, NamedOutcome]:
    """The outcome that holds of each of the cases that have one."""
    named = standing_outcomes().add_columns(Account.name, Remark.reason)
    named = named.outerjoin(Account, Account.id == Outcome.account_id).outerjoin(Remark, Remark.id == Outcome.id)
    rows = session.execute(named.where(Outcome.case_id.in_(case_ids)))
    return {outcome.case_id: NamedOutcome(outcome, by, reason) for outcome, by, reason in rows}


@dataclass(frozen=True)
class NamedLabel:
    """A label with the name of its annotator."""

    label: Label
    annotator: str


def labels_of_case(session: Session, case_id: uuid.UUID) -> list[NamedLabel]:
    """Active labels of a case, oldest first."""
    rows = session.execute(active_labels().where(CountedLabel.case_id == case_id))
    return [NamedLabel(label, annotator.name) for label, annotator in rows]


def flagged_labels(session: Session, limit: int) -> list[NamedLabel]:
    """Active labels by which annotators ask admins to look at a case that no person settled since, newest first."""
    newest = active_labels().where(_flag_stands()).order_by(None).order_by(CountedLabel.id.desc()).limit(limit)
    return [NamedLabel(label, annotator.name) for label, annotator in session.execute(newest)]


def label_history(session: Session, case_id: uuid.UUID) -> list[NamedLabel]:
    """Every label row of a case, oldest first."""
    return label_histories(session, [case_id]).get(case_id, [])


def label_histories(session: Session, case_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[NamedLabel]]:
    """Every label row of each of the cases, oldest first."""
    rows = session.execute(
        select(CountedLabel, Annotator)
        .join(Annotator, Annotator.id == CountedLabel.annotator_id)
        .where(CountedLabel.case_id.in_(case_ids))
        .order_by(CountedLabel.id)
    )
    histories: dict[uuid.UUID, list[NamedLabel]] = {}
    for label, annotator in rows:
        histories.setdefault(label.case_id, []).append(NamedLabel(label, annotator.name))
    return histories


def newest_label_at(session: Session) -> datetime | None:
    """Return the time of the newest label, correction or retraction; None before the first."""
    return session.execute(
        select(CountedLabel.created_at).order_by(CountedLabel.id.desc()).limit(1)
    ).scalar_one_or_none()


def label_totals(session: Session, case_ids: list[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Number of active labels of each of the cases."""
    heads = (
        active_labels()
        .where(CountedLabel.case_id.in_(case_ids))
        .with_only_columns(CountedLabel.case_id)
        .order_by(None)
        .subquery()
    )
    rows = session.execute(select(heads.c.case_id, func.count()).group_by(heads.c.case_id))
    return {row[0]: row[1] for row in rows}


#: Cases held back for each repeat: of those that stay closed to an annotator about one in six is a repeat.
HELD_PER_REPEAT = 5
_random = random.SystemRandom()


def draw_random_unit() -> float:
    """A number from 0 to 1 that nobody can foresee."""
    return _random.random()


def wants_repeats(policy: PolicyRow) -> bool:
    """Whether a policy has hidden repeats; where it shows each case at once, nobody could read one blind again."""
    return policy.repeat_rate > 0 and policy.reveal != "after_commit"


def maybe_hold_back(session: Session, label: Label, policy: PolicyRow) -> None:
    """Toss the coin for a case that was just read, for its annotator."""
    if wants_repeats(policy) and draw_random_unit() < HELD_PER_REPEAT * policy.repeat_rate:
        session.add(HeldBack(annotator_id=label.annotator_id, case_id=label.case_id))


def is_held_back(session: Session, annotator_id: uuid.UUID, case_id: uuid.UUID) -> bool:
    """Whether a case stays hidden from an annotator for good."""
    kept = exists().where(HeldBack.annotator_id == annotator_id, HeldBack.case_id == case_id)
    return bool(session.execute(select(kept)).scalar_one())


def is_held_back_from(session: Session, principal: Principal, case_id: uuid.UUID) -> bool:
    """Return whether a case stays hidden for good from the annotator of an account."""
    mine = (Annotator.account_id == principal.account_id, HeldBack.case_id == case_id)
    return (
        session.execute(select(HeldBack.id).join(Annotator, Annotator.id == HeldBack.annotator_id).where(*mine)).first()
        is not None
    )
