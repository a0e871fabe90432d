"""Answers to hidden repeats: stored as what they are, and told to their annotator as labels are.

Nothing follows from them: no posterior, no adjudication, no state of a case. Each function answers as its namesake for
labels does where a case stays hidden.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.detached_rows import change_row, insert_row
from app.cases.blindness import hidden_of_repeat, was_exposed, was_exposed_to
from app.cases.correction_window import CORRECTABLE, leave_case
from app.context import Context
from app.database.tables import Annotator, Case, Remark, Repeat, RepeatAnswer, RepeatRead, time_of
from app.http.errors import LabelFinal, NotFound, Superseded
from app.http.principal import Principal
from app.labels.locked_context import LockedCase, LockedLease, case_at_hand, facts_of_case
from app.labels.queries import AnyRead
from app.labels.schemas import LabelOut, OwnLabelIn, RetractionIn, RevisionIn, SubmittedOut
from app.labels.submission import require_classes


def store_first(
    session: Session,
    context: Context,
    principal: Principal,
    lease: LockedLease,
    repeat: Repeat,
    known: LockedCase,
    body: OwnLabelIn,
) -> tuple[int, SubmittedOut]:
    """End a repeat by its first answer.

    Args:
        session: writing session.
        context: parts of the service.
        principal: who.
        lease: theirs, of a repeat.
        repeat: its request.
        known: its case, which is locked.
        body: the answer.

    Raises:
        Invalid: an unknown class.
    """
    require_classes(known.classes, body)
    read = lease.read
    seconds = _seconds_until(time_of(session), read)
    answer = _Next(repeat, known.case, None, reading_seconds=seconds).store(session, body)
    change_row(
        session,
        repeat,
        state="answered",
        closed_at=answer.created_at,
        lease_expires_at=None,
        final_at=answer.created_at + CORRECTABLE,
    )
    change_row(session, read, state="committed", ended_at=answer.created_at)
    if facts_of_case(session, repeat.case_id, lease.annotator.id).leaves_others:
        leave_case(session, lease.annotator.id, repeat.case_id)
    return _conclude(session, context, principal, repeat, answer, "repeat.answer")


def _seconds_until(at: datetime, read: AnyRead) -> float:
    return (at - (read.displayed_at or read.created_at)).total_seconds()


@dataclass(frozen=True)
class _Next:
    """Where an answer stands: at the end of a repeat's chain.

    Attributes:
        repeat: that is answered.
        case: of the repeat, locked.
        before: the last answer; None where there is none.
        kind: as of labels.
        blind: as the annotator is told.
        reason: why the last one is changed or taken back.
        reading_seconds: of the first one.
    """

    repeat: Repeat
    case: Case
    before: RepeatAnswer | None
    kind: str = "label"
    blind: bool = True
    reason: str | None = None
    reading_seconds: float | None = None

    def store(self, session: Session, body: OwnLabelIn | None) -> RepeatAnswer:
        """Store an answer; without a body, one that takes the last one back."""
        answer = insert_row(
            session,
            RepeatAnswer,
            repeat_id=self.repeat.id,
            case_id=self.repeat.case_id,
            kind=self.kind,
            supersedes_id=None if self.before is None else self.before.id,
            position=0 if self.before is None else self.before.position + 1,
            **({} if body is None else body.columns()),
            unexposed=not was_exposed_to(session, self.repeat.annotator_id, self.case),
            blind=self.blind,
            reading_seconds=self.reading_seconds,
        )
        note = None if body is None else body.note
        if note is not None or self.reason is not None:
            insert_row(session, Remark, id=answer.id, case_id=answer.case_id, note=note, reason=self.reason)
        return answer


def _conclude(
    session: Session, context: Context, principal: Principal, repeat: Repeat, answer: RepeatAnswer, action: str
) -> tuple[int, SubmittedOut]:
    """The audit event, and what the annotator gets back."""
    details = {"case": str(answer.case_id), "annotator": str(repeat.annotator_id), "label": answer.class_code}
    events.record(
        session,
        context.keys.audit,
        actor=principal.name,
        action=action,
        object_id=answer.id,
        details=details,
        cases=[answer.case_id],  # nothing of it changes; remembered answers are found by it when a patient is erased
    )
    shown = answer_out(session, principal, answer)
    return 201, SubmittedOut(label=shown, posterior=None, hidden_because=hidden_of_repeat(session, repeat))


def answer_out(session: Session, principal: Principal, answer: RepeatAnswer) -> LabelOut:
    """An answer as a label of the annotator's is shown to them."""
    remark = session.get(Remark, answer.id)
    return LabelOut(
        id=str(answer.id),
        case_id=str(answer.repeat_id),
        annotator=principal.name,
        label=answer.class_code,
        confidence=answer.confidence,
        second_choice=answer.second_choice,
        flagged=answer.flagged,
        note=None if remark is None else remark.note,
        blind=answer.blind,
        round="planned",
        late=False,
        kind=answer.kind,
        supersedes=None if answer.supersedes_id is None else str(answer.supersedes_id),
        post_reveal=not answer.unexposed,
        reason=None if remark is None else remark.reason,
        reading_seconds=answer.reading_seconds,
        created_at=answer.created_at,
    )


