"""Answers and feedback in practice runs and qualification attempts."""

import uuid
from collections.abc import Mapping
from datetime import timedelta

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.accounts.service import account_sees_more, annotator_of_account, read_own_annotator
from app.annotators.practice import runs, schemas
from app.annotators.practice.cells import cells_for, outcomes_of, slips_of_pool
from app.annotators.practice.runs import attempts_of, decisions_on, feedback_sentences, result_sentences
from app.audit.chain import events
from app.cases import service as case_service
from app.context import ServiceContext
from app.database.tables import (
    Annotator,
    PracticeAnswer,
    PracticeItem,
    PracticeRun,
    PracticeSet,
    Qualification,
    ReadRequest,
    time_of,
)
from app.http.errors import Conflict, Forbidden, InvalidValue, NotFound
from app.http.principal import Principal
from app.labels.service import AlreadyLabelled, show_case_posterior
from app.releases.service import class_names, reading_classes
from app.triage.service import eligibility_of
from ml.agreement.qualification import balanced_choice, judge_answers
from ml.messages import Message

#: Attempts until an admin renews them.
ATTEMPTS = 2
#: Time between the end of one and the beginning of the next.
WAIT = timedelta(days=14)


def get_refusal_reason(session: Session, annotator: Annotator) -> str | None:
    """Return why an annotator cannot begin a qualification now; None where they can."""
    decisions = decisions_on(session, annotator.id)
    newest = decisions[0].kind if decisions else None
    if newest in {"passed", "qualified"}:
        return "you are qualified"
    if newest == "withdrawn":
        return "an admin has withdrawn your qualification; only an admin can let you try again"
    if eligibility_of(session, annotator).because == "earlier-labels":
        return "you are qualified by the labels that you gave before a qualification was asked for"
    since = decisions[0].created_at if newest == "renewed" else None
    attempts = attempts_of(session, annotator.id)
    if any(run.state == "open" for run in attempts):
        return "finish the qualification that you have begun first"
    counted = [run for run in attempts if since is None or run.created_at > since]
    if len(counted) >= ATTEMPTS:
        return f"{ATTEMPTS} attempts are over; ask an admin for further ones"
    ends = [run.finished_at + WAIT for run in counted if run.finished_at is not None]
    if ends and max(ends) > time_of(session):
        return f"the next attempt is possible from {max(ends):%Y-%m-%d %H:%M} UTC on"
    return None


_CLOSED = Message("Other answers are hidden because this cell is being read again or the policy keeps it closed.")


def feedback_on(session: Session, item: PracticeItem, label: str) -> schemas.FeedbackOut:
    """Return the others' answers to a cell, as far as the policy reveals them."""
    if not may_be_shown(session, item):
        return schemas.FeedbackOut(label=label, label_counts=None, class_probs=None, sentences=[_CLOSED])
    after = show_case_posterior(session, item.case_id)
    return schemas.FeedbackOut(
        label=label,
        label_counts=after.label_counts,
        class_probs=after.class_probs,
        sentences=feedback_sentences(label, after.label_counts, after.class_probs, class_names(session)),
    )


def may_be_shown(session: Session, item: PracticeItem) -> bool:
    """Whether the policy shows a cell to annotators, and nobody is to read it."""
    requests = session.execute(select(ReadRequest).where(ReadRequest.case_id == item.case_id)).scalars().all()
    unsettled = case_service.has_provisional_label(session, item.case_id)
    has_open_request = any(request.state in {"open", "leased"} for request in requests)
    return not has_open_request and case_service.hidden_after_commit(session, requests, unsettled=unsettled) is None


def record_feedback_exposure(session: Session, item: PracticeItem) -> None:
    """Record in a writing session that a cell is shown to an annotator in full."""
    if may_be_shown(session, item):
        newest = max(row.label.id for row in case_service.label_history(session, item.case_id))
        release_id = case_service.latest_prediction(session, item.case_id).release_id
        case_service.record_exposure(session, item.annotator_id, item.case_id, release_id, newest)


_Details = Mapping[str, str | int | bool | None]
_RESULT = tuple(name for name in schemas.ResultOut.model_fields if name != "sentences")


def own_practice(session: Session, principal: Principal) -> schemas.OwnPracticeOut:
    """Return the caller's eligibility, the sets open to them, and their runs."""
    annotator = annotator_of_account(session, principal.account_id)
    standing = eligibility_of(session, annotator)
    own = [] if annotator is None else runs.runs_of(session, annotator.id)
    under_way = {chosen.id: run for run, chosen in own if run.state == "open"}
    no_test = None if annotator is None else get_refusal_reason(session, annotator)
    sets = [
        schemas.OwnSetOut(
            id=str(chosen.id),
            name=chosen.name,
            purpose=chosen.purpose,
            n_per_run=chosen.n_per_run,
            run=str(under_way[chosen.id].id) if chosen.id in under_way else None,
            not_now=no_test if chosen.purpose == "qualification" and chosen.id not in under_way else None,
        )
        for chosen in runs.all_sets(session)
        if chosen.retired_at is None or chosen.id in under_way
    ]
    counts = runs.count_items(session, [run.id for run, _ in own])
    run_items = [run_out(session, run, chosen, counts.get(run.id)) for run, chosen in own]
    return schemas.OwnPracticeOut(
        required=standing.required, may_read=standing.may_read, because=standing.because, sets=sets, runs=run_items
    )


