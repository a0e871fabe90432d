"""How annotators read, shown to themselves and to admins, so that nothing tells a blind reader of a case to be read.

Everything is as it was on the last Monday, in steps of ten cases, of cases that this person has read, that are closed
and that the policy shows to them. What all annotators do comes from cases without an open read, without those that stay
closed to this person.
"""

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

import numpy as np
from sqlalchemy.orm import Session

from app.accounts.annotators import annotator_of_account
from app.annotators import history, statistics
from app.annotators.history import ClosedCase
from app.annotators.schemas import AnnotatorsOut, OwnReadingOut, PulledOut
from app.annotators.statistics import Compared, in_steps, sentences
from app.database.tables import Annotator, time_of
from app.http.errors import NotFound
from app.http.principal import READING, Principal

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
    return AnnotatorsOut(items=history.annotators(session))


def own_reading(session: Session, principal: Principal, name: str = ME) -> OwnReadingOut:
    """How an annotator reads, for themselves or for an admin.

    Args:
        session: for reading.
        principal: the caller.
        name: of the annotator; ``me`` for the caller.

    Raises:
        NotFound: there is no such annotator, or it is somebody else and the caller no admin.
    """
    mine = annotator_of_account(session, principal.account_id) if READING in principal.scopes else None
    if name == ME or name == principal.name:
        annotator = mine
    else:
        annotator = history.annotator_named(session, name) if "manage" in principal.scopes else None
    if annotator is None:
        raise NotFound("there is no such annotator, or nothing was read yet")
    return _reading(session, annotator, last_monday(time_of(session)), every_case="manage" in principal.scopes)


def _reading(session: Session, annotator: Annotator, until: datetime, *, every_case: bool) -> OwnReadingOut:
    """The numbers of an annotator; ``every_case``: of closed cases that the policy hides from them too."""
    names, cases = history.class_names(session), history.closed_cases(session, until)
    held = history.held_back_from(session, annotator.id)
    visible = {key: case for key, case in cases.items() if every_case or _shown(key, case, annotator.id, held)}
    own = _compared(session, visible, names, annotator.id)
    own = own.take(range(in_steps(len(own.keys))))
    open_to_all = {key: case for key, case in cases.items() if case.all_in and (every_case or key not in held)}
    shown = every_case or any(case.reveal != "never" for case in visible.values())
    everybody = _compared(session, open_to_all if shown else {}, names, None)
    everybody = everybody.take(range(in_steps(len(everybody.keys))))
    reading = _individual(session, annotator, until)
    if len(own.keys) and len(everybody.keys):
        mean, surplus = statistics.agreement(own, everybody)
        compared = {
            "n_compared": len(own.keys),
            "agreement": mean,
            "agreement_surplus": surplus,
            "confusions": statistics.confusions(own, everybody, list(names)),
            "confidence": statistics.confidence(own, everybody),
            "steps": statistics.steps(own, everybody, visible),
            "drift": statistics.drift(own, everybody),
        }
        reading = reading.model_copy(update=compared)
    return reading.model_copy(update={"sentences": sentences(reading, names)})


def agreements(session: Session) -> dict[uuid.UUID, PulledOut]:
    """Agreement of each annotator with the others, by account, for admins: the number of each annotator's own page.

    Raises:
        NoRelease: there is no reading task yet.
    """
    names, cases = history.class_names(session), history.closed_cases(session, last_monday(time_of(session)))
    compared = _compared(session, cases, names, None)
    everybody = compared.take([row for row, key in enumerate(compared.keys) if cases[key[0]].all_in])
    everybody = everybody.take(range(in_steps(len(everybody.keys))))
    rows: dict[uuid.UUID, list[int]] = {}
    for row, (_, annotator_id) in enumerate(compared.keys):
        rows.setdefault(annotator_id, []).append(row)
    accounts = history.annotators_of_accounts(session)
    return {
        accounts[annotator_id]: statistics.agreement(compared.take(own[: in_steps(len(own))]), everybody)[0]
        for annotator_id, own in rows.items()
        if annotator_id in accounts and in_steps(len(own)) and len(everybody.keys)
    }


def _shown(case_id: uuid.UUID, case: ClosedCase, annotator_id: uuid.UUID, held: Collection[uuid.UUID]) -> bool:
    """Whether an annotator may see a closed case in full: they have read it, and nothing keeps it closed to them."""
    return annotator_id in case.opinions and case.reveal != "never" and case_id not in held


def _compared(
    session: Session, cases: Mapping[uuid.UUID, ClosedCase], names: Mapping[str, str], only: uuid.UUID | None
) -> Compared:
    """Answers of one annotator, or of all, where others have read the case as well."""
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
    compared = Compared(
        [(case_id, annotator_id) for case_id, _, annotator_id in triples],
        others,
        np.array([codes.index(opinion.class_code) for opinion in opinions], dtype=np.int64),
        np.array(sure, dtype=np.float64),
    )
    return compared.take(np.flatnonzero(~np.isnan(others).any(axis=1)).tolist())


def _individual(session: Session, annotator: Annotator, until: datetime) -> OwnReadingOut:
    """What is known of an annotator without any other label of a case."""
    visits = history.ended_reads(session, until)
    n_reads = sum(visit.annotator_id == annotator.id for visit in visits)
    return OwnReadingOut(
        annotator=annotator.name,
        until=until,
        n_reads=in_steps(n_reads),
        n_compared=0,
        seconds=statistics.pace(visits, annotator.id),
        cannot_tell=statistics.cannot_tell(visits, annotator.id),
        self_agreement=statistics.self_agreement(history.repeated_answers(session, until), annotator.id),
        agreement=None,
        agreement_surplus=None,
        confusions=[],
        confidence=[],
        steps=[],
        drift=None,
        sentences=[],
    )