def chain_of(session: Session, repeat_id: uuid.UUID) -> list[RepeatAnswer]:
    """Answers to a repeat, the first one first."""
    statement = select(RepeatAnswer).where(RepeatAnswer.repeat_id == repeat_id).order_by(RepeatAnswer.position)
    return list(session.execute(statement).scalars())


def correct(
    session: Session,
    context: Context,
    principal: Principal,
    read: RepeatRead,
    body: OwnLabelIn,
    position: int | None = None,
) -> tuple[int, SubmittedOut]:
    """Put another answer in the place of one's own.

    Raises:
        LabelFinal: the time for corrections is over, or there is no answer.
        Superseded: another correction was faster.
        Invalid: an unknown class.
    """
    repeat = session.get_one(Repeat, read.request_id, with_for_update=True)  # before the case, as answers do
    at_hand = case_at_hand(session, read.case_id)
    require_classes(at_hand.classes, body)
    chain = chain_of(session, repeat.id)
    before = chain[-1] if chain else None
    if before is None or before.kind == "retraction" or not _in_time(session, repeat):
        raise LabelFinal("this answer is final; change it on the page of its case, with a reason")
    if position not in {None, before.position}:
        raise Superseded("this answer was corrected before; correct the newest one")
    answer = _Next(repeat, at_hand.case, before, "correction").store(session, body)
    return _conclude(session, context, principal, repeat, answer, "repeat.correct")


def _in_time(session: Session, repeat: Repeat) -> bool:
    over = repeat.final_at is None or repeat.final_at <= time_of(session)
    return not over and not was_exposed(session, repeat.annotator_id, repeat.case_id)


def is_corrected(session: Session, read: RepeatRead, position: int, body: OwnLabelIn) -> bool:
    """Whether an answer at a place of its chain is the newest one and says the same, or was corrected to this class."""
    chain = {answer.position: answer for answer in chain_of(session, read.request_id)}
    unchanged = max(chain, default=None) == position and body.says_only(chain[position].class_code)
    after = chain.get(position + 1)
    return unchanged or (after is not None and (after.kind, after.class_code) == ("correction", body.label))


def newest_of(session: Session, answer_id: uuid.UUID, account_id: uuid.UUID) -> tuple[Repeat, RepeatAnswer] | None:
    """A repeat of this account's person with the answer of an identifier; None where it is none of theirs.

    Raises:
        Superseded: it was changed before.
    """
    statement = (
        select(Repeat, RepeatAnswer)
        .join(RepeatAnswer, RepeatAnswer.repeat_id == Repeat.id)
        .join(Annotator, Annotator.id == Repeat.annotator_id)
        .where(RepeatAnswer.id == answer_id, Annotator.account_id == account_id)
        .with_for_update(of=Repeat)
    )
    row = session.execute(statement).first()
    if row is None:
        return None
    if chain_of(session, row[0].id)[-1].id != answer_id:
        raise Superseded("this label was revised or retracted before; change the newest one")
    return row[0], row[1]


def revise(
    session: Session, context: Context, principal: Principal, answer_id: uuid.UUID, body: RevisionIn
) -> tuple[int, SubmittedOut]:
    """Change an answer with a reason.

    Raises:
        NotFound: the caller has no such answer.
        Superseded: it was changed before.
        Invalid: an unknown class.
    """
    repeat, before = _own(session, answer_id, principal.account_id)
    at_hand = case_at_hand(session, repeat.case_id)
    require_classes(at_hand.classes, body)
    final = repeat.final_at is None or repeat.final_at <= context.clock()
    blind = before.blind and not (final and hidden_of_repeat(session, repeat) == "until-case-closed")
    answer = _Next(repeat, at_hand.case, before, "revision", blind, body.reason).store(session, body)
    return _conclude(session, context, principal, repeat, answer, "repeat.revise")


def _own(session: Session, answer_id: uuid.UUID, account_id: uuid.UUID) -> tuple[Repeat, RepeatAnswer]:
    own = newest_of(session, answer_id, account_id)
    if own is None:
        raise NotFound("there is no such label")
    return own


def retract(
    session: Session, context: Context, principal: Principal, answer_id: uuid.UUID, body: RetractionIn
) -> tuple[int, SubmittedOut]:
    """Take an answer back.

    Raises:
        NotFound: the caller has no such answer.
        Superseded: it was changed or retracted before.
    """
    repeat, before = _own(session, answer_id, principal.account_id)
    if before.kind == "retraction":
        raise Superseded("this label was retracted before")
    case = session.get_one(Case, repeat.case_id)
    answer = _Next(repeat, case, before, "retraction", before.blind, body.reason).store(session, None)
    return _conclude(session, context, principal, repeat, answer, "repeat.retract")


def correctable(
    session: Session, annotator_id: uuid.UUID, time: datetime
) -> list[tuple[uuid.UUID, list[RepeatAnswer]]]:
    """Reads of repeats whose answers an annotator may still correct, each with its chain."""
    statement = (
        select(RepeatRead.id, RepeatRead.request_id)
        .join(Repeat, Repeat.id == RepeatRead.request_id)
        .where(Repeat.annotator_id == annotator_id, Repeat.final_at > time, RepeatRead.state == "committed")
    )
    chains = [(read_id, chain_of(session, repeat_id)) for read_id, repeat_id in session.execute(statement)]
    return [(read_id, chain) for read_id, chain in chains if chain[-1].kind != "retraction"]
