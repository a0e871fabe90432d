"""Face of practice and qualification: sets, runs and answers."""

import uuid

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.accounts.service import add_annotator
from app.annotators.practice import runs
from app.annotators.practice.answers import (
    answer_item,
    begin_run,
    case_of_item,
    own_practice,
    result_out,
    show_item,
    show_run,
)
from app.annotators.practice.cells import (
    MOST_CANDIDATES,
    CellOutcomes,
    drop_later_twins,
    is_settled,
    list_practice_candidates,
    never_revealed_cases,
    slips_of_pool,
    with_twins,
)
from app.annotators.practice.runs import set_sentences
from app.annotators.practice.schemas import (
    DecisionIn,
    DecisionOut,
    PassRatesOut,
    PracticeAnswerIn,
    PracticeItemOut,
    PracticeSetIn,
    PracticeSetOut,
    PracticeSetsOut,
    QualifiedListOut,
    QualifiedOut,
    ResultOut,
    RunIn,
    SetReportOut,
)
from app.audit.chain import events
from app.context import ServiceContext
from app.database.tables import Account, Annotator, PracticeCell, PracticeRun, PracticeSet, Qualification
from app.http.errors import Conflict, NotFound
from app.http.principal import Principal
from app.releases.service import class_names
from app.triage.service import current_policy, eligibility_of
from ml.agreement.qualification import CLEAR_FROM, balanced_choice, pass_rates
from ml.messages import messages

(_TOO_FEW,) = messages(
    (
        (
            "too few cells for a run: {cells} completed cells have at least {min_labels} blinded "
            "labels, and {rows} of them match your settings"
        ),
    )
)


def list_sets(session: Session) -> PracticeSetsOut:
    """Every set with what was made of it, newest first."""
    rows = runs.all_sets(session)
    ids = [row.id for row in rows]
    cells, names = runs.count_cells(session, ids), class_names(session)
    by_set: dict[uuid.UUID, list[PracticeRun]] = {}
    for run in runs.runs_of_sets(session, ids):
        by_set.setdefault(run.set_id, []).append(run)
    return PracticeSetsOut(items=[_set_out(row, cells.get(row.id, 0), by_set.get(row.id, []), names) for row in rows])


def _set_out(row: PracticeSet, n_cells: int, of_set: list[PracticeRun], names: dict[str, str]) -> PracticeSetOut:
    report = SetReportOut.model_validate(row.report)
    return PracticeSetOut(
        id=str(row.id),
        name=row.name,
        purpose=row.purpose,
        n_cells=n_cells,
        n_per_run=row.n_per_run,
        min_labels=row.min_labels,
        borderline_share=row.borderline_share,
        created_at=row.created_at,
        retired_at=row.retired_at,
        n_runs=len(of_set),
        n_finished=sum(run.state == "finished" for run in of_set),
        n_passed=sum(bool(run.passed) for run in of_set),
        report=report,
        sentences=set_sentences(report.pass_rates, names),
    )


