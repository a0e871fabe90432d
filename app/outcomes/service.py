"""Settle cells, by a person or by rule, reopen them, and assign reads that end a conflict."""

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.cases import service as cases
from app.cases.service import OutcomeOut, RequestOut
from app.context import ServiceContext
from app.database.tables import Annotator, Case, Outcome, ReadRequest, Remark, new_id
from app.http.errors import Conflict, InvalidValue, NotFound
from app.http.principal import Principal
from app.outcomes import queries
from app.outcomes.queries import lock_cells
from app.outcomes.rules import MIN_OPINIONS, RuleDecision, conclude_opinions
from app.outcomes.schemas import AssignedReadsOut, AssignmentIn, OutcomeIn
from app.releases.service import class_names
from app.triage import service as triage
from ml.messages import Message, Term

# cells concluded in one transaction
_BATCH = 100


class AlreadySettled(Conflict):
    """A cell has an outcome."""

    code, title = "already-settled", "Already settled"


def _lock_cell(session: Session, case_id: uuid.UUID) -> Case:
    cells = lock_cells(session, [case_id])
    if not cells:
        raise NotFound("there is no such cell")
    return cells[0]


def _require_open(session: Session, case: Case, before: cases.NamedOutcome | None) -> None:
    if before is None:
        return
    code = before.outcome.class_code
    raise AlreadySettled(
        "this cell was settled by {who} as {outcome} at {time} UTC; reopen it first",
        who=Message("a rule") if before.by is None else before.by,
        outcome=Message("split") if code is None else Term(class_names(session).get(code, code)),
        time=f"{before.outcome.created_at:%Y-%m-%d %H:%M}",
    )


def settle_case(
    session: Session, keys: AuditKeys, principal: Principal, case_id: uuid.UUID, body: OutcomeIn
) -> tuple[int, OutcomeOut]:
    """Settle a cell, and withdraw its adjudications."""
    case = _lock_cell(session, case_id)
    _require_open(session, case, cases.read_outcomes(session, [case.id]).get(case.id))
    if body.by_rule:
        decision = _decide_cells(session, queries.cells_for_rule(session, [case.id])).get(case.id)
        if decision is None:
            raise Conflict("the rule does not decide this cell: too few final opinions, or a read is still planned")
        _conclude(session, keys, principal.name, case, decision)
    else:
        names = class_names(session)
        if body.code is not None and body.code not in names:
            raise InvalidValue("unknown {what}; the classes are {classes}", what="class", classes=", ".join(names))
        decided = {"kind": "split" if body.code is None else "class", "class_code": body.code}
        _store(session, keys, principal.name, case, body.reason, account_id=principal.account_id, **decided)
    return 201, cases.outcome_out(cases.read_outcomes(session, [case.id])[case.id])


def reopen_case(session: Session, keys: AuditKeys, principal: Principal, case_id: uuid.UUID, reason: str) -> None:
    """Take the outcome of a cell back; reads are asked for again with its next label."""
    case = _lock_cell(session, case_id)
    if not cases.read_outcomes(session, [case.id]):
        raise Conflict("this cell is not settled")
    _store(session, keys, principal.name, case, reason, kind="reopened", account_id=principal.account_id)


def _store(session: Session, keys: AuditKeys, actor: str, case: Case, reason: str | None, **columns: object) -> Outcome:
    """Store a row of a locked case, with its event."""
    before = queries.newest_rows(session, case.id)
    number = before[0].number + 1 if before else 1
    outcome = Outcome(id=new_id(), case_id=case.id, number=number, **columns)
    session.add(outcome)
    if reason is not None:
        session.add(Remark(id=outcome.id, case_id=case.id, reason=reason))
    if outcome.kind != "reopened":
        triage.withdraw_adjudications(session, ReadRequest.case_id == case.id)
    session.flush()
    verb = "reopen" if outcome.kind == "reopened" else "settle" if outcome.rule is None else "conclude"
    events.record_event(
        session,
        keys,
        actor=actor,
        action=f"outcome.{verb}",
        object_id=outcome.id,
        details={"case": str(case.id), "class": outcome.class_code},
        cases=[case.id],
    )
    return outcome


def _conclude(session: Session, keys: AuditKeys, actor: str, case: Case, decision: RuleDecision) -> None:
    kind = "split" if decision.class_code is None else "class"
    _store(session, keys, actor, case, None, kind=kind, class_code=decision.class_code, rule=decision.rule)


def _decide_cells(
    session: Session, waiting: Mapping[uuid.UUID, bool], *, withdraw: bool = True
) -> dict[uuid.UUID, RuleDecision]:
    """What the rule concludes of cells, by whether a read is open; without ``withdraw`` none that somebody may do."""
    max_labels = triage.current_policy(session).max_labels
    opinions = {
        case_id: [str(row.label.class_code) for row in cases.blind_opinions(history)]
        for case_id, history in cases.label_histories(session, waiting).items()
    }
    decisions = {
        case_id: conclude_opinions(classes, max_labels, no_annotator_left=False)
        for case_id, classes in opinions.items()
    }
    unclear = [
        case_id
        for case_id, decision in decisions.items()
        if (decision is None and len(opinions[case_id]) >= MIN_OPINIONS) or (waiting[case_id] and not withdraw)
    ]
    stuck: set[uuid.UUID] = set()
    if unclear:
        stuck |= set(
            session.execute(
                select(Case.id).where(Case.id.in_(unclear), triage.no_annotator_left(session, Case.id))
            ).scalars()
        )
    for case_id in stuck:
        decisions[case_id] = conclude_opinions(opinions[case_id], max_labels, no_annotator_left=True)
    return {
        case_id: decision
        for case_id, decision in decisions.items()
        if decision is not None and (withdraw or not waiting[case_id] or case_id in stuck)
    }


