"""Database access of annotators' reads before a moment, for statistics that change weekly."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import and_, exists, or_, select
from sqlalchemy.orm import Session, aliased

from app.cases.service import CORRECTION_TIME, predictions_of
from app.database.tables import (
    Account,
    Annotator,
    Case,
    CountedLabel,
    HeldBack,
    Label,
    PolicyRow,
    Read,
    ReadRequest,
    Repeat,
)
from app.predictions.service import stored_predictions
from ml.distributions.families import has_concentration
from ml.util.arrays import FloatArray

#: What is looked at: labels of so many weeks, and of so many cases, the newest.
WEEKS, MOST_CASES, MOST_READS = 26, 4000, 40_000
#: A label and its corrections are final, and the worker has seen it.
FINAL_AFTER = CORRECTION_TIME + timedelta(minutes=1)


@dataclass(frozen=True)
class BlindOpinion:
    """Blind opinion of an annotator on a case, with the time of the first answer."""

    class_code: str
    confidence: float | None
    at: datetime
    late: bool


@dataclass
class ClosedCase:
    """A case with every opinion of it, at a moment."""

    opinions: dict[uuid.UUID, BlindOpinion] = field(default_factory=dict)
    # when the last of its labels was final and the last planned read in or due; None: not yet
    settled_at: datetime | None = None
    # whether no read of it was wanted any more
    all_in: bool = False
    # of the newest policy that asked for a read
    reveal: str = "never"


def closed_cases(session: Session, until: datetime) -> dict[uuid.UUID, ClosedCase]:
    """Cases labelled in the weeks before a moment that were settled by then, with the opinions of then."""
    horizon = until - FINAL_AFTER
    span = (CountedLabel.created_at >= until - timedelta(weeks=WEEKS), CountedLabel.created_at < horizon)
    blind = CountedLabel.blind.is_(True)
    newest = select(CountedLabel.case_id).where(*span, blind).distinct().order_by(CountedLabel.case_id.desc())
    ids = newest.limit(MOST_CASES).subquery()
    erased = select(Case.id).where(Case.erased_at.is_not(None), Case.id.in_(select(ids.c.case_id)))
    gone = set(session.execute(erased).scalars())
    cases = opinions_until(session, ids, horizon)
    _set_settled_times(session, ids, cases, until)
    return {case_id: case for case_id, case in cases.items() if case.settled_at is not None and case_id not in gone}


def opinions_until(session: Session, ids: Any, horizon: datetime) -> dict[uuid.UUID, ClosedCase]:
    """Last blind answer of each chain that does not end in a retraction, by labels from before a moment."""
    columns = (
        CountedLabel.case_id, CountedLabel.annotator_id, CountedLabel.kind, CountedLabel.class_code,
        CountedLabel.confidence, CountedLabel.blind, CountedLabel.late, CountedLabel.created_at,
    )  # fmt: skip
    labels = select(*columns).where(CountedLabel.case_id.in_(select(ids.c.case_id)), CountedLabel.created_at < horizon)
    chains: dict[tuple[uuid.UUID, uuid.UUID], list[Any]] = defaultdict(list)
    for row in session.execute(labels.order_by(CountedLabel.position)):
        chains[row.case_id, row.annotator_id].append(row)
    cases: dict[uuid.UUID, ClosedCase] = defaultdict(ClosedCase)
    for (case_id, annotator_id), chain in chains.items():
        blind = [row for row in chain if row.blind and row.kind != "retraction"]
        if chain[-1].kind == "retraction" or not blind:
            continue
        last = blind[-1]
        opinion = BlindOpinion(last.class_code, last.confidence, chain[0].created_at, last.late)
        cases[case_id].opinions[annotator_id] = opinion
    return cases


def _set_settled_times(session: Session, ids: Any, cases: dict[uuid.UUID, ClosedCase], until: datetime) -> None:
    reveals = {row.version: row.reveal for row in session.execute(select(PolicyRow.version, PolicyRow.reveal))}
    columns = (ReadRequest.case_id, ReadRequest.round, ReadRequest.closed_at, ReadRequest.due_at)
    statement = select(*columns, ReadRequest.policy_version).where(
        ReadRequest.case_id.in_(select(ids.c.case_id)), ReadRequest.created_at < until
    )
    requests: dict[uuid.UUID, list[Any]] = defaultdict(list)
    for row in session.execute(statement):
        requests[row.case_id].append(row)
    for case_id, case in cases.items():
        of_case = requests.get(case_id, [])
        ends = [min(row.closed_at or row.due_at, row.due_at) for row in of_case if row.round == "planned"]
        ends += [opinion.at + FINAL_AFTER for opinion in case.opinions.values()]
        if of_case and case.opinions and max(ends) < until:
            case.settled_at = max(ends)
            case.all_in = all(row.closed_at is not None and row.closed_at < until for row in of_case)
            case.reveal = reveals[max(row.policy_version for row in of_case)]


def held_back_from(session: Session, annotator_id: uuid.UUID) -> set[uuid.UUID]:
    """Cases that stay closed to an annotator."""
    return set(session.execute(select(HeldBack.case_id).where(HeldBack.annotator_id == annotator_id)).scalars())


def others_posteriors(
    session: Session, cases: Sequence[tuple[uuid.UUID, ClosedCase, uuid.UUID]], codes: list[str]
) -> FloatArray:
    """Probability of each class for the next answer, by a case's prediction and the labels of all but one annotator."""
    place = {code: number for number, code in enumerate(codes)}
    counts = np.zeros((len(cases), len(codes)), dtype=np.int64)
    for row, (_, case, left_out) in enumerate(cases):
        for annotator_id, opinion in case.opinions.items():
            if annotator_id != left_out and opinion.class_code in place:
                counts[row, place[opinion.class_code]] += 1
    predictions = predictions_of(session, list({case_id for case_id, _, _ in cases})) if cases else {}
    probs = np.full(counts.shape, np.nan)
    groups: dict[tuple[uuid.UUID, bool, bool], list[int]] = defaultdict(list)
    for row, (case_id, _, _) in enumerate(cases):
        prediction = predictions.get(case_id)
        if prediction is not None and len(prediction.class_probs) == len(codes):
            key = (prediction.release_id, prediction.members is None, prediction.log_concentration is None)
            groups[key].append(row)
    for rows in groups.values():
        prior = stored_predictions([predictions[cases[row][0]] for row in rows])
        after = prior.posterior(counts[rows]) if has_concentration(prior) else prior
        probs[rows] = after.class_probs
    return probs


