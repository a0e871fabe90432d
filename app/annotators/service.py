"""Reading statistics for annotators and admins, without unblinding any read."""

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

import numpy as np
from sqlalchemy.orm import Session

from app.accounts.service import annotator_of_account
from app.annotators import history, statistics
from app.annotators.history import ClosedCase, annotator_named, opinions_until, others_posteriors
from app.annotators.schemas import AnnotatorsOut, OwnReadingOut, PulledOut
from app.annotators.statistics import ComparedAnswers, reading_sentences, round_to_step
from app.database.tables import Annotator, time_of
from app.http.errors import NotFound
from app.http.principal import READING, Principal
from app.releases.service import class_names

#: Name that stands for the caller.
ME = "me"


def last_monday(at: datetime) -> datetime:
    """Midnight (UTC) at the beginning of the week.

    >>> last_monday(datetime(2026, 11, 25, 13)).isoformat()
    '2026-11-23T00:00:00'
    """
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - timedelta(days=midnight.weekday())


def list_annotators(session: Session) -> AnnotatorsOut:
    """Annotators with accounts, by name."""
    return AnnotatorsOut(items=history.list_annotator_names(session))


def own_reading(session: Session, principal: Principal, name: str = ME) -> OwnReadingOut:
    """Return an annotator's reading statistics, for themselves or for an admin."""
    mine = annotator_of_account(session, principal.account_id) if READING in principal.scopes else None
    if name == ME or name == principal.name:
        annotator = mine
    else:
        annotator = history.annotator_named(session, name) if "manage" in principal.scopes else None
    if annotator is None:
        raise NotFound("there is no such annotator, or no reads yet")
    return _build_reading(session, annotator, last_monday(time_of(session)), every_case="manage" in principal.scopes)


def _build_reading(session: Session, annotator: Annotator, until: datetime, *, every_case: bool) -> OwnReadingOut:
    """The numbers of an annotator; ``every_case``: of closed cases that the policy hides from them too."""
    names, cases = class_names(session), history.closed_cases(session, until)
    held = history.held_back_from(session, annotator.id)
    visible = {key: case for key, case in cases.items() if every_case or _can_see_case(key, case, annotator.id, held)}
    own = _compare_answers(session, visible, names, annotator.id)
    own = own.take(range(round_to_step(len(own.keys))))
    open_to_all = {key: case for key, case in cases.items() if case.all_in and (every_case or key not in held)}
    can_compare = every_case or any(case.reveal != "never" for case in visible.values())
    everybody = _compare_answers(session, open_to_all if can_compare else {}, names, None)
    everybody = everybody.take(range(round_to_step(len(everybody.keys))))
    reading = _build_individual_reading(session, annotator, until)
    if len(own.keys) and len(everybody.keys):
        mean, surplus = statistics.estimate_agreement(own, everybody)
        compared = {
            "n_compared": len(own.keys),
            "agreement": mean,
            "agreement_surplus": surplus,
            "confusions": statistics.estimate_confusions(own, everybody, list(names)),
            "confidence": statistics.estimate_by_confidence(own, everybody),
            "steps": statistics.estimate_by_step(own, everybody, visible),
            "drift": statistics.estimate_drift(own, everybody),
        }
        reading = reading.model_copy(update=compared)
    return reading.model_copy(update={"sentences": reading_sentences(reading, names)})


def estimate_account_agreements(session: Session) -> dict[uuid.UUID, PulledOut]:
    """Agreement of each annotator with the others, by account, for admins: the number of each annotator's own page."""
    names, cases = class_names(session), history.closed_cases(session, last_monday(time_of(session)))
    compared = _compare_answers(session, cases, names, None)
    everybody = compared.take([row for row, key in enumerate(compared.keys) if cases[key[0]].all_in])
    everybody = everybody.take(range(round_to_step(len(everybody.keys))))
    rows: dict[uuid.UUID, list[int]] = {}
    for row, (_, annotator_id) in enumerate(compared.keys):
        rows.setdefault(annotator_id, []).append(row)
    accounts = history.annotators_of_accounts(session)
    return {
        accounts[annotator_id]: statistics.estimate_agreement(compared.take(own[: round_to_step(len(own))]), everybody)[
            0
        ]
        for annotator_id, own in rows.items()
        if annotator_id in accounts and round_to_step(len(own)) and len(everybody.keys)
    }


def _can_see_case(case_id: uuid.UUID, case: ClosedCase, annotator_id: uuid.UUID, held: Collection[uuid.UUID]) -> bool:
    """Whether an annotator may see a closed case in full: they have read it, and nothing keeps it closed to them."""
    return annotator_id in case.opinions and case.reveal != "never" and case_id not in held


def _compare_answers(
    session: Session, cases: Mapping[uuid.UUID, ClosedCase], names: Mapping[str, str], only: uuid.UUID | None
) -> ComparedAnswers:
    codes = list(names)
    triples = [
        (case_id, case, annotator_id)
        for case_id, case in sorted(cases.items(), key=lambda item: (item[1].settled_at, item[0]))
        for annotator_id, opinion in sorted(case.opinions.items())
        if only in {None, annotator_id} and len(case.opinions) > 1 and not opinion.late and opinion.class_code in names
    ]
    others = history.others_posteriors(session, triples, codes)
    opinions = [case.opinions[annotator_id] for _, case, annotator_id in triples]
    sure = [np.nan if opinion.confidence is None else opinion.confidence for opinion in opinions]
    compared = ComparedAnswers(
        [(case_id, annotator_id) for case_id, _, annotator_id in triples],
        others,
        np.array([codes.index(opinion.class_code) for opinion in opinions], dtype=np.int64),
        np.array(sure, dtype=np.float64),
    )
    return compared.take(np.flatnonzero(~np.isnan(others).any(axis=1)).tolist())


def _build_individual_reading(session: Session, annotator: Annotator, until: datetime) -> OwnReadingOut:
    visits = history.ended_reads(session, until)
    n_reads = sum(visit.annotator_id == annotator.id for visit in visits)
    return OwnReadingOut(
        annotator=annotator.name,
        until=until,
        n_reads=round_to_step(n_reads),
        n_compared=0,
        seconds=statistics.estimate_pace(visits, annotator.id),
        cannot_tell=statistics.estimate_cannot_tell(visits, annotator.id),
        self_agreement=statistics.estimate_self_agreement(history.repeated_answers(session, until), annotator.id),
        agreement=None,
        agreement_surplus=None,
        confusions=[],
        confidence=[],
        steps=[],
        drift=None,
        sentences=[],
    )
