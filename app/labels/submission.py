"""Submit, revise and retract labels: the rows, their events and what follows from them."""

import uuid
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypedDict

from sqlalchemy.orm import Session

from app.accounts.service import outside_annotator
from app.audit.chain import events
from app.audit.chain.covered_rows import update_row
from app.cases import service as case_service
from app.context import ServiceContext
from app.database.tables import Annotator, Case, Label, Read, ReadRequest, Remark, Repeat, time_of
from app.database.tables.values import Hidden
from app.http.errors import InvalidValue, NotFound
from app.http.models import PosteriorOut
from app.http.principal import Principal
from app.labels import queries
from app.labels.leases import (
    AlreadyLabelled,
    CaseHistory,
    LabelSuperseded,
    LeaseLost,
    LockedCaseContext,
    LockedCases,
    get_own_lease,
    load_case_history,
    lock_case_context,
)
from app.labels.posterior import (
    AdjudicationInput,
    CasePosterior,
    adjudicate_if_undecided,
    next_answer_set,
    posterior_of,
    posterior_out,
)
from app.labels.queries import AnyRequest, AuthoredLabel
from app.labels.schemas import LabelIn, LabelOut, OwnLabelIn, RetractionIn, RevisionIn, SubmittedOut

# how far the clock of an outside system may be ahead
_AHEAD = timedelta(minutes=5)


@dataclass(frozen=True)
class LabelAuthor:
    """Author of a label, with its blindness and the request that it answers."""

    annotator: Annotator
    # said to be without knowing the prediction, other labels or the reason for asking; it counts as blind only where
    # nothing of the image was shown to the annotator
    blind: bool
    # what the label answers; None for a label that nobody asked for
    request: AnyRequest | None
    # the lease that it ends
    read: Read | None
    round: str
    # the read had run out, and its request has gone to somebody else
    late: bool = False
    # what asked for the read; None where the label counts
    repeat: Repeat | None = None
    # when an outside annotator gave it; None where that is not known
    given_at: datetime | None = None


