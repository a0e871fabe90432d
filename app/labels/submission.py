"""Submit, revise and retract labels."""

import uuid
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy.orm import Session

from app.accounts.service import add_annotator, annotator_by_name
from app.cases.service import (
    Hidden,
    NamedLabel,
    ResolvedCase,
    advance_other_windows,
    blind_opinions,
    has_committed,
    hidden_after_commit,
    hidden_before_final,
    hidden_of_repeat,
    is_held_back,
    maybe_hold_back,
    open_correction_window,
    policy_of_requests,
    provisional_annotator_ids,
    record_exposure,
    was_exposed_to,
)
from app.context import ServiceContext
from app.database.tables import Annotator, Case, Label, Read, ReadRequest, Repeat, time_of
from app.http.errors import Forbidden, InvalidValue, NotFound
from app.http.models import PosteriorOut
from app.http.principal import Principal
from app.labels import queries
from app.labels.adjudication import AdjudicationInput, adjudicate_if_undecided
from app.labels.errors import AlreadyLabelled, LabelSuperseded
from app.labels.label_rows import head_of_chain, label_out, next_chain_position, record_label_event, store_label
from app.labels.locked_context import CaseHistory, LockedCaseContext, load_case_history, lock_case_context
from app.labels.posterior import next_answer_set, posterior_of, posterior_out
from app.labels.queries import AnyRequest, AuthoredLabel
from app.labels.schemas import LabelIn, OwnLabelIn, RetractionIn, RevisionIn, SubmittedOut
from ml.messages import Message


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


def submit_label(
    session: Session, context: ServiceContext, principal: Principal, case_id: uuid.UUID, body: LabelIn
) -> tuple[int, SubmittedOut]:
    """Store a label of an outside system for an annotator whom it names."""
    at_hand = lock_case_context(session, case_id)
    author = _outside_author(session, at_hand.case, body)
    return store_first_label(session, context, principal, at_hand, author, body)


def _outside_author(session: Session, case: Case, body: LabelIn) -> LabelAuthor:
    """Find the annotator that an outside system names, and the request that the label answers."""
    if body.annotator is None or body.blind is None:
        raise InvalidValue("name the annotator, and say whether the read was blind")
    existing = annotator_by_name(session, body.annotator)
    if existing is not None and existing.account_id is not None:
        raise Forbidden("this annotator has an account here: their labels enter by their own reads only")
    annotator = existing or add_annotator(session, body.annotator, None)
    read_round = body.round or "planned"
    request = queries.open_request_of_case(session, case.id, (read_round,)) if body.blind else None
    return LabelAuthor(annotator, body.blind, request, None, read_round)


def store_first_label(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    at_hand: LockedCaseContext,
    author: LabelAuthor,
    body: OwnLabelIn,
) -> tuple[int, SubmittedOut]:
    """Store a label that begins a chain, or that continues one after a retraction."""
    require_classes(at_hand.classes, body)
    purpose = "read" if author.repeat is None else "repeat"
    facts = load_case_history(session, at_hand.case.id, author.annotator.id, purpose)
    head = head_of_chain(facts.history, author.annotator)
    if head is not None and head.kind != "retraction":
        raise AlreadyLabelled("this annotator has labelled the case; send a revision instead")
    if head is not None:  # the chain stays in its round; it must not take a read that is wanted of somebody else
        author = replace(author, request=None, round=head.round, late=head.late)
    exposed = was_exposed_to(session, author.annotator.id, at_hand.case)
    label = store_label(
        session,
        next_chain_position(at_hand.case, author.annotator, head, purpose=purpose),
        body,
        blind=author.blind and not exposed,
        post_reveal=exposed,
        round=author.round,
        late=author.late,
        reading_seconds=_reading_seconds(author, time_of(session)),
        created_by=principal.account_id,
    )
    _close_answered_request(session, author, label)
    given = _make_new_label(author.annotator, label, facts, author.repeat)
    if author.read is not None and head is None and label.blind:
        given = _keep_open(session, at_hand, given, author.read)
    if author.read is not None and facts.leaves_others:
        advance_other_windows(session, author.annotator.id, label.case_id)
    return _complete_submission(session, context, principal, at_hand, given, "add")


def _keep_open(session: Session, at_hand: LockedCaseContext, given: "_NewLabel", read: Read) -> "_NewLabel":
    """Let a first blind label be corrected where its case stays hidden, and hold its case back if the coin says so."""
    hidden = given.repeat is not None or hidden_before_final(session, given.requests, at_hand.policy) is not None
    if hidden or given.unsettled:
        open_correction_window(session, given.label, read.id)
        given = replace(given, unsettled=True)
    if hidden and given.repeat is None:
        maybe_hold_back(session, given.label, policy_of_requests(session, given.requests, at_hand.policy))
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
            raise InvalidValue(
                Message("unknown {what}; the classes are {classes}", what=what, classes=", ".join(classes))
            )


