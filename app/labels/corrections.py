"""Correct answers blind within the correction window, and finalise labels after it."""

import uuid
from dataclasses import dataclass

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from app.accounts.service import annotator_of_account
from app.audit.chain import events
from app.cases.service import NamedLabel, hidden_before_final, hidden_of_repeat, is_window_over, was_exposed
from app.context import ServiceContext
from app.database.tables import Annotator, Case, Label, ProvisionalLabel, Read, Repeat, time_of
from app.http.principal import Principal
from app.labels import queries
from app.labels.leases import LabelFinal, LabelSuperseded, lock_case_context
from app.labels.posterior import AdjudicationInput, adjudicate_if_undecided, opinions_of, posterior_of
from app.labels.schemas import OwnLabelIn, SubmittedOut
from app.labels.submission import label_out, next_chain_position, record_label_event, require_classes, store_label

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
    at_hand = lock_case_context(session, read.case_id)
    require_classes(at_hand.classes, body)
    chain = queries.own_chain(session, read)
    before = chain[-1] if chain else None
    if before is None or not _may_correct(session, annotator, before):
        raise LabelFinal("this answer is final; change it on the page of its cell and give a reason")
    if position not in {None, before.position}:
        raise LabelSuperseded("this answer has been corrected; correct the newest one")
    label = store_label(
        session,
        next_chain_position(at_hand.case, annotator, before, "correction"),
        body,
        blind=before.blind,
        round=before.round,
        late=before.late,
        created_by=principal.account_id,
    )
    record_label_event(session, context, principal, label, "correct")
    repeat = None if read.repeat_id is None else session.get_one(Repeat, read.repeat_id)
    if repeat is None:
        hidden = hidden_before_final(session, queries.requests_of_case(session, read.case_id), at_hand.policy)
    else:
        hidden = hidden_of_repeat(session, repeat, at_hand.policy)
    answer = label_out(NamedLabel(label, annotator.name), repeat)
    return 201, SubmittedOut(label=answer, posterior=None, hidden_because=hidden)


def correct_answer_once(
    session: Session, context: ServiceContext, principal: Principal, read_id: uuid.UUID, position: int, body: OwnLabelIn
) -> None:
    """Correct an answer by a form that a browser may send twice; the same class alone changes nothing."""
    # Only the class must be the same, since a browser keeps nothing else through a reload.
    read, _ = queries.own_read(session, principal.account_id, read_id)
    lock_case_context(session, read.case_id)  # locked
    chain = {label.position: label for label in queries.own_chain(session, read)}
    unchanged = max(chain, default=None) == position and body.says_only(chain[position].class_code)
    after = chain.get(position + 1)
    stored = after is not None and (after.kind, after.class_code) == ("correction", body.label)
    if not unchanged and not stored:
        correct_answer(session, context, principal, read_id, body, position)


def _may_correct(session: Session, annotator: Annotator, head: Label) -> bool:
    """Whether an annotator's chain is open, whichever of their reads of the case it ended: a lease may be renewed."""
    chain = (ProvisionalLabel.case_id == head.case_id, ProvisionalLabel.annotator_id == annotator.id)
    for_purpose = ProvisionalLabel.purpose == head.purpose
    statement = select(ProvisionalLabel.label_id).where(*chain, for_purpose, ~is_window_over(time_of(session)))
    in_time = head.kind != "retraction" and session.execute(statement).first() is not None
    return in_time and not was_exposed(session, annotator.id, head.case_id)


@dataclass(frozen=True)
class CorrectableAnswer:
    """An answer that may still be corrected."""

    # the read that it ended
    read_id: uuid.UUID
    case_id: uuid.UUID
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
    statement = (
        select(Read, ProvisionalLabel.label_id)
        .join(ProvisionalLabel, ProvisionalLabel.read_id == Read.id)
        .where(ProvisionalLabel.annotator_id == annotator.id, ~is_window_over(time_of(session)))
    )
    reads = session.execute(statement).all()
    of_cases = (Label.annotator_id == annotator.id, Label.case_id.in_([read.case_id for read, _ in reads]))
    newest: dict[tuple[uuid.UUID, str], Label] = {}
    for label in session.execute(select(Label).where(*of_cases).order_by(Label.position)).scalars() if reads else ():
        newest[label.case_id, label.purpose] = label
    answers = [
        CorrectableAnswer(read.id, read.case_id, read.named, label.position, label.class_code, first_id)
        for read, first_id in reads
        if (label := newest[read.case_id, read.purpose]).kind != "retraction"
    ]
    return sorted(answers, key=lambda answer: answer.first, reverse=True)


def finalize_labels(context: ServiceContext) -> int:
    """Finalise labels whose correction window is over, and act on those that count; the number of these."""
    done = 0
    while purposes := _finalize_batch(context):
        done += purposes.count("read")
    return done


def _finalize_batch(context: ServiceContext) -> list[str]:
    """Purposes of a transaction's worth of them; cases that a request is labelling come next time."""
    over = is_window_over(context.clock())
    with context.database.write() as session:
        # cases before rows of labels, like requests that answer
        with_some = select(ProvisionalLabel.case_id).where(over).order_by(ProvisionalLabel.final_at).limit(_BATCH)
        free = select(Case.id).where(Case.id.in_(with_some)).order_by(Case.id).with_for_update(skip_locked=True)
        case_ids = list(session.execute(free).scalars())
        final = delete(ProvisionalLabel).where(ProvisionalLabel.case_id.in_(case_ids), over)
        gone = session.execute(final.returning(*_GONE)).all() if case_ids else []
        if not gone:
            return []
        counted_cases = {row.case_id for row in gone if row.purpose == "read"}
        open_cases = set(session.execute(_cases_of_provisional(case_ids)).scalars())
        for case_id in case_ids:
            if case_id in counted_cases - open_cases:
                at_hand = lock_case_context(session, case_id)
                if at_hand.case.erased_at is None:
                    opinions = opinions_of(session, case_id)
                    posterior = posterior_of(
                        session, at_hand.prediction, at_hand.classes, opinions, in_use=at_hand.reader_model
                    )
                    labelled = AdjudicationInput(opinions, queries.requests_of_case(session, case_id))
                    adjudicate_if_undecided(session, at_hand, posterior, labelled, unsettled=False)
        for purpose, action in (("read", "label.final"), ("repeat", "repeat.final")):
            rows = [row for row in gone if row.purpose == purpose]
            if rows:
                events.record_event(
                    session,
                    context.keys.audit,
                    actor="worker",
                    action=action,
                    object_id="labels",
                    details={"labels": sorted(str(row.label_id) for row in rows)},
                    cases=sorted({row.case_id for row in rows}),
                )
        return [row.purpose for row in gone]


_GONE = (ProvisionalLabel.label_id, ProvisionalLabel.case_id, ProvisionalLabel.purpose)


def _cases_of_provisional(case_ids: list[uuid.UUID]) -> Select[uuid.UUID]:
    of_cases = (ProvisionalLabel.case_id.in_(case_ids), ProvisionalLabel.purpose == "read")
    return select(ProvisionalLabel.case_id).where(*of_cases)