@dataclass(frozen=True)
class EndedVisit:
    """A visit to a case that ended in an answer or in "cannot tell"; a repeat is one like any other."""

    annotator_id: uuid.UUID
    cannot_tell: bool
    seconds: float | None
    at: datetime


def ended_reads(session: Session, until: datetime) -> list[EndedVisit]:
    """Visits that ended in the weeks before a moment, the newest first."""
    since = until - timedelta(weeks=WEEKS)
    first = (Label.position == 0, Label.late.is_(False), Label.reading_seconds.is_not(None))
    given = select(Label.annotator_id, Label.reading_seconds, Label.created_at).where(
        *first, Label.created_at >= since, Label.created_at < until
    )
    newest = given.order_by(Label.created_at.desc()).limit(MOST_READS)
    ended = [EndedVisit(row[0], False, row[1], row[2]) for row in session.execute(newest)]
    conditions = (Read.decline_reason == "cannot_tell", Read.ended_at >= since, Read.ended_at < until)
    columns = select(Read.annotator_id, Read.ended_at).where(*conditions).limit(MOST_READS)
    ended += [EndedVisit(who, True, None, at) for who, at in session.execute(columns) if at is not None]
    return sorted(ended, key=lambda visit: visit.at)


def repeated_answers(session: Session, until: datetime) -> list[tuple[uuid.UUID, bool]]:
    """Annotator of each repeat that was answered for good before a moment, and whether the answer was the same."""
    horizon, before = until - FINAL_AFTER, aliased(CountedLabel)
    same_chain = (Repeat.case_id == Label.case_id, Repeat.annotator_id == Label.annotator_id)
    columns = (
        Repeat.id, Label.annotator_id, before.class_code.label("before"), Label.class_code, Label.kind, Label.blind,
        Label.late, Label.created_at,
    )  # fmt: skip
    rows = session.execute(
        select(*columns)
        .join(Repeat, and_(*same_chain))
        .join(before, before.id == Repeat.label_id)
        .where(Label.purpose == "repeat", Label.created_at < horizon)
        .order_by(Label.position)
    )
    chains: dict[uuid.UUID, list[Any]] = defaultdict(list)
    for row in rows:
        chains[row.id].append(row)
    same = []
    for chain in sorted(chains.values(), key=lambda chain: chain[0].created_at):
        blind = [row for row in chain if row.blind and row.kind != "retraction"]
        if blind and chain[-1].kind != "retraction" and not chain[0].late:
            same.append((chain[0].annotator_id, blind[-1].class_code == blind[-1].before))
    return same


def annotator_named(session: Session, name: str) -> Annotator | None:
    """The annotator of a name who has an account."""
    statement = select(Annotator).where(Annotator.name == name, Annotator.account_id.is_not(None))
    return session.execute(statement).scalar_one_or_none()


def annotators_of_accounts(session: Session) -> dict[uuid.UUID, uuid.UUID]:
    """The account of each annotator who has one."""
    rows = session.execute(select(Annotator.id, Annotator.account_id).where(Annotator.account_id.is_not(None)))
    return {row[0]: row[1] for row in rows if row[1] is not None}


def list_annotator_names(session: Session) -> list[str]:
    """List the names of annotators with accounts, without leads who have only looked at cells."""
    reads = exists().where(CountedLabel.annotator_id == Annotator.id, CountedLabel.blind.is_(True))
    accounts = select(Annotator.name).join(Account, Account.id == Annotator.account_id)
    statement = accounts.where(or_(Account.role == "annotator", reads)).order_by(Annotator.name)
    return list(session.execute(statement).scalars())