def rule_decision(session: Session, case_id: uuid.UUID) -> RuleDecision | None:
    """What the rule concludes of a cell; None if it does not decide."""
    return _decide_cells(session, queries.cells_for_rule(session, [case_id])).get(case_id)


def conclude_cells(context: ServiceContext) -> int:
    """Conclude the cells that the rule decides, unless an annotator may still do an open adjudication."""
    done = 0
    with context.database.read() as session:
        waiting = list(queries.cells_for_rule(session))
    for start in range(0, len(waiting), _BATCH):
        some = waiting[start : start + _BATCH]
        with context.database.read() as session:
            decided = _decide_cells(session, queries.cells_for_rule(session, some), withdraw=False)
        if decided:
            with context.database.write() as session:
                done += _conclude_batch(session, context.keys.audit, list(decided))
    return done


def _conclude_batch(session: Session, keys: AuditKeys, case_ids: Collection[uuid.UUID]) -> int:
    by_id = {case.id: case for case in lock_cells(session, case_ids)}
    decided = _decide_cells(session, queries.cells_for_rule(session, by_id), withdraw=False)  # now that nothing changes
    for case_id, decision in decided.items():
        _conclude(session, keys, "worker", by_id[case_id], decision)
    return len(decided)


def settle_in_gallery(
    session: Session,
    keys: AuditKeys,
    principal: Principal,
    locked: Collection[Case],
    code: str,
    reason: str,
    at: datetime,
) -> None:
    """Settle locked cells as a class, whatever their outcome was, at a moment by which they are found again."""
    chosen = {"kind": "class", "class_code": code, "account_id": principal.account_id}
    for case in locked:
        _store(session, keys, principal.name, case, reason, created_at=at, **chosen)


def undo_in_gallery(
    session: Session, keys: AuditKeys, principal: Principal, locked: Collection[Case], reason: str, given_at: datetime
) -> None:
    """Bring back the outcome that locked cells had before they were settled at a moment; others stay as they are."""
    for case in locked:
        rows = queries.newest_rows(session, case.id)
        if not rows or (rows[0].account_id, rows[0].created_at) != (principal.account_id, given_at):
            continue
        if len(rows) > 1 and rows[1].kind != "reopened":
            before, remark = rows[1], session.get(Remark, rows[1].id)
            by = {"rule": before.rule, "account_id": before.account_id}
            why = None if remark is None else remark.reason
            _store(session, keys, principal.name, case, why, kind=before.kind, class_code=before.class_code, **by)
        else:
            _store(session, keys, principal.name, case, reason, kind="reopened")
            for _ in range(queries.count_withdrawn(session, case, given_at)):
                session.add(triage.new_adjudication(session, case))
                session.flush()
            triage.refresh_waiting(session, case)


def ask_annotator(
    session: Session, keys: AuditKeys, principal: Principal, case_id: uuid.UUID, annotator_id: uuid.UUID
) -> ReadRequest:
    """Ask an annotator for the open read of a cell, or for an adjudication if none is open and it is not settled."""
    request = triage.ask_annotator(session, keys, principal, case_id, annotator_id)
    _require_unsettled(session, [request])
    return request


def _require_unsettled(session: Session, asked: Collection[ReadRequest]) -> None:
    """Refuse adjudications of settled cells; a planned read is wanted whatever the outcome is."""
    outcomes = cases.read_outcomes(session, [request.case_id for request in asked])
    for request in asked:
        if request.round == "adjudication":
            _require_open(session, session.get_one(Case, request.case_id), outcomes.get(request.case_id))


def assign_read(
    session: Session, keys: AuditKeys, principal: Principal, case_id: uuid.UUID, body: AssignmentIn
) -> tuple[int, RequestOut]:
    """Assign the next open read of a cell to an annotator, or an adjudication if no read is open."""
    annotator = _eligible_annotator(session, body.annotator)
    request = ask_annotator(session, keys, principal, case_id, annotator.id)
    rows = dict(cases.requests_of(session, [case_id])[case_id])
    return 201, cases.request_out(request, rows[request])


def assign_reads(
    session: Session, keys: AuditKeys, principal: Principal, case_ids: Collection[uuid.UUID], name: str
) -> AssignedReadsOut:
    """Assign a read of each cell to an annotator; cells that are settled, or that they have met, stay as they are."""
    annotator = _eligible_annotator(session, name)
    left = set(case_ids) - cases.read_outcomes(session, list(case_ids)).keys()
    added, refused = triage.ask_for_reads(session, keys, principal, left, annotator.id)
    if refused and not added:
        raise refused[0]
    _require_unsettled(session, added)  # of those that were settled meanwhile, with the locks held
    return AssignedReadsOut(n_assigned=len(added))


def _eligible_annotator(session: Session, name: str) -> Annotator:
    annotator = session.execute(select(Annotator).where(Annotator.name == name)).scalar_one_or_none()
    if annotator is None or annotator.id not in {one.id for one in triage.list_eligible_annotators(session)}:
        raise Conflict("no annotator with this name can be asked for a read")
    return annotator
