"""What is stored of a study: how cases flowed, who read, what kept them blind, what is missing."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, case, exists, func, select
from sqlalchemy.orm import Session, aliased

from app.releases.queries import champion, champion_since, existing_release
from app.tables import (
    Annotator,
    Case,
    CasePrediction,
    Exposure,
    Label,
    PolicyRow,
    Qualification,
    Read,
    ReadRequest,
    ReleaseRow,
    RepeatAnswer,
    Table,
)


class Flow(NamedTuple):
    """How many cases came how far; each step is part of the one before, but for ``erased`` and ``declined``."""

    received: int
    predicted: int
    read: int
    closed: int
    erased: int
    declined: dict[str, int]


class Part(NamedTuple):
    """Cases and patients of one partition; cases without a patient are their own."""

    name: str
    n_cases: int
    n_patients: int
    n_without_patient: int


class Readers(NamedTuple):
    """Who gave blind labels."""

    n_people: int
    n_outside: int
    n_labels: int
    fewest: int
    most: int
    n_qualified: int
    n_repeats: int


class Blinding(NamedTuple):
    """Labels that count as blind, those of them after an exposure, and what was shown and when."""

    n_blind: int
    n_blind_after_exposure: int
    n_not_blind: int
    n_exposures: int
    n_changed_after: int


class Missing(NamedTuple):
    """Planned reads by what became of them, and cases about which something was not recorded."""

    planned: int
    answered: int
    waiting: int
    undecided: int
    without_patient: int
    without_site: int
    n_twins: int
    n_trained_on: int
    n_unlike: int
    n_predicted_late: int


class StudyFacts(NamedTuple):
    """Everything that the report of a study is filled from, besides the evaluation."""

    release: ReleaseRow
    since: datetime | None
    first_case: datetime | None
    last_case: datetime | None
    sites: list[str]
    flow: Flow
    parts: list[Part]
    n_patients_in_both: int
    readers: Readers
    blinding: Blinding
    missing: Missing
    policies: list[PolicyRow]


def study_facts(session: Session) -> StudyFacts | None:
    """Count everything; None without a champion."""
    alias = champion(session)
    if alias is None:
        return None
    first, last = session.execute(select(func.min(Case.created_at), func.max(Case.created_at))).one()
    sites = select(Case.site).where(Case.site.is_not(None)).distinct().order_by(Case.site)
    other = aliased(Case)
    in_both = select(func.count(Case.patient.distinct())).where(
        Case.patient.is_not(None),
        Case.partition == "evaluation",
        exists().where(other.patient == Case.patient, other.partition == "calibration"),
    )
    return StudyFacts(
        release=existing_release(session, alias.release_id),
        since=champion_since(session),
        first_case=first,
        last_case=last,
        sites=[site for site in session.execute(sites).scalars() if site],
        flow=_flow(session, alias.release_id),
        parts=_parts(session),
        n_patients_in_both=session.execute(in_both).scalar_one(),
        readers=_readers(session),
        blinding=_blinding(session),
        missing=_missing(session, alias.release_id),
        policies=list(session.execute(select(PolicyRow).order_by(PolicyRow.version)).scalars()),
    )


def _count(session: Session, table: type[Table], *conditions: ColumnElement[bool]) -> int:
    return session.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one()


def _flow(session: Session, release_id: uuid.UUID) -> Flow:
    predicted = exists().where(CasePrediction.case_id == Case.id, CasePrediction.release_id == release_id)
    read = exists().where(Label.case_id == Case.id, Label.kind == "label")
    waits = exists().where(ReadRequest.case_id == Case.id, ReadRequest.state.in_(("open", "leased")))
    reasons = select(Read.decline_reason, func.count(Read.case_id.distinct())).where(Read.state == "declined")
    return Flow(
        received=_count(session, Case),
        predicted=_count(session, Case, predicted),
        read=_count(session, Case, predicted, read),
        closed=_count(session, Case, predicted, read, ~waits),
        erased=_count(session, Case, Case.erased_at.is_not(None)),
        declined={
            reason: count
            for reason, count in session.execute(reasons.group_by(Read.decline_reason).order_by(Read.decline_reason))
            if reason is not None
        },
    )


def _parts(session: Session) -> list[Part]:
    without = func.sum(case((Case.patient.is_(None), 1), else_=0))
    wanted = select(Case.partition, func.count(), func.count(Case.patient.distinct()), without)
    return [Part(*row) for row in session.execute(wanted.group_by(Case.partition).order_by(Case.partition))]


def _readers(session: Session) -> Readers:
    per_person = (
        select(Annotator.account_id, func.count())
        .join(Label, Label.annotator_id == Annotator.id)
        .where(Label.kind == "label", Label.blind.is_(True))
        .group_by(Annotator.id, Annotator.account_id)
    )
    rows: Sequence[tuple[uuid.UUID | None, int]] = [(row[0], row[1]) for row in session.execute(per_person)]
    counts = [count for _, count in rows]
    qualified = select(func.count(Qualification.annotator_id.distinct()))
    return Readers(
        n_people=sum(account is not None for account, _ in rows),
        n_outside=sum(account is None for account, _ in rows),
        n_labels=sum(counts),
        fewest=min(counts, default=0),
        most=max(counts, default=0),
        n_qualified=session.execute(qualified).scalar_one(),
        n_repeats=_count(session, RepeatAnswer),
    )


def _blinding(session: Session) -> Blinding:
    shown_before = exists().where(
        Exposure.case_id == Label.case_id,
        Exposure.annotator_id == Label.annotator_id,
        Exposure.created_at < Label.created_at,
    )
    return Blinding(
        n_blind=_count(session, Label, Label.kind == "label", Label.blind.is_(True)),
        n_blind_after_exposure=_count(session, Label, Label.kind == "label", Label.blind.is_(True), shown_before),
        n_not_blind=_count(session, Label, Label.kind == "label", Label.blind.is_(False)),
        n_exposures=_count(session, Exposure),
        n_changed_after=_count(session, Label, Label.post_reveal.is_(True)),
    )


def _missing(session: Session, release_id: uuid.UUID) -> Missing:
    planned = ReadRequest.round == "planned"
    undecided = (
        select(func.count(Read.request_id.distinct()))
        .join(ReadRequest, ReadRequest.id == Read.request_id)
        .where(planned, Read.decline_reason == "cannot_tell")
    )
    of_release = CasePrediction.release_id == release_id
    labelled_before = exists().where(
        Label.case_id == CasePrediction.case_id, Label.created_at < CasePrediction.created_at
    )
    return Missing(
        planned=_count(session, ReadRequest, planned),
        answered=_count(session, ReadRequest, planned, ReadRequest.state == "answered"),
        waiting=_count(session, ReadRequest, planned, ReadRequest.state.in_(("open", "leased"))),
        undecided=session.execute(undecided).scalar_one(),
        without_patient=_count(session, Case, Case.patient.is_(None)),
        without_site=_count(session, Case, Case.site.is_(None)),
        n_twins=_count(session, Case, Case.same_image_as.is_not(None)),
        n_trained_on=_count(session, CasePrediction, and_(of_release, CasePrediction.trained_on.is_not(None))),
        n_unlike=_count(session, CasePrediction, and_(of_release, CasePrediction.out_of_distribution.is_(True))),
        n_predicted_late=_count(session, CasePrediction, and_(of_release, labelled_before)),
    )
