"""Practice runs: which cell comes next, and the result."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.annotators.practice.schemas import PassRatesOut, ResultOut
from app.database.tables import (
    Annotator,
    Case,
    PracticeAnswer,
    PracticeCell,
    PracticeItem,
    PracticeRun,
    PracticeSet,
    Qualification,
)
from app.http.errors import NotFound
from ml.agreement.qualification import LEVEL
from ml.messages import Message, Number, joined, listed

#: Somebody who should not pass does so too often above this share.
TOO_OFTEN = 0.10


def _format_percent(value: float) -> str:
    return Number(f"{value:.0%}")


def feedback_sentences(
    own: str, counts: Mapping[str, int], probs: Mapping[str, float], names: Mapping[str, str]
) -> list[str]:
    """Describe the others' answers to a cell next to one's own.

    >>> names = {"s": "segmented", "b": "band"}
    >>> for sentence in feedback_sentences("b", {"s": 7, "b": 2}, {"s": 0.76, "b": 0.24}, names):
    ...     print(sentence)
    7 of 9 chose segmented, 2 chose band. You chose band, as 2 of them did.
    Expected next answer: segmented with a probability of 76%, band 24%.
    """
    ranked_answers = sorted(((n, code) for code, n in counts.items() if n), key=lambda pair: (-pair[0], pair[1]))
    total, same = sum(counts.values()), counts.get(own, 0)
    parts = [Message("{n} chose {code}", n=n, code=names.get(code, code)) for n, code in ranked_answers]
    parts[:1] = [
        Message(
            "{said} of {total} chose {said2}",
            said=ranked_answers[0][0],
            total=total,
            said2=names.get(ranked_answers[0][1], ranked_answers[0][1]),
        )
    ]
    as_they_did = Message("as {same} of them did", same=same) if same else Message("as none of them did")
    you = Message(
        "You chose {own}, {as_they_did}.",
        own=names.get(own, own),
        as_they_did=Message("as all of them did") if same == total else as_they_did,
    )
    likely = [(names.get(code, code), value) for code, value in sorted(probs.items(), key=lambda pair: -pair[1])]
    first = Message(
        "{likely} with a probability of {likely2}", likely=likely[0][0], likely2=_format_percent(likely[0][1])
    )
    rest = [
        Message("{name} {share}", name=name, share=_format_percent(value))
        for name, value in likely[1:3]
        if value >= 0.01
    ]
    after = Message("Expected next answer: {rest}.", rest=joined(", ", [first, *rest]))
    return [joined(". ", [joined(", ", parts), you]), after]


def result_sentences(result: ResultOut) -> list[str]:
    """Describe the result of a qualification to its annotator."""
    points = [f"{100 * value:+.0f}" for value in (result.difference, result.low, result.high)]
    first = Message(
        "Mean probability of your answers on {n} cells: {mean}, compared with {of_pool} for "
        "the other annotators. Difference: {points} points ({points2} to {points3}).",
        n=result.n,
        mean=_format_percent(result.mean),
        of_pool=_format_percent(result.of_pool),
        points=points[0],
        points2=points[1],
        points3=points[2],
    )
    if result.passed:
        return [
            first,
            Message("Passed: no sign of guessing or of confusing two classes."),
        ]
    rare = Message("fewer than {level:g} of 100", level=100 * LEVEL)
    return [
        first,
        Message(
            "Not passed: an annotator like the others gets a result as far from theirs in {rare} tests.",
            rare=rare,
        ),
    ]


def set_sentences(rates: PassRatesOut | None, names: Mapping[str, str]) -> list[str]:
    """Describe the power of a qualification set to its author."""
    if rates is None:
        return []
    sentences: list[str] = [
        Message(
            "Pass probability: {like_the_others} for an annotator like the others, {guessing} for random guesses.",
            like_the_others=_format_percent(rates.like_the_others),
            guessing=_format_percent(rates.guessing),
        )
    ]
    weak = [
        Message("{name} ({share})", name=names.get(code, code), share=_format_percent(rate))
        for code, rate in rates.confusing.items()
        if rate > TOO_OFTEN
    ]
    if weak:
        sentences.append(
            Message(
                "Too many annotators who confuse two classes half of the time would pass: {weak}.", weak=listed(weak)
            )
        )
    elif rates.confusing:
        worst = max(rates.confusing.values())
        sentences.append(
            Message(
                "An annotator who confuses two classes half of the time passes with a probability of at most {worst}.",
                worst=_format_percent(worst),
            )
        )
    if rates.guessing > TOO_OFTEN or weak:
        sentences.append(Message("Use more cells per run to detect these confusions."))
    return sentences


@dataclass(frozen=True)
class OwnItem:
    """A cell of a run of the caller's."""

    item: PracticeItem
    run: PracticeRun
    chosen: PracticeSet
    annotator: Annotator


def set_of(session: Session, set_id: uuid.UUID) -> PracticeSet:
    """A set."""
    chosen = session.get(PracticeSet, set_id)
    if chosen is None:
        raise NotFound("there is no such set")
    return chosen


def all_sets(session: Session) -> list[PracticeSet]:
    """Every set, newest first."""
    return list(session.execute(select(PracticeSet).order_by(PracticeSet.id.desc())).scalars())


