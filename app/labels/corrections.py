"""Correct answers blind within the correction window, and finalise labels after it."""

import uuid
from dataclasses import dataclass

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from app.accounts.service import annotator_of_account
from app.audit.chain import events
from app.cases.service import NamedLabel, hidden_before_final, is_window_over, label_history, was_exposed
from app.context import ServiceContext
from app.database.tables import Annotator, Case, Label, ProvisionalLabel, RepeatRead, time_of
from app.http.principal import Principal
from app.labels import queries, repeat_answers
from app.labels.adjudication import AdjudicationInput, adjudicate_if_undecided, opinions_of
from app.labels.errors import LabelFinal, LabelSuperseded
from app.labels.label_rows import head_of_chain, label_out, next_chain_position, record_label_event, store_label
from app.labels.locked_context import lock_case_context
from app.labels.posterior import posterior_of
from app.labels.schemas import OwnLabelIn, SubmittedOut
from app.labels.submission import require_classes

_BATCH = 100


def correct_answer(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    read_id: uuid.UUID,
    body: OwnLabelIn,
    position: int | None = None,
) -> tuple[int, SubmittedOut]:
    """Replace one's own answer by another one, still blind; both are kept."""
    read, annotator = queries.own_read(session, principal.account_id, read_id)
    if isinstance(read, RepeatRead):
        return repeat_answers.correct_repeat_answer(session, context, principal, read, body, position)
    at_hand = lock_case_context(session, read.case_id)
    require_classes(at_hand.classes, body)
    history = label_history(session, read.case_id)
    before = head_of_chain(history, annotator)
    if before is None or not _may_correct(session, annotator, before):
        raise LabelFinal("this answer is final; change it on the page of its case, with a reason")
    if position not in {None, before.position}:
        raise LabelSuperseded("this answer was corrected before; correct the newest one")
    label = store_label(
        session,
        next_chain_position(at_hand.case, annotator, before, "correction"),
        body,
        blind=before.blind,
        round=before.round,
        late=before.late,
        created_by=principal.account_id,
    )
    record_label_event(session, context, principal, label, "label.correct")
    hidden = hidden_before_final(session, queries.requests_of_case(session, read.case_id))
    return 201, SubmittedOut(label=label_out(NamedLabel(label, annotator.name)), posterior=None, hidden_because=hidden)


def correct_answer_once(
    session: Session, context: ServiceContext, principal: Principal, read_id: uuid.UUID, position: int, body: OwnLabelIn
) -> None:
    """Correct an answer by a form that a browser may send twice; the same class alone changes nothing."""
    # Only the class must be the same, since a browser keeps nothing else through a reload.
    read, annotator = queries.own_read(session, principal.account_id, read_id)
    if isinstance(read, RepeatRead):
        if not repeat_answers.is_corrected(session, read, position, body):
            repeat_answers.correct_repeat_answer(session, context, principal, read, body, position)
        return
    lock_case_context(session, read.case_id)  # locked
    rows = [row.label for row in label_history(session, read.case_id) if row.label.annotator_id == annotator.id]
    chain = {label.position: label for label in rows}
    unchanged = max(chain, default=None) == position and body.says_only(chain[position].class_code)
    after = chain.get(position + 1)
    stored = after is not None and (after.kind, after.class_code) == ("correction", body.label)
    if not unchanged and not stored:
        correct_answer(session, context, principal, read_id, body, position)


def _may_correct(session: Session, annotator: Annotator, head: Label) -> bool:
    """Whether an annotator's chain is open, whichever of their reads of the case it ended: a lease may be renewed."""
    chain = (ProvisionalLabel.case_id == head.case_id, ProvisionalLabel.annotator_id == annotator.id)
    statement = select(ProvisionalLabel.label_id).where(*chain, ~is_window_over(time_of(session)))
    in_time = head.kind != "retraction" and session.execute(statement).first() is not None
    return in_time and not was_exposed(session, annotator.id, head.case_id)


