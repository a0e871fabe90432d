"""Answers to hidden repeats: stored as such, and shown to their annotator like labels.

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
from app.cases.service import CORRECTION_TIME, advance_other_windows, hidden_of_repeat, was_exposed, was_exposed_to
from app.context import ServiceContext
from app.database.tables import Annotator, Case, Remark, Repeat, RepeatAnswer, RepeatRead, time_of
from app.http.errors import NotFound
from app.http.principal import Principal
from app.labels.errors import LabelFinal, LabelSuperseded
from app.labels.locked_context import LockedCase, LockedLease, load_case_history, lock_case_context
from app.labels.queries import AnyRead
from app.labels.schemas import LabelOut, OwnLabelIn, RetractionIn, RevisionIn, SubmittedOut
from app.labels.submission import require_classes


def store_first_answer(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    lease: LockedLease,
    repeat: Repeat,
    known: LockedCase,
    body: OwnLabelIn,
) -> tuple[int, SubmittedOut]:
    """End a repeat by its first answer."""
    require_classes(known.classes, body)
    read = lease.read
    seconds = _seconds_until(time_of(session), read)
    answer = _NextAnswer(repeat, known.case, None, reading_seconds=seconds).store(session, body)
    change_row(
        session,
        repeat,
        state="answered",
        closed_at=answer.created_at,
        lease_expires_at=None,
        final_at=answer.created_at + CORRECTION_TIME,
    )
    change_row(session, read, state="committed", ended_at=answer.created_at)
    if load_case_history(session, repeat.case_id, lease.annotator.id).leaves_others:
        advance_other_windows(session, lease.annotator.id, repeat.case_id)
    return _complete_answer(session, context, principal, repeat, answer, "repeat.answer")


def _seconds_until(at: datetime, read: AnyRead) -> float:
    return (at - (read.displayed_at or read.created_at)).total_seconds()


@dataclass(frozen=True)
class _NextAnswer:
    """Next answer in the chain of a repeat."""

    repeat: Repeat
    # of the repeat, locked
    case: Case
    # the last answer; None where there is none
    before: RepeatAnswer | None
    kind: str = "label"
    # as the annotator is told
    blind: bool = True
    # why the last one is changed or taken back
    reason: str | None = None
    # of the first one
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


def _complete_answer(
    session: Session, context: ServiceContext, principal: Principal, repeat: Repeat, answer: RepeatAnswer, action: str
) -> tuple[int, SubmittedOut]:
    """Record the audit event and build the response."""
    details = {"case": str(answer.case_id), "annotator": str(repeat.annotator_id), "label": answer.class_code}
    events.record_event(
        session,
        context.keys.audit,
        actor=principal.name,
        action=action,
        object_id=answer.id,
        details=details,
        cases=[answer.case_id],  # nothing of it changes; remembered answers are found by it when a patient is erased
    )
    label_response = answer_out(session, principal, answer)
    return 201, SubmittedOut(label=label_response, posterior=None, hidden_because=hidden_of_repeat(session, repeat))


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


def correct_repeat_answer(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    read: RepeatRead,
    body: OwnLabelIn,
    position: int | None = None,
) -> tuple[int, SubmittedOut]:
    """Replace one's own answer by another one."""
    repeat = session.get_one(Repeat, read.request_id, with_for_update=True)  # before the case, as answers do
    at_hand = lock_case_context(session, read.case_id)
    require_classes(at_hand.classes, body)
    chain = chain_of(session, repeat.id)
    before = chain[-1] if chain else None
    if before is None or before.kind == "retraction" or not _in_time(session, repeat):
        raise LabelFinal("this answer is final; change it on the page of its case, with a reason")
    if position not in {None, before.position}:
        raise LabelSuperseded("this answer was corrected before; correct the newest one")
    answer = _NextAnswer(repeat, at_hand.case, before, "correction").store(session, body)
    return _complete_answer(session, context, principal, repeat, answer, "repeat.correct")


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
    """A repeat of this account's person with the answer of an identifier; None where it is none of theirs."""
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
        raise LabelSuperseded("this label was revised or retracted before; change the newest one")
    return row[0], row[1]


def revise_repeat_answer(
    session: Session, context: ServiceContext, principal: Principal, answer_id: uuid.UUID, body: RevisionIn
) -> tuple[int, SubmittedOut]:
    """Change an answer with a reason."""
    repeat, before = _require_own_answer(session, answer_id, principal.account_id)
    at_hand = lock_case_context(session, repeat.case_id)
    require_classes(at_hand.classes, body)
    final = repeat.final_at is None or repeat.final_at <= context.clock()
    blind = before.blind and not (final and hidden_of_repeat(session, repeat) == "until-case-closed")
    answer = _NextAnswer(repeat, at_hand.case, before, "revision", blind, body.reason).store(session, body)
    return _complete_answer(session, context, principal, repeat, answer, "repeat.revise")


def _require_own_answer(session: Session, answer_id: uuid.UUID, account_id: uuid.UUID) -> tuple[Repeat, RepeatAnswer]:
    own = newest_of(session, answer_id, account_id)
    if own is None:
        raise NotFound("there is no such label")
    return own


def retract_repeat_answer(
    session: Session, context: ServiceContext, principal: Principal, answer_id: uuid.UUID, body: RetractionIn
) -> tuple[int, SubmittedOut]:
    """Take an answer back."""
    repeat, before = _require_own_answer(session, answer_id, principal.account_id)
    if before.kind == "retraction":
        raise LabelSuperseded("this label was retracted before")
    case = session.get_one(Case, repeat.case_id)
    answer = _NextAnswer(repeat, case, before, "retraction", before.blind, body.reason).store(session, None)
    return _complete_answer(session, context, principal, repeat, answer, "repeat.retract")


def list_correctable_repeats(
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