def commit_read(
    session: Session, context: ServiceContext, principal: Principal, read_id: uuid.UUID, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """End a read by a label."""
    # A read that ran out is taken up again while nobody else has its request; afterwards its label is kept as late.
    try:
        lease = get_own_lease(session, principal, read_id, case=True)
    except LeaseLost:
        read, annotator = queries.own_read(session, principal.account_id, read_id)
        since = queries.find_later_read(session, read)
        if read.state != "expired" or (since is not None and since.state != "leased"):
            raise
        if since is None:
            return _store_late(session, context, principal, read, annotator, body)
        lease = get_own_lease(session, principal, since.id, case=True)
    author = _author_of_answer(lease.annotator, lease.read, lease.request)
    at_hand = lease.case or lock_case_context(session, lease.read.case_id)
    return store_first_label(session, context, principal, at_hand, author, body)


def _author_of_answer(annotator: Annotator, read: Read, request: AnyRequest) -> LabelAuthor:
    repeat = request if isinstance(request, Repeat) else None
    return LabelAuthor(annotator, True, request, read, request.round, repeat=repeat)


def _store_late(
    session: Session, context: ServiceContext, principal: Principal, read: Read, annotator: Annotator, body: OwnLabelIn
) -> tuple[int, SubmittedOut]:
    """Keep an answer to a read that ran out, and whose request has gone to somebody else."""
    author = _author_of_answer(annotator, read, queries.request_of_read(session, read))
    author = replace(author, request=None, late=True)
    return store_first_label(session, context, principal, lock_case_context(session, read.case_id), author, body)


def answer_read(
    session: Session, context: ServiceContext, principal: Principal, read_id: uuid.UUID, body: OwnLabelIn
) -> uuid.UUID:
    """End a read by a label that a browser may send more than once: after the first time nothing is stored."""
    # Only the class must be the same, since a browser keeps nothing else of an answer through a reload.
    try:
        _, stored = commit_read(session, context, principal, read_id, body)
    except LeaseLost:
        read, _ = queries.own_read(session, principal.account_id, read_id)
        chain = queries.own_chain(session, read)
        if not chain:
            raise
        if chain[0].class_code != body.label:
            raise AlreadyLabelled(
                "you have already labelled this cell with another class; correct that label instead"
            ) from None
        return read.named
    return uuid.UUID(stored.label.case_id)


def submit_label(
    session: Session, context: ServiceContext, principal: Principal, case_id: uuid.UUID, body: LabelIn
) -> tuple[int, SubmittedOut]:
    """Store a label of an outside system for an annotator whom it names."""
    at_hand = lock_case_context(session, case_id)
    author = outside_author(session, at_hand.case, body)
    return store_first_label(session, context, principal, at_hand, author, body)


def outside_author(session: Session, case: Case, body: LabelIn, cases: LockedCases | None = None) -> LabelAuthor:
    """Find the annotator that an outside system names, and the request that the label answers."""
    if body.annotator is None or body.blind is None:
        raise InvalidValue("give the annotator's name and whether the read was blinded")
    refuse_future(session, body)
    annotator = None if cases is None else cases.annotators.get(body.annotator)
    annotator = annotator or outside_annotator(session, body.annotator)
    read_round = body.round or "planned"
    may_answer = body.blind
    if cases is not None:
        cases.annotators[body.annotator] = annotator
        requests = cases.history[case.id].requests
        may_answer = may_answer and any((one.state, one.round) == ("open", read_round) for one in requests)
    request = queries.open_request_of_case(session, case.id, (read_round,)) if may_answer else None
    return LabelAuthor(annotator, body.blind, request, None, read_round, given_at=body.at)


def refuse_future(session: Session, body: LabelIn) -> None:
    """Refuse a label that was given later than now."""
    if body.at is not None and body.at > time_of(session) + _AHEAD:
        raise InvalidValue("`at` is in the future; send the time when the annotator gave the label")


def store_first_label(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    at_hand: LockedCaseContext,
    author: LabelAuthor,
    body: OwnLabelIn,
) -> tuple[int, SubmittedOut]:
    """Store a label that begins a chain, or that continues one after a retraction, with its event and answer."""
    require_classes(at_hand.classes, body)
    facts = load_case_history(session, at_hand.case.id, author.annotator.id, _purpose_of(author))
    refuse_second_label(facts.history, author.annotator)
    given = add_first_label(session, principal, at_hand, author, body, facts)
    return _complete_submission(session, context, principal, at_hand, given, "add")


def _purpose_of(author: LabelAuthor) -> str:
    return "read" if author.repeat is None else "repeat"


def refuse_second_label(history: list[case_service.NamedLabel], annotator: Annotator) -> None:
    """Refuse a label by an annotator whose earlier one is not retracted."""
    head = head_of_chain(history, annotator)
    if head is not None and head.kind != "retraction":
        raise AlreadyLabelled("this annotator has already labelled the cell; send a revision instead")


def add_first_label(
    session: Session,
    principal: Principal,
    at_hand: LockedCaseContext,
    author: LabelAuthor,
    body: OwnLabelIn,
    facts: CaseHistory,
) -> "NewLabel":
    """Store the row of a label that nothing refuses, and close the request that it answers."""
    head = head_of_chain(facts.history, author.annotator)
    if head is not None:  # the chain stays in its round; it must not take a read that is wanted of somebody else
        author = replace(author, request=None, round=head.round, late=head.late)
    exposed = case_service.was_exposed_to(session, author.annotator.id, at_hand.case)
    label = store_label(
        session,
        next_chain_position(at_hand.case, author.annotator, head, purpose=_purpose_of(author)),
        body,
        blind=author.blind and not exposed,
        post_reveal=exposed,
        round=author.round,
        late=author.late,
        reading_seconds=_reading_seconds(author, time_of(session)),
        given_at=author.given_at,
        created_by=principal.account_id,
    )
    _close_answered_request(session, author, label)
    given = _make_new_label(author.annotator, label, facts, author.repeat)
    if author.read is not None and head is None and label.blind:
        given = _keep_open(session, at_hand, given, author.read)
    if author.read is not None and facts.leaves_others:
        case_service.advance_other_windows(session, author.annotator.id, label.case_id)
    return given


def _keep_open(session: Session, at_hand: LockedCaseContext, given: "NewLabel", read: Read) -> "NewLabel":
    """Let a first blind label be corrected where its case stays hidden, and hold its case back if the coin says so."""
    hidden = (
        given.repeat is not None
        or case_service.hidden_before_final(session, given.requests, at_hand.policy) is not None
    )
    if hidden or given.unsettled:
        case_service.open_correction_window(session, given.label, read.id)
        given = replace(given, unsettled=True)
    if hidden and given.repeat is None:
        case_service.maybe_hold_back(
            session, given.label, case_service.policy_of_requests(session, given.requests, at_hand.policy)
        )
    return given


def _reading_seconds(author: LabelAuthor, at: datetime) -> float | None:
    """Seconds from the first display, else from the lease, to a time; None where nothing says how long it was read."""
    if author.read is None or author.late:
        return None
    return (at - (author.read.displayed_at or author.read.created_at)).total_seconds()


def require_classes(classes: list[str], body: OwnLabelIn) -> None:
    """Refuse a class, or a second choice, that the case's release does not know."""
    for what, code in (("class", body.label), ("second choice", body.second_choice)):
        if code is not None and code not in classes:
            raise InvalidValue("unknown {what}; the classes are {classes}", what=what, classes=", ".join(classes))


def _close_answered_request(session: Session, author: LabelAuthor, label: Label) -> None:
    request, read = author.request, author.read
    if request is not None:
        if label.blind or isinstance(request, Repeat):
            answer = {"label_id": label.id} if label.blind and isinstance(request, ReadRequest) else {}
            closed = {"state": "answered", "closed_at": label.created_at, "lease_expires_at": None}
            update_row(session, request, **closed, **answer)
        else:
            queries.give_back(session, ReadRequest, [request.id])
            session.refresh(request)
    if read is not None:
        update_row(session, read, state="committed", ended_at=label.created_at)


@dataclass(frozen=True)
class NewLabel:
    """A label that was just stored."""

    annotator: Annotator
    label: Label
    # every row of the case's labels for its purpose, this one last
    history: list[case_service.NamedLabel]
    requests: list[ReadRequest]
    # whether somebody may still correct their label of the case
    unsettled: bool
    # what the label answers where it does not count
    repeat: Repeat | None


def _make_new_label(annotator: Annotator, label: Label, facts: CaseHistory, repeat: Repeat | None) -> NewLabel:
    history = [*facts.history, case_service.NamedLabel(label, annotator.name)]
    return NewLabel(annotator, label, history, facts.requests, facts.unsettled, repeat)


def _complete_submission(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    at_hand: LockedCaseContext,
    given: NewLabel,
    verb: str,
) -> tuple[int, SubmittedOut]:
    """Complete a label: draw the conclusions of one that counts, record the audit event and build the response."""
    if given.repeat is None:
        hidden, posterior = _draw_conclusions(session, principal, at_hand, given)
    else:
        hidden, posterior = case_service.hidden_of_repeat(session, given.repeat, at_hand.policy), None
    record_label_event(session, context, principal, given.label, verb)
    label = label_out(case_service.NamedLabel(given.label, given.annotator.name), given.repeat)
    return 201, SubmittedOut(label=label, posterior=posterior, hidden_because=hidden)


def _draw_conclusions(
    session: Session, principal: Principal, at_hand: LockedCaseContext, given: NewLabel
) -> tuple[Hidden | None, PosteriorOut | None]:
    """Adjudicate if needed and reveal if allowed; the posterior, or why it is hidden."""
    posterior = adjudicate_after(session, at_hand, given)
    hidden = reveal_if_allowed(session, principal, at_hand, given)
    if hidden is not None:
        return hidden, None
    sets = next_answer_set(session, at_hand.case, posterior)
    return None, posterior_out(posterior, at_hand.policy.target_error, sets)


def adjudicate_after(session: Session, at_hand: LockedCaseContext, given: NewLabel) -> CasePosterior:
    """Ask for another annotator if a label that counts leaves its case undecided; gives the posterior."""
    opinions = case_service.blind_opinions(given.history)
    posterior = posterior_of(session, at_hand.prediction, at_hand.classes, opinions, in_use=at_hand.reader_model)
    labelled = AdjudicationInput(opinions, given.requests)
    adjudicate_if_undecided(session, at_hand, posterior, labelled, unsettled=given.unsettled)
    return posterior


def reveal_if_allowed(
    session: Session, principal: Principal, at_hand: LockedCaseContext, given: NewLabel
) -> Hidden | None:
    """Decide whether the answer shows the case in full, and record the exposure of the annotator who sees it."""
    if not principal.blind:
        return None
    own = given.annotator.account_id == principal.account_id  # a key may store labels of others too
    if not own and not case_service.has_committed(session, principal, case_service.ResolvedCase(at_hand.case.id)):
        return "before-commit"
    hidden = case_service.hidden_after_commit(session, given.requests, at_hand.policy, unsettled=given.unsettled)
    changed = given.label.position > 0  # a first answer that is shown at once was not held back
    if hidden is None and changed and case_service.is_held_back(session, given.annotator.id, at_hand.case.id):
        return "until-case-closed"
    if hidden is None:
        newest = max(row.label.id for row in given.history)
        case_service.record_exposure(
            session, given.annotator.id, at_hand.case.id, at_hand.prediction.release_id, newest
        )
    return hidden


def _lock_changeable_label(
    session: Session, principal: Principal, label_id: uuid.UUID
) -> tuple[AuthoredLabel, LockedCaseContext, CaseHistory]:
    """A label that the caller may change, at the end of its chain, with its case locked and what stands about it."""
    authored = queries.authored_label(session, label_id)
    if authored is None or not _may_change(principal, authored.annotator):
        raise NotFound("there is no such label")
    label, annotator = authored.label, authored.annotator
    at_hand = lock_case_context(session, label.case_id)
    facts = load_case_history(session, label.case_id, annotator.id, label.purpose)
    head = head_of_chain(facts.history, annotator)
    if head is None or head.id != label.id:
        raise LabelSuperseded("this label has been revised or withdrawn; change the newest one")
    return authored, at_hand, facts


def _may_change(principal: Principal, annotator: Annotator) -> bool:
    if "labels:write" in principal.scopes:
        return annotator.account_id is None
    return annotator.account_id == principal.account_id


def revise_case_label(
    session: Session, context: ServiceContext, principal: Principal, label_id: uuid.UUID, body: RevisionIn
) -> tuple[int, SubmittedOut]:
    """Correct a label, or label again after a retraction, by a new row."""
    # After the reveal it is tagged and kept out of calibration and evaluation. So is, without the tag, what a person
    # changes once their label is final where closed cases are shown: one that is not shown then has a read to come.
    authored, at_hand, facts = _lock_changeable_label(session, principal, label_id)
    before, annotator = authored.label, authored.annotator
    require_classes(at_hand.classes, body)
    exposed = case_service.was_exposed_to(session, annotator.id, at_hand.case)
    if annotator.account_id is None:
        blind = before.blind if body.blind is None else body.blind
    else:
        blind = before.blind and not _may_tell_arm(session, at_hand, authored, facts)
    label = store_label(
        session,
        next_chain_position(at_hand.case, annotator, before),
        body,
        body.reason,
        blind=blind and not exposed,
        post_reveal=exposed,
        round=before.round,
        late=before.late,
        created_by=principal.account_id,
    )
    given = _make_new_label(annotator, label, facts, authored.repeat)
    return _complete_submission(session, context, principal, at_hand, given, "revise")


def _may_tell_arm(session: Session, at_hand: LockedCaseContext, authored: AuthoredLabel, facts: CaseHistory) -> bool:
    """Whether an annotator of a case can conclude from what is not shown to them that it is to be read again."""
    if authored.repeat is None:
        hidden = case_service.hidden_before_final(session, facts.requests, at_hand.policy)
    else:
        hidden = case_service.hidden_of_repeat(session, authored.repeat, at_hand.policy)
    provisional = case_service.provisional_annotator_ids(session, at_hand.case.id, authored.label.purpose)
    return hidden == "until-case-closed" and authored.annotator.id not in provisional


def retract_case_label(
    session: Session, context: ServiceContext, principal: Principal, label_id: uuid.UUID, body: RetractionIn
) -> tuple[int, SubmittedOut]:
    """Take a label back by a new row."""
    authored, at_hand, facts = _lock_changeable_label(session, principal, label_id)
    before, annotator = authored.label, authored.annotator
    if before.kind == "retraction":
        raise LabelSuperseded("this label has been withdrawn")
    label = store_label(
        session,
        next_chain_position(at_hand.case, annotator, before, "retraction"),
        None,
        body.reason,
        blind=before.blind,
        post_reveal=case_service.was_exposed_to(session, annotator.id, at_hand.case),
        round=before.round,
        late=before.late,
        created_by=principal.account_id,
    )
    given = _make_new_label(annotator, label, facts, authored.repeat)
    return _complete_submission(session, context, principal, at_hand, given, "retract")


class LabelDetails(TypedDict):
    """Details of an event about a label."""

    case: str
    annotator: str
    label: str | None
    blind: bool
    round: str
    late: bool


def label_details(label: Label) -> LabelDetails:
    """Return the audit details of a label."""
    return {
        "case": str(label.case_id),
        "annotator": str(label.annotator_id),
        "label": label.class_code,
        "blind": label.blind,
        "round": label.round,
        "late": label.late,
    }


def head_of_chain(history: list[case_service.NamedLabel], annotator: Annotator) -> Label | None:
    """The newest label of an annotator's chain."""
    chain = [row.label for row in history if row.label.annotator_id == annotator.id]
    return max(chain, key=lambda label: label.position, default=None)


class ChainPosition(TypedDict):
    """Columns of a label that say where it stands."""

    case_id: uuid.UUID
    annotator_id: uuid.UUID
    purpose: str
    kind: str
    supersedes_id: uuid.UUID | None
    position: int


def next_chain_position(
    case: Case, annotator: Annotator, before: Label | None, kind: str = "revision", purpose: str = "read"
) -> ChainPosition:
    """Columns of a label that say where it stands: at the end of a chain of its annotator's, or at the beginning."""
    return {
        "case_id": case.id,
        "annotator_id": annotator.id,
        "purpose": purpose if before is None else before.purpose,
        "kind": "label" if before is None else kind,
        "supersedes_id": None if before is None else before.id,
        "position": 0 if before is None else before.position + 1,
    }


def store_label(
    session: Session, place: ChainPosition, body: OwnLabelIn | None, reason: str | None = None, **columns: object
) -> Label:
    """Store a row of labels, and what was written about it."""
    label = Label(class_code=None, remark=None, **place, **columns)  # None: it is not looked up later
    if body is not None:
        label.class_code, label.confidence = body.label, body.confidence
        label.second_choice, label.flagged = body.second_choice, body.flag
    note = None if body is None else body.note
    if note is not None or reason is not None:
        label.remark = Remark(note=note, reason=reason)
    session.add(label)
    session.flush()
    return label


def label_out(row: case_service.NamedLabel, repeat: Repeat | None = None) -> LabelOut:
    """A label as the API shows it; one that answers a repeat names the case as its annotator knows it then."""
    label, remark = row.label, row.label.remark
    return LabelOut(
        id=str(label.id),
        case_id=str(label.case_id if repeat is None else repeat.named),
        annotator=row.annotator,
        label=label.class_code,
        confidence=label.confidence,
        second_choice=label.second_choice,
        flagged=label.flagged,
        note=remark and remark.note,
        blind=label.blind,
        round=label.round,
        late=label.late,
        kind=label.kind,
        supersedes=None if label.supersedes_id is None else str(label.supersedes_id),
        post_reveal=label.post_reveal,
        reason=remark and remark.reason,
        reading_seconds=label.reading_seconds,
        at=label.given_at,
        created_at=label.created_at,
    )


def record_label_event(
    session: Session, context: ServiceContext, principal: Principal, label: Label, verb: str
) -> None:
    """Append a label to the audit chain."""
    what = "label" if label.purpose == "read" else "repeat"
    events.record_event(
        session,
        context.keys.audit,
        actor=principal.name,
        action=f"{what}.{verb}",
        object_id=label.id,
        details={**label_details(label)},
        # a repeat changes nothing of its case: remembered answers are found by it when a patient is erased
        cases=[label.case_id],
    )