def _close_answered_request(session: Session, author: LabelAuthor, label: Label) -> None:
    """Close the request and the read that a label answers; a request answered by a label that is not blind is open."""
    request, read = author.request, author.read
    if request is not None:
        request.state, request.lease_expires_at = "open", None
    if request is not None and (label.blind or isinstance(request, Repeat)):
        request.state, request.closed_at = "answered", label.created_at
    if isinstance(request, ReadRequest) and label.blind:
        request.label_id = label.id
    if read is not None:
        read.state, read.ended_at = "committed", label.created_at
    session.flush()


@dataclass(frozen=True)
class _NewLabel:
    """A label that was just stored."""

    annotator: Annotator
    label: Label
    # every row of the case's labels for its purpose, this one last
    history: list[NamedLabel]
    requests: list[ReadRequest]
    # whether somebody may still correct their label of the case
    unsettled: bool
    # what the label answers where it does not count
    repeat: Repeat | None


def _make_new_label(annotator: Annotator, label: Label, facts: CaseHistory, repeat: Repeat | None) -> _NewLabel:
    """A label that was just given, with what its consequences depend on."""
    history = [*facts.history, NamedLabel(label, annotator.name)]
    return _NewLabel(annotator, label, history, facts.requests, facts.unsettled, repeat)


def _complete_submission(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    at_hand: LockedCaseContext,
    given: _NewLabel,
    verb: str,
) -> tuple[int, SubmittedOut]:
    """Complete a label: draw the conclusions of one that counts, record the audit event and build the response."""
    if given.repeat is None:
        hidden, posterior = _draw_conclusions(session, principal, at_hand, given)
    else:
        hidden, posterior = hidden_of_repeat(session, given.repeat, at_hand.policy), None
    record_label_event(session, context, principal, given.label, verb)
    label = label_out(NamedLabel(given.label, given.annotator.name), given.repeat)
    return 201, SubmittedOut(label=label, posterior=posterior, hidden_because=hidden)


def _draw_conclusions(
    session: Session, principal: Principal, at_hand: LockedCaseContext, given: _NewLabel
) -> tuple[Hidden | None, PosteriorOut | None]:
    """Adjudicate if needed and reveal if allowed; the posterior, or why it is hidden."""
    opinions = blind_opinions(given.history)
    posterior = posterior_of(session, at_hand.prediction, at_hand.classes, opinions, in_use=at_hand.reader_model)
    labelled = AdjudicationInput(opinions, given.requests)
    adjudicate_if_undecided(session, at_hand, posterior, labelled, unsettled=given.unsettled)
    hidden = reveal_if_allowed(session, principal, at_hand, given)
    if hidden is not None:
        return hidden, None
    sets = next_answer_set(session, at_hand.case, posterior)
    return None, posterior_out(posterior, at_hand.policy.target_error, sets)


def reveal_if_allowed(
    session: Session, principal: Principal, at_hand: LockedCaseContext, given: _NewLabel
) -> Hidden | None:
    """Decide whether the answer shows the case in full, and record the exposure of the annotator who sees it."""
    if not principal.blind:
        return None
    own = given.annotator.account_id == principal.account_id  # a key may store labels of others too
    if not own and not has_committed(session, principal, ResolvedCase(at_hand.case.id)):
        return "before-commit"
    hidden = hidden_after_commit(session, given.requests, at_hand.policy, unsettled=given.unsettled)
    changed = given.label.position > 0  # a first answer that is shown at once was not held back
    if hidden is None and changed and is_held_back(session, given.annotator.id, at_hand.case.id):
        return "until-case-closed"
    if hidden is None:
        newest = max(row.label.id for row in given.history)
        record_exposure(session, given.annotator.id, at_hand.case.id, at_hand.prediction.release_id, newest)
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
        raise LabelSuperseded("this label was revised or retracted before; change the newest one")
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
    exposed = was_exposed_to(session, annotator.id, at_hand.case)
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
        hidden = hidden_before_final(session, facts.requests, at_hand.policy)
    else:
        hidden = hidden_of_repeat(session, authored.repeat, at_hand.policy)
    provisional = provisional_annotator_ids(session, at_hand.case.id, authored.label.purpose)
    return hidden == "until-case-closed" and authored.annotator.id not in provisional


def retract_case_label(
    session: Session, context: ServiceContext, principal: Principal, label_id: uuid.UUID, body: RetractionIn
) -> tuple[int, SubmittedOut]:
    """Take a label back by a new row."""
    authored, at_hand, facts = _lock_changeable_label(session, principal, label_id)
    before, annotator = authored.label, authored.annotator
    if before.kind == "retraction":
        raise LabelSuperseded("this label was retracted before")
    label = store_label(
        session,
        next_chain_position(at_hand.case, annotator, before, "retraction"),
        None,
        body.reason,
        blind=before.blind,
        post_reveal=was_exposed_to(session, annotator.id, at_hand.case),
        round=before.round,
        late=before.late,
        created_by=principal.account_id,
    )
    given = _make_new_label(annotator, label, facts, authored.repeat)
    return _complete_submission(session, context, principal, at_hand, given, "retract")