def add_set(
    session: Session, context: ServiceContext, principal: Principal, body: PracticeSetIn
) -> tuple[int, PracticeSetOut]:
    """Choose settled cells for a set; of a qualification set say who would pass."""
    if session.execute(select(PracticeSet.id).where(PracticeSet.name == body.name)).first() is not None:
        raise Conflict("a set with this name exists; choose another name")
    pool = list_practice_candidates(session, body.purpose, body.min_labels)
    rng = np.random.default_rng()
    rows = balanced_choice(pool.probs, body.n_cells, body.borderline_share, rng).tolist()
    chosen = pool.take(rows)
    qualification = body.purpose == "qualification"
    default = max(2, len(rows) // 2) if qualification else min(200, len(rows))
    n_per_run = body.n_per_run or min(200, default)
    if len(rows) < max(2, n_per_run):
        raise Conflict(_TOO_FEW, cells=len(pool.cells), min_labels=body.min_labels, rows=len(rows))
    report = _build_set_report(session, pool, chosen, n_per_run if qualification else None, rng)
    row = PracticeSet(
        name=body.name,
        purpose=body.purpose,
        n_per_run=n_per_run,
        min_labels=body.min_labels,
        borderline_share=body.borderline_share,
        report=report.model_dump(mode="json"),
        created_by=principal.account_id,
    )
    session.add(row)
    session.flush()
    session.add_all([PracticeCell(set_id=row.id, case_id=cell) for cell in chosen.cells])
    session.flush()
    details = {"name": row.name, "purpose": row.purpose, "n_cells": len(rows), "n_per_run": n_per_run}
    events.record_event(
        session,
        context.keys.audit,
        actor=principal.name,
        action="practice.set",
        object_id=row.id,
        details=details,
    )
    return 201, _set_out(row, len(rows), [], class_names(session))


def _build_set_report(
    session: Session, found: CellOutcomes, chosen: CellOutcomes, n_per_run: int | None, rng: np.random.Generator
) -> SetReportOut:
    leading = np.bincount(chosen.probs.argmax(axis=1), minlength=len(chosen.codes)).tolist()
    rates = None
    if n_per_run is not None:
        rows = rng.permutation(len(chosen.cells))[:n_per_run].tolist()
        of_run = chosen.take(rows)
        passing = pass_rates(of_run.probs, slips_of_pool(session, chosen))
        confusing = {
            code: rate
            for code, rate in zip(chosen.codes, passing.confusing.tolist(), strict=True)
            if not np.isnan(rate)
        }
        rates = PassRatesOut(like_the_others=passing.like_the_others, guessing=passing.guessing, confusing=confusing)
    return SetReportOut(
        n_candidates=len(found.cells),
        by_class={code: n for code, n in zip(chosen.codes, leading, strict=True) if n},
        n_borderline=int((chosen.probs.max(axis=1) < CLEAR_FROM).sum()),
        pass_rates=rates,
    )


def retire_set(session: Session, context: ServiceContext, principal: Principal, set_id: uuid.UUID) -> PracticeSetOut:
    """Let nobody begin a run of a set any more; runs that are open may end."""
    row = runs.set_of(session, set_id)
    if row.retired_at is None:
        row.retired_at = context.clock()
        session.flush()
        events.record_event(
            session, context.keys.audit, actor=principal.name, action="practice.retire", object_id=row.id
        )
    n_cells = runs.count_cells(session, [row.id]).get(row.id, 0)
    return _set_out(row, n_cells, runs.runs_of_sets(session, [row.id]), class_names(session))


def list_qualified(session: Session) -> QualifiedListOut:
    """List annotators with accounts, their eligibility and its reason."""
    policy = current_policy(session)
    statement = (
        select(Account, Annotator)
        .outerjoin(Annotator, Annotator.account_id == Account.id)
        .where(Account.role == "annotator")
        .order_by(Account.name)
    )
    by = _account_names(session)
    items = [_qualified_out(session, row[0].name, row[1], by) for row in session.execute(statement)]
    return QualifiedListOut(required=policy.require_qualification, items=items)


def _account_names(session: Session) -> dict[uuid.UUID, str]:
    return {row[0]: row[1] for row in session.execute(select(Account.id, Account.name))}


def _qualified_out(session: Session, name: str, annotator: Annotator | None, by: dict[uuid.UUID, str]) -> QualifiedOut:
    standing = eligibility_of(session, annotator)
    decisions = [] if annotator is None else runs.decisions_on(session, annotator.id)
    own = [] if annotator is None else runs.runs_of(session, annotator.id)
    results: list[ResultOut | None] = [result_out(run) for run, _ in own]
    decision_items = [
        DecisionOut(
            kind=decision.kind,
            at=decision.created_at,
            by=None if decision.created_by is None else by.get(decision.created_by),
            reason=decision.reason,
        )
        for decision in decisions
    ]
    return QualifiedOut(
        annotator=name,
        may_read=standing.may_read,
        because=standing.because,
        decisions=decision_items,
        attempts=[result for result in results if result is not None],
    )


def add_qualification_decision(
    session: Session, context: ServiceContext, principal: Principal, name: str, body: DecisionIn
) -> tuple[int, QualifiedOut]:
    """Qualify an annotator by hand, withdraw it, or allow further attempts; with a reason, in the audit."""
    named = select(Account).where(Account.name == name, Account.role == "annotator")
    account = session.execute(named).scalar_one_or_none()
    if account is None:
        raise NotFound("there is no such annotator")
    existing = session.execute(select(Annotator).where(Annotator.account_id == account.id)).scalar_one_or_none()
    annotator = existing or add_annotator(session, account.name, account.id)
    session.execute(select(Annotator).where(Annotator.id == annotator.id).with_for_update())
    reason = body.reason.strip()
    row = Qualification(annotator_id=annotator.id, kind=body.kind, created_by=principal.account_id, reason=reason)
    session.add(row)
    session.flush()
    events.record_event(
        session,
        context.keys.audit,
        actor=principal.name,
        action=f"annotator.{body.kind}",
        object_id=annotator.id,
        details={"annotator": name},
        reason=reason,
    )
    return 201, _qualified_out(session, account.name, annotator, _account_names(session))
