"""Change the policy by a new, audited version; planned cases keep their random draw."""

from typing import NoReturn

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.accounts.service import had_annotators, reading_annotators
from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.tables import CountedLabel, PolicyRow, ReaderDraw, ReadRequest, time_of
from app.http.errors import Conflict, InvalidValue
from app.http.principal import Principal
from app.triage.assignment import (
    GRACE_PERIOD,
    ReadEligibility,
    cells_without_annotator,
    eligibility_of,
    eligibility_of_account,
    list_annotators_for_case,
    list_assignable_annotators,
    list_eligible_annotators,
    next_position,
    no_annotator_left,
    redraw_annotator,
    require_qualified,
    twins_of_case,
)
from app.triage.by_hand import ask_annotator, ask_for_reads, assign_open_reads, new_adjudication, set_due_day
from app.triage.planning import (
    ImageIdentity,
    are_twins,
    identity_values,
    may_be_twin,
    new_request,
    plan_case,
    policy_for_planning,
    refresh_waiting,
    triage_case,
    uniform_draw,
    withdraw_adjudications,
    withdraw_repeats,
)
from app.triage.queries import (
    DAILY,
    all_policies,
    champion_classes,
    current_policy,
    current_rule,
    policy_of_version,
    rule_of,
    threshold_of,
)
from app.triage.rules import (
    TriageResult,
    TriageRule,
    decide_triage,
    needs_adjudication,
    second_read_probabilities,
    summarise_posterior,
    summarise_prediction,
)
from app.triage.schemas import (
    AMOUNT_OF_RULE,
    DrawsOut,
    PoliciesOut,
    PolicyIn,
    PolicyOut,
    ReportingGroupIn,
    ReportingGroupOut,
    ShareThresholdIn,
    UrgentClassOut,
)
from app.triage.specimen_reads import (
    SpecimenCells,
    cells_of_specimen,
    differential_groups,
    plan_specimen,
    reporting_groups,
    sum_values,
)
from app.triage.urgency import bring_patient_forward, lock_open_reads
from ml.messages import Message

# columns that are null rather than empty
_LISTS = ("reporting_groups", "urgent")


def policy_out(row: PolicyRow, current: int) -> PolicyOut:
    """A version as the API shows it."""
    fields = {name: getattr(row, name) for name in PolicyOut.model_fields if name not in {"current", *_LISTS}}
    lists = {name: getattr(row, name) or [] for name in _LISTS}
    return PolicyOut(**fields, **lists, current=row.version == current)


def list_policies(session: Session) -> PoliciesOut:
    """Every version, newest first."""
    rows = all_policies(session)
    items = [policy_out(row, rows[0].version) for row in rows]
    return PoliciesOut(items=items, draws=draws_so_far(session))


def draws_so_far(session: Session) -> DrawsOut | None:
    """Count the outcomes of planned reads with drawn annotators; None where none was drawn."""
    counted = (
        select(
            func.count(ReadRequest.label_id),
            func.count().filter(CountedLabel.annotator_id == ReadRequest.annotator_id),
            func.count().filter(ReadRequest.state == "open", ReadRequest.due_at < time_of(session) - GRACE_PERIOD),
            func.count(),
        )
        .select_from(ReaderDraw)
        .join(ReadRequest, ReadRequest.id == ReaderDraw.request_id)
        .outerjoin(CountedLabel, CountedLabel.id == ReadRequest.label_id)
        .where(ReaderDraw.probability.is_not(None), ReaderDraw.position == 0)
    )
    answered, as_drawn, overdue, n = session.execute(counted).one()
    again = (ReaderDraw.probability.is_not(None), ReaderDraw.position > 0)
    n_again = session.execute(select(func.count()).select_from(ReaderDraw).where(*again)).scalar_one()
    if n == 0:
        return None
    return DrawsOut(n_answered=answered, n_as_drawn=as_drawn, n_drawn_again=n_again, n_overdue=overdue)


def _require_known_classes(session: Session, body: PolicyIn) -> None:
    known = champion_classes(session)
    named = [("urgent", rule.class_code) for rule in body.urgent]
    named += [("reporting_groups", code) for group in body.reporting_groups for code in group.classes]
    for where, code in named:
        if known and code not in known:
            fault = Message("there is no class {name}; choose one of {classes}", name=code, classes=", ".join(known))
            _refuse(where, fault)
    for name in [group.group for group in body.reporting_groups if group.group not in group.classes]:
        if name in known:
            _refuse("reporting_groups", Message("{name} is the code of a class that is not in this group", name=name))


def add_policy(session: Session, keys: AuditKeys, principal: Principal, body: PolicyIn) -> tuple[int, PolicyOut]:
    """Make a new version, which is in force from now on."""
    before = current_policy(session)
    values = body.model_dump()
    values |= {name: values[name] or None for name in _LISTS}
    if all(getattr(before, name) == value for name, value in values.items() if name != "reason"):
        raise Conflict("this policy is already in force")
    _require_annotators(session, before, body)
    _require_known_classes(session, body)
    row = PolicyRow(version=before.version + 1, created_by=principal.account_id, **values)
    session.add(row)
    session.flush()
    if body.repeat_rate == 0 or body.reveal == "after_commit":
        withdraw_repeats(session)
    changed = {
        name: [getattr(before, name), value]
        for name, value in values.items()
        if name != "reason" and getattr(before, name) != value
    }
    events.record_event(
        session,
        keys,
        actor=principal.name,
        action="policy.change",
        object_id=row.version,
        details=changed,
        reason=body.reason,
    )
    return 201, policy_out(row, row.version)


def missing_annotators(session: Session) -> int:
    """Annotators that the policy in force needs and that are not there; none where outside systems alone have some."""
    n, needed = len(reading_annotators(session)), 2 if current_policy(session).adjudicate_below is None else 3
    return max(0, needed - n) if had_annotators(session) else 0


def _require_annotators(session: Session, before: PolicyRow, body: PolicyIn) -> None:
    """Refuse to ask for more reads than annotators can give, unless outside systems alone have annotators."""
    if not had_annotators(session):
        return
    n = len(reading_annotators(session))
    # each number the larger the more cells are read twice
    amounts = [
        (-(one.threshold or 0), one.capacity_per_day or 0, one.reads_per_specimen or 0, one.audit_rate)
        for one in (before, body)
    ]
    more = before.rule != body.rule or any(now > was for was, now in zip(*amounts, strict=True))
    if n < 2 and more:
        where, fault = "", Message("second reads need two annotators; add an annotator first")
    elif n < 3 and body.adjudicate_below is not None and before.adjudicate_below is None:
        fault = Message("adjudication needs three annotators; add an annotator first, or leave it off")
        where = "adjudicate_below"
    else:
        return
    _refuse(where, fault)


def _refuse(where: str, fault: Message) -> NoReturn:
    problem = InvalidValue(fault)
    problem.faults = {where: fault}
    raise problem