def run_out(
    session: Session, run: PracticeRun, chosen: PracticeSet, counted: tuple[int, int] | None = None
) -> schemas.RunOut:
    """A run as its annotator sees it."""
    n_cells, n_answered = counted or runs.count_items(session, [run.id]).get(run.id, (0, 0))
    item = runs.next_item(session, run.id) if run.state == "open" else None
    return schemas.RunOut(
        id=str(run.id),
        set=chosen.name,
        purpose=chosen.purpose,
        state=run.state,
        n_cells=n_cells,
        n_answered=n_answered,
        begun_at=run.created_at,
        finished_at=run.finished_at,
        item=None if item is None else item_out(session, item),
        result=result_out(run),
    )


def item_out(session: Session, item: PracticeItem) -> schemas.ItemOut:
    """A cell of a run as its annotator sees it."""
    image = f"/v1/practice/items/{item.id}/image"
    return schemas.ItemOut(id=str(item.id), image=image, position=item.position, classes=reading_classes(session))


def result_out(run: PracticeRun) -> schemas.ResultOut | None:
    """Return the result of a qualification; None where there is none."""
    if run.result is None:
        return None
    result = schemas.ResultOut(**{name: run.result[name] for name in _RESULT}, sentences=[])
    return result.model_copy(update={"sentences": result_sentences(result)})


def show_run(session: Session, principal: Principal, run_id: uuid.UUID) -> schemas.RunOut:
    """One of the caller's own runs."""
    return run_out(session, *runs.own_run(session, principal.account_id, run_id))


def begin_run(
    session: Session, context: ServiceContext, principal: Principal, body: schemas.RunIn
) -> tuple[int, schemas.RunOut]:
    """Begin a run of a set, or go on with the one that is open."""
    # From now on no read of its cells, or of their twins, goes to this annotator.
    if account_sees_more(session, principal.account_id):
        raise Forbidden(
            "training is only for accounts that read blinded; the role or keys of this account show more than pixels"
        )
    chosen = runs.set_of(session, body.set)
    annotator = _lock_annotator(session, read_own_annotator(session, principal))
    own_runs = select(PracticeRun).where(PracticeRun.set_id == chosen.id, PracticeRun.annotator_id == annotator.id)
    run = session.execute(own_runs.where(PracticeRun.state == "open")).scalar_one_or_none()
    if run is not None:
        if runs.next_item(session, run.id) is None:  # the rest of its cells was erased
            _finish_run(session, context, principal, run, chosen)
        return 201, run_out(session, run, chosen)
    if chosen.retired_at is not None:
        raise Conflict("this set is retired; choose another one")
    no_test = get_refusal_reason(session, annotator) if chosen.purpose == "qualification" else None
    if no_test is not None:
        raise Conflict(no_test)
    return 201, run_out(session, _create_run(session, context, principal, chosen, annotator), chosen)


def _lock_annotator(session: Session, annotator: Annotator) -> Annotator:
    """Lock the annotator's row; serialises one person's leases and runs."""
    return session.execute(select(Annotator).where(Annotator.id == annotator.id).with_for_update()).scalar_one()


def _create_run(
    session: Session, context: ServiceContext, principal: Principal, chosen: PracticeSet, annotator: Annotator
) -> PracticeRun:
    outcomes = cells_for(session, chosen, annotator.id)
    if len(outcomes.cells) < (chosen.n_per_run if chosen.purpose == "qualification" else 1):
        raise Conflict("you have already seen most cells of this set; ask an admin for another one")
    rng = np.random.default_rng()
    rows = balanced_choice(outcomes.probs, chosen.n_per_run, chosen.borderline_share, rng).tolist()
    if len(rows) < chosen.n_per_run:  # fewer borderline or clear ones are left than the set was made with
        others = sorted(set(range(len(outcomes.cells))) - set(rows))
        rows += rng.permutation(others).tolist()[: chosen.n_per_run - len(rows)]
    run = PracticeRun(set_id=chosen.id, annotator_id=annotator.id)
    session.add(run)
    session.flush()
    for position, row in enumerate(rows):
        case_id = outcomes.cells[row]
        session.add(PracticeItem(run_id=run.id, annotator_id=annotator.id, case_id=case_id, position=position))
    session.flush()
    details: _Details = {"set": str(chosen.id), "annotator": str(annotator.id), "n_cells": len(rows)}
    _record_practice_event(session, context, principal, "practice.begin", run.id, details)
    return run