def count_cells(session: Session, set_ids: list[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Cells of each set whose patient is not erased."""
    statement = (
        select(PracticeCell.set_id, func.count())
        .join(Case, Case.id == PracticeCell.case_id)
        .where(PracticeCell.set_id.in_(set_ids), Case.erased_at.is_(None))
        .group_by(PracticeCell.set_id)
    )
    return {row[0]: row[1] for row in session.execute(statement)}


def runs_of_sets(session: Session, set_ids: list[uuid.UUID]) -> list[PracticeRun]:
    """Runs of some sets, newest first."""
    statement = select(PracticeRun).where(PracticeRun.set_id.in_(set_ids)).order_by(PracticeRun.created_at.desc())
    return list(session.execute(statement).scalars())


def runs_of(session: Session, annotator_id: uuid.UUID) -> list[tuple[PracticeRun, PracticeSet]]:
    """Runs of an annotator with their sets, newest first."""
    statement = (
        select(PracticeRun, PracticeSet)
        .join(PracticeSet, PracticeSet.id == PracticeRun.set_id)
        .where(PracticeRun.annotator_id == annotator_id)
        .order_by(PracticeRun.created_at.desc(), PracticeRun.id)
        .limit(100)
    )
    return [(row[0], row[1]) for row in session.execute(statement)]


def attempts_of(session: Session, annotator_id: uuid.UUID) -> list[PracticeRun]:
    """Every qualification that an annotator has begun."""
    statement = select(PracticeRun).join(PracticeSet, PracticeSet.id == PracticeRun.set_id)
    mine = (PracticeRun.annotator_id == annotator_id, PracticeSet.purpose == "qualification")
    return list(session.execute(statement.where(*mine)).scalars())


def own_run(session: Session, account_id: uuid.UUID, run_id: uuid.UUID) -> tuple[PracticeRun, PracticeSet]:
    """A run of the annotator of an account, with its set."""
    statement = (
        select(PracticeRun, PracticeSet)
        .join(PracticeSet, PracticeSet.id == PracticeRun.set_id)
        .join(Annotator, Annotator.id == PracticeRun.annotator_id)
        .where(PracticeRun.id == run_id, Annotator.account_id == account_id)
    )
    row = session.execute(statement).first()
    if row is None:
        raise NotFound("there is no such run")
    return row[0], row[1]


def own_item(session: Session, account_id: uuid.UUID, item_id: uuid.UUID) -> OwnItem:
    """A cell of a run of the annotator of an account."""
    statement = (
        select(PracticeItem, PracticeRun, PracticeSet, Annotator)
        .join(PracticeRun, PracticeRun.id == PracticeItem.run_id)
        .join(PracticeSet, PracticeSet.id == PracticeRun.set_id)
        .join(Annotator, Annotator.id == PracticeItem.annotator_id)
        .where(PracticeItem.id == item_id, Annotator.account_id == account_id)
    )
    row = session.execute(statement).first()
    if row is None:
        raise NotFound("there is no such cell of a run")
    return OwnItem(row[0], row[1], row[2], row[3])


def next_item(session: Session, run_id: uuid.UUID) -> PracticeItem | None:
    """The cell of a run that is answered next; those of erased patients are passed over."""
    statement = (
        select(PracticeItem)
        .join(Case, Case.id == PracticeItem.case_id)
        .outerjoin(PracticeAnswer, PracticeAnswer.item_id == PracticeItem.id)
        .where(PracticeItem.run_id == run_id, PracticeAnswer.id.is_(None), Case.erased_at.is_(None))
        .order_by(PracticeItem.position)
        .limit(1)
    )
    return session.execute(statement).scalar_one_or_none()


def answer_of(session: Session, item_id: uuid.UUID) -> PracticeAnswer | None:
    """The answer to a cell of a run."""
    return session.execute(select(PracticeAnswer).where(PracticeAnswer.item_id == item_id)).scalar_one_or_none()


def answers_of_run(session: Session, run_id: uuid.UUID) -> dict[uuid.UUID, str]:
    """Class that was said of each case of a run."""
    statement = (
        select(PracticeItem.case_id, PracticeAnswer.class_code)
        .join(PracticeAnswer, PracticeAnswer.item_id == PracticeItem.id)
        .where(PracticeItem.run_id == run_id)
        .order_by(PracticeItem.position)
    )
    return {row[0]: row[1] for row in session.execute(statement)}


def count_items(session: Session, run_ids: list[uuid.UUID]) -> dict[uuid.UUID, tuple[int, int]]:
    """Cells of each run, and how many are answered."""
    statement = (
        select(PracticeItem.run_id, func.count(PracticeItem.id), func.count(PracticeAnswer.id))
        .outerjoin(PracticeAnswer, PracticeAnswer.item_id == PracticeItem.id)
        .where(PracticeItem.run_id.in_(run_ids))
        .group_by(PracticeItem.run_id)
    )
    return {row[0]: (row[1], row[2]) for row in session.execute(statement)}


def decisions_on(session: Session, annotator_id: uuid.UUID) -> list[Qualification]:
    """Decisions on an annotator, newest first."""
    statement = select(Qualification).where(Qualification.annotator_id == annotator_id)
    newest_first = (Qualification.created_at.desc(), Qualification.id.desc())
    return list(session.execute(statement.order_by(*newest_first)).scalars())