@dataclass(frozen=True)
class CorrectableAnswer:
    """An answer that may still be corrected."""

    # the read that it ended
    read_id: uuid.UUID
    # what the annotator's handle of the case is made from
    named: uuid.UUID
    # of the newest answer, in its chain
    position: int
    class_code: str | None
    # identifier of the first answer, which sorts by its time
    first: uuid.UUID


def list_correctable_answers(session: Session, principal: Principal) -> list[CorrectableAnswer]:
    """Answers that the caller may correct, the newest first."""
    annotator = annotator_of_account(session, principal.account_id)
    if annotator is None:
        return []
    time = time_of(session)
    statement = select(ProvisionalLabel.read_id, ProvisionalLabel.case_id, ProvisionalLabel.label_id).where(
        ProvisionalLabel.annotator_id == annotator.id, ~is_window_over(time)
    )
    reads = session.execute(statement).all()
    of_cases = (Label.annotator_id == annotator.id, Label.case_id.in_([row.case_id for row in reads]))
    newest: dict[uuid.UUID, Label] = {}
    for label in session.execute(select(Label).where(*of_cases).order_by(Label.position)).scalars() if reads else ():
        newest[label.case_id] = label
    answers = [
        CorrectableAnswer(row.read_id, row.case_id, label.position, label.class_code, row.label_id)
        for row in reads
        if (label := newest[row.case_id]).kind != "retraction"
    ]
    for read_id, chain in repeat_answers.list_correctable_repeats(session, annotator.id, time):
        last = chain[-1]
        answers.append(CorrectableAnswer(read_id, last.repeat_id, last.position, last.class_code, chain[0].id))
    return sorted(answers, key=lambda answer: answer.first, reverse=True)


def finalize_labels(context: ServiceContext) -> int:
    """Finalise labels whose correction window is over, and act on them."""
    done = 0
    while count := _finalize_batch(context):
        done += count
    return done


def _finalize_batch(context: ServiceContext) -> int:
    """A transaction's worth of them; cases that a request is labelling come next time."""
    over = is_window_over(context.clock())
    with context.database.write() as session:
        # cases before rows of labels, like requests that answer
        with_some = select(ProvisionalLabel.case_id).where(over).order_by(ProvisionalLabel.final_at).limit(_BATCH)
        free = select(Case.id).where(Case.id.in_(with_some)).order_by(Case.id).with_for_update(skip_locked=True)
        case_ids = list(session.execute(free).scalars())
        final = delete(ProvisionalLabel).where(ProvisionalLabel.case_id.in_(case_ids), over)
        gone = final.returning(ProvisionalLabel.label_id)
        labels = list(session.execute(gone).scalars()) if case_ids else []
        if not labels:
            return 0
        open_cases = set(session.execute(_cases_of_provisional(case_ids)).scalars())
        for case_id in case_ids:
            if case_id not in open_cases:
                _adjudicate_final_case(session, case_id)
        events.record_event(
            session,
            context.keys.audit,
            actor="worker",
            action="label.final",
            object_id="labels",
            details={"labels": sorted(str(label_id) for label_id in labels)},
            cases=case_ids,
        )
        return len(labels)


def _cases_of_provisional(case_ids: list[uuid.UUID]) -> Select[uuid.UUID]:
    return select(ProvisionalLabel.case_id).where(ProvisionalLabel.case_id.in_(case_ids))


def _adjudicate_final_case(session: Session, case_id: uuid.UUID) -> None:
    """Request an adjudication when all labels of a case are final and leave it undecided."""
    at_hand = lock_case_context(session, case_id)
    if at_hand.case.erased_at is None:
        opinions = opinions_of(session, case_id)
        posterior = posterior_of(session, at_hand.prediction, at_hand.classes, opinions, in_use=at_hand.reader_model)
        labelled = AdjudicationInput(opinions, queries.requests_of_case(session, case_id))
        adjudicate_if_undecided(session, at_hand, posterior, labelled, unsettled=False)