def _record_practice_event(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    action: str,
    object_id: uuid.UUID,
    details: _Details,
) -> None:
    """Append an event that names no case: nothing that is evaluated changes."""
    events.record_event(
        session, context.keys.audit, actor=principal.name, action=action, object_id=object_id, details={**details}
    )


def answer_item(
    session: Session, context: ServiceContext, principal: Principal, item_id: uuid.UUID, body: schemas.PracticeAnswerIn
) -> tuple[int, schemas.AnsweredOut]:
    """Answer the next cell of a run; training returns the answers of others, a qualification nothing until its end."""
    own = runs.own_item(session, principal.account_id, item_id)
    _lock_annotator(session, own.annotator)
    session.refresh(own.run)
    codes = [info.code for info in reading_classes(session)]
    if body.label not in codes:
        raise InvalidValue("unknown class; the classes are {codes}", codes=", ".join(codes))
    given = runs.answer_of(session, item_id)
    if given is not None and given.class_code != body.label:
        raise AlreadyLabelled("you have given this cell another class; the first answer counts")
    if given is None:
        _store_practice_answer(session, context, principal, own, body.label)
    training = own.chosen.purpose == "training"
    return 201, schemas.AnsweredOut(
        item=str(item_id),
        label=body.label,
        feedback=feedback_on(session, own.item, body.label) if training else None,
        run=run_out(session, own.run, own.chosen),
    )


def _store_practice_answer(
    session: Session, context: ServiceContext, principal: Principal, own: runs.OwnItem, label: str
) -> None:
    following = runs.next_item(session, own.run.id)
    if following is None or following.id != own.item.id:
        raise NotFound("there is no such cell of a run")
    session.add(PracticeAnswer(item_id=own.item.id, class_code=label))
    session.flush()
    if own.chosen.purpose == "training":
        record_feedback_exposure(session, own.item)
    _record_practice_event(
        session, context, principal, "practice.answer", own.item.id, {"run": str(own.run.id), "answer": label}
    )
    if runs.next_item(session, own.run.id) is None:
        _finish_run(session, context, principal, own.run, own.chosen)


def _finish_run(
    session: Session, context: ServiceContext, principal: Principal, run: PracticeRun, chosen: PracticeSet
) -> None:
    """End a run; of a qualification, with its result, and with the decision where it is passed."""
    run.state, run.finished_at = "finished", context.clock()
    if chosen.purpose == "qualification":
        _judge_qualification(session, run)
    session.flush()
    if run.passed:
        session.add(Qualification(annotator_id=run.annotator_id, kind="passed", run_id=run.id))
        session.flush()
    details = {"set": str(chosen.id), "annotator": str(run.annotator_id), "passed": run.passed}
    _record_practice_event(session, context, principal, "practice.finish", run.id, details)


def _judge_qualification(session: Session, run: PracticeRun) -> None:
    """Compare the answers of a qualification with the outcomes of its cells."""
    given = runs.answers_of_run(session, run.id)
    outcomes = outcomes_of(session, list(given))
    if len(outcomes.cells) < 2:
        return
    answers = np.array([outcomes.codes.index(given[cell]) for cell in outcomes.cells], dtype=np.int64)
    verdict = judge_answers(outcomes.probs, answers, slips_of_pool(session, outcomes))
    run.result = {name: getattr(verdict, name) for name in _RESULT}
    run.passed = verdict.passed


def show_item(session: Session, principal: Principal, item_id: uuid.UUID) -> schemas.PracticeItemOut:
    """A cell of one of the caller's runs: the next one, and in training those that they have answered."""
    own, given = _get_visible_item(session, principal, item_id)
    return schemas.PracticeItemOut(
        item=item_out(session, own.item),
        label=None if given is None else given.class_code,
        feedback=None if given is None else feedback_on(session, own.item, given.class_code),
        run=str(own.run.id),
    )


def _get_visible_item(
    session: Session, principal: Principal, item_id: uuid.UUID
) -> tuple[runs.OwnItem, PracticeAnswer | None]:
    own, given = runs.own_item(session, principal.account_id, item_id), runs.answer_of(session, item_id)
    following = runs.next_item(session, own.run.id) if own.run.state == "open" else None
    reviewed = given is not None and own.chosen.purpose == "training"
    if not reviewed and (following is None or following.id != item_id):
        raise NotFound("there is no such cell of a run")
    return own, given


def case_of_item(session: Session, principal: Principal, item_id: uuid.UUID) -> uuid.UUID:
    """The case of a cell that the caller may look at."""
    return _get_visible_item(session, principal, item_id)[0].item.case_id


def case_of_own_item(session: Session, principal: Principal, item_id: uuid.UUID) -> uuid.UUID:
    """The case of a cell of one of the caller's runs, by which remembered answers about it are found."""
    return runs.own_item(session, principal.account_id, item_id).item.case_id
